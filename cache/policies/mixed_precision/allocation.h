// Widths by sensitivity: one price per bit for all quads of all pages and layers (reverse water-filling).
//
// A quad of sensitivity S has error S / (2^b - 1)^2 at b bits, and 3/2 S (measured, see NOTES.md) without codes, when each
// column is its mean. It gets a wider code as long as the error that this saves per bit is above the price. The price is
// the one at which the bytes meet the budget.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/quantized_page.h"

namespace smartkv {

// log2 of S, in steps of 1/256 octave.
using LogSensitivity = int16_t;
LogSensitivity log_sensitivity(double s);

// Width of a quad at a price, both as logarithms; as an index into kernels::kCodeBits, past whose end there are no codes.
size_t width_index(int32_t sensitivity, int32_t price);

// Counts of the widths of one side of a page; `shift` is added to every sensitivity (the page's importance). least_bits: 0, or 2:
// every quad has codes.
kernels::CodeRuns runs_at(std::span<const LogSensitivity> quads, int32_t shift, int32_t price, int64_t least_bits);

// Of two sequences of runs over the same quads, the narrower one at each quad.
kernels::CodeRuns narrower(const kernels::CodeRuns& a, const kernels::CodeRuns& b);

}  // namespace smartkv
