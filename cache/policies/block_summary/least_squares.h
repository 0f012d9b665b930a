// The two small fits of block summaries. Both work on the normal equations, because there are few unknowns but may be
// many queries.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace smartkv {

constexpr int kLeastSquaresSweeps = 30;  // Sweeps of the coordinate descent.

// Minimizes |A x - t|^2 with low_i <= x_i <= high_i, by coordinate descent from the given `x`. gram: A^T A [n, n]; rhs:
// A^T t [n]. The x of a column of zeros does not change.
void bounded_least_squares(std::span<const double> gram, std::span<const double> rhs, std::span<const double> low,
                           std::span<const double> high, std::span<double> x);

// Solves gram X = rhs by Cholesky decomposition and writes X over `rhs`. gram: [n, n], symmetric positive definite;
// rhs: [n, columns].
void solve_positive(std::span<const double> gram, int64_t columns, std::span<double> rhs);

}  // namespace smartkv
