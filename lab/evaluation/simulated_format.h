// KV-cache formats of other programs, simulated: what a format would give back for K (after RoPE) and V, and the bytes
// that it would take. Speed is not simulated.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/sequence_cache.h"

namespace smartkv {

// The largest |K| and |V| of each layer over a calibration text, for formats with a scale per tensor.
struct TensorRanges {
  std::vector<float> k, v;  // [n_layers]
};

struct SimulatedFormat {
  int64_t tile = 1;          // tokens that are encoded together; a tile is exact until it is full
  int64_t exact_tokens = 0;  // first tokens of a sequence that stay exact, a multiple of `tile`
  int64_t exact_layers = 0;  // first and last layers that stay exact: this many at either end
  int64_t tile_bytes = 0;    // K and V of a tile of one KV head, with scales
  // Replaces a tile of one KV head of a layer by what the format gives back. k, v: f32 [tile, head_dim].
  std::function<void(int64_t layer, float* k, float* v)> round_trip;

  bool is_exact(int64_t layer, int64_t n_layers) const {
    return layer < exact_layers || layer >= n_layers - exact_layers;
  }
};

// Returns the names of all formats.
std::vector<std::string> simulated_formats();
// Returns one line about a format, with its source. Throws CacheError for an unknown name, like the functions below.
std::string_view simulated_summary(const std::string& name);
// Returns whether a format has a scale per tensor, which simulated_format() computes from the ranges.
bool needs_ranges(const std::string& name);
// Returns a format for caches of this shape. Throws CacheError for an unknown name, and for a head_dim that the format
// does not support. REQUIRES: `ranges` covers all layers if needs_ranges().
SimulatedFormat simulated_format(const std::string& name, const CacheShape& shape, const TensorRanges& ranges = {});

// The parts of the formats. All work in place.

// Multiplies x by the orthonormal Hadamard matrix, in blocks of the largest power of two that divides its size. The
// matrix is its own inverse.
void hadamard(std::span<float> x);
// Rounds to the nearest value of FP8 E4M3 (Micikevicius et al. 2022): ties to even, saturates at 448.
float to_e4m3(float x);
// Rounds to the nearest value of FP4 E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6; ties to the even code, saturates.
float to_e2m1(float x);
// llama.cpp's q8_0 and q4_0: blocks of 32 values with an f16 scale. REQUIRES: x.size() is a multiple of 32.
void round_q8_0(std::span<float> x);
void round_q4_0(std::span<float> x);
// Rounds to 2^bits levels between the least and the greatest value; f16 scale and least value.
void round_range(std::span<float> x, int bits);

}  // namespace smartkv
