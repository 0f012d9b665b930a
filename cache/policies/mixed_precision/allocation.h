// Chooses widths by sensitivity: one price per bit for all quads of all pages and layers (reverse water-filling).
//
// A quad of sensitivity S has error S / (2^b - 1)^2 at b bits. Without codes, when each column is its mean, the error
// is 3/2 S (measured, see NOTES.md). A quad gets a wider code as long as the error that this saves per bit is above the
// price. The price is chosen so that the bytes meet the budget.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/quantized_page.h"

namespace smartkv {

// log2 of a sensitivity S, in steps of 1/256 octave.
using LogSensitivity = int16_t;
LogSensitivity log_sensitivity(double s);

// Returns the width of a quad at a price, as an index into kernels::kCodeBits. The index past its end means no codes.
// Both arguments are logarithms like LogSensitivity.
size_t width_index(int32_t sensitivity, int32_t price);

// Returns how many quads of one side of a page (K or V) get each width. `shift`, the page's importance, is added to
// every sensitivity. least_bits: 2 if every quad must have codes, or 0.
kernels::CodeRuns runs_at(std::span<const LogSensitivity> quads, int32_t shift, int32_t price, int64_t least_bits);

// Returns the narrower of two runs at each quad. Both cover the same quads.
kernels::CodeRuns narrower(const kernels::CodeRuns& a, const kernels::CodeRuns& b);

}  // namespace smartkv
