// The two small fits of block summaries. Both work on normal equations: unknowns are few, queries may be many.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace smartkv::kernels {

constexpr int kLeastSquaresSweeps = 30;  // of the coordinate descent

// min |A x - t|^2 with low_i <= x_i <= high_i, by coordinate descent from `x`. gram: A^T A [n, n]; rhs: A^T t [n]. A column
// of zeros keeps its x.
void bounded_least_squares(std::span<const double> gram, std::span<const double> rhs, std::span<const double> low,
                           std::span<const double> high, std::span<double> x);

// Solves gram X = rhs in place of rhs. gram: symmetric positive definite [n, n]; rhs: [n, columns]. Cholesky.
void solve_positive(std::span<const double> gram, int64_t columns, std::span<double> rhs);

}  // namespace smartkv::kernels
