#include "lab/evaluation/simulated_format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "kernels/half.h"

namespace smartkv {
namespace {

using kernels::float_to_half;
using kernels::half_to_float;

float to_f16(float x) { return half_to_float(float_to_half(x)); }

float most(std::span<const float> x) {
  float most = 0;
  for (const float value : x) most = std::max(most, std::abs(value));
  return most;
}

// Rounds to the nearest multiple of `step`, ties to even.
float to_multiple(float x, float step) { return std::nearbyint(x / step) * step; }

// NVFP4: blocks of 16 values of E2M1 with a scale in E4M3, times a scale per tensor that puts the largest block at the
// end of both ranges.
void round_nvfp4(std::span<float> x, float tensor_most) {
  constexpr float kE2m1Most = 6, kE4m3Most = 448;
  constexpr size_t kBlock = 16;
  const float tensor_scale = tensor_most > 0 ? tensor_most / (kE2m1Most * kE4m3Most) : 1.0f;
  for (size_t at = 0; at < x.size(); at += kBlock) {
    const std::span<float> block = x.subspan(at, kBlock);
    const float scale = to_e4m3(most(block) / kE2m1Most / tensor_scale) * tensor_scale;
    for (float& value : block) value = scale > 0 ? to_e2m1(value / scale) * scale : 0.0f;
  }
}

// Levels of the quantizer of a standard normal variable with the least squared error (Max 1960), positive half, found
// by Lloyd's iteration on the density.
std::vector<float> normal_levels(int bits) {
  const auto density = [](double x) { return std::exp(-0.5 * x * x) / std::sqrt(2 * std::acos(-1.0)); };
  const auto beyond = [](double x) { return 0.5 * std::erfc(x / std::sqrt(2.0)); };
  std::vector<double> levels(size_t{1} << (bits - 1));
  for (size_t i = 0; i < levels.size(); ++i)
    levels[i] = 3.0 * (static_cast<double>(i) + 0.5) / static_cast<double>(levels.size());
  for (int round = 0; round < 500; ++round) {
    double low = 0;
    for (size_t i = 0; i < levels.size(); ++i) {
      const bool last = i + 1 == levels.size();
      const double high = last ? 0 : 0.5 * (levels[i] + levels[i + 1]);
      const double mass = beyond(low) - (last ? 0 : beyond(high));
      levels[i] = (density(low) - (last ? 0 : density(high))) / mass;
      low = high;
    }
  }
  return {levels.begin(), levels.end()};
}

float to_level(float x, std::span<const float> levels) {
  const float size = std::abs(x);
  size_t i = 0;
  while (i + 1 < levels.size() && size > 0.5f * (levels[i] + levels[i + 1])) ++i;
  return std::copysign(levels[i], x);
}

// TurboQuant's keys (Zandieh et al. 2025) as vLLM stores them: the direction is rotated and its coordinates take the
// levels of a normal variable; the result is scaled to the f16 norm of the key.
void round_turboquant_key(std::span<float> x, std::span<const float> levels) {
  double squares = 0;
  for (const float value : x) squares += static_cast<double>(value) * value;
  const auto norm = static_cast<float>(std::sqrt(squares));
  if (norm == 0) return;
  const float to_unit = std::sqrt(static_cast<float>(x.size())) / norm;  // coordinates then have variance 1
  hadamard(x);
  squares = 0;
  for (float& value : x) {
    value = to_level(value * to_unit, levels);
    squares += static_cast<double>(value) * value;
  }
  const float back = to_f16(norm) / static_cast<float>(std::sqrt(squares));
  for (float& value : x) value *= back;
  hadamard(x);
}

// A matrix [rows, columns] with a scale for each row and each column.
struct Balanced {
  std::vector<double> row, column;
};

// Finds the scales that give all rows and columns about the same standard deviation, by scaling them in turn (after
// Sinkhorn). Returns the scales with the least ratio of the largest to the smallest deviation.
Balanced balance(std::span<const float> x, size_t rows, size_t columns) {
  constexpr int kRounds = 16;
  constexpr double kLeast = 1e-8;
  Balanced scales{std::vector<double>(rows, 1), std::vector<double>(columns, 1)}, best = scales;
  double least = std::numeric_limits<double>::infinity();
  const auto deviations = [&](bool by_row) {
    const size_t n = by_row ? rows : columns, of = by_row ? columns : rows;
    std::vector<double> result(n);
    for (size_t i = 0; i < n; ++i) {
      double sum = 0, squares = 0;
      for (size_t j = 0; j < of; ++j) {
        const size_t r = by_row ? i : j, c = by_row ? j : i;
        const double value = x[r * columns + c] / (scales.row[r] * scales.column[c]);
        sum += value;
        squares += value * value;
      }
      const auto count = static_cast<double>(of);
      result[i] = std::max(kLeast, std::sqrt(std::max(0.0, squares / count - sum / count * (sum / count))));
    }
    return result;
  };
  for (int round = 0; round <= kRounds; ++round) {
    const std::vector<double> of_rows = deviations(true), of_columns = deviations(false);
    const auto [row_low, row_high] = std::minmax_element(of_rows.begin(), of_rows.end());
    const auto [column_low, column_high] = std::minmax_element(of_columns.begin(), of_columns.end());
    const double ratio = std::max(*row_high, *column_high) / std::min(*row_low, *column_low);
    if (ratio < least) {
      least = ratio;
      best = scales;
    }
    for (size_t c = 0; c < columns; ++c) scales.column[c] *= of_columns[c];
    const std::vector<double> rows_now = deviations(true);
    for (size_t r = 0; r < rows; ++r) scales.row[r] *= rows_now[r];
  }
  return best;
}

// KVarN: rotates the channels, balances the tile, and rounds it in ranges: of a channel over the tokens (K) or of a
// token over the channels (V). x: [tokens, head_dim].
void round_kvarn(std::span<float> x, size_t tokens, size_t head_dim, int bits, bool by_channel) {
  for (size_t t = 0; t < tokens; ++t) hadamard(x.subspan(t * head_dim, head_dim));
  const Balanced scales = balance(x, tokens, head_dim);
  const size_t n = by_channel ? head_dim : tokens, of = by_channel ? tokens : head_dim;
  std::vector<float> line(of);
  for (size_t i = 0; i < n; ++i) {
    const auto at = [&](size_t j) { return by_channel ? j * head_dim + i : i * head_dim + j; };
    const auto own = static_cast<float>(by_channel ? scales.column[i] : scales.row[i]);
    // The scale across the line has a place of its own; that of the line is absorbed by the scale of its range.
    const auto across = [&](size_t j) {
      return to_f16(static_cast<float>(by_channel ? scales.row[j] : scales.column[j]));
    };
    for (size_t j = 0; j < of; ++j) line[j] = x[at(j)] / (own * across(j));
    round_range(line, bits);
    for (size_t j = 0; j < of; ++j) x[at(j)] = line[j] * own * across(j);
  }
  for (size_t t = 0; t < tokens; ++t) hadamard(x.subspan(t * head_dim, head_dim));
}

// The formats that are simulated, as functions of head_dim and of the ranges.
struct FormatRow {
  std::string_view name, summary;
  int64_t multiple;  // head_dim must be a multiple of this
  bool ranges;
  SimulatedFormat (*make)(size_t d, const TensorRanges& ranges);
};

SimulatedFormat per_token(int64_t bytes, std::function<void(std::span<float>)> k,
                          std::function<void(std::span<float>)> v, size_t d) {
  SimulatedFormat format;
  format.tile_bytes = bytes;
  format.round_trip = [k = std::move(k), v = std::move(v), d](int64_t, float* k_row, float* v_row) {
    k({k_row, d});
    v({v_row, d});
  };
  return format;
}

SimulatedFormat turboquant(size_t d, int bits) {
  const auto codes = static_cast<int64_t>(d) * bits / 8;
  SimulatedFormat format = per_token(
      2 * codes + 2 + 4, [levels = normal_levels(bits)](std::span<float> x) { round_turboquant_key(x, levels); },
      [bits](std::span<float> x) { round_range(x, bits); }, d);
  format.exact_layers = 2;
  return format;
}

SimulatedFormat kvarn(size_t d, int k_bits, int v_bits) {
  constexpr int64_t kTile = 128;
  SimulatedFormat format;
  format.tile = format.exact_tokens = kTile;
  const auto width = static_cast<int64_t>(d);
  format.tile_bytes = kTile * width * (k_bits + v_bits) / 8 + 2 * (2 * width + kTile) + 2 * (2 * kTile + width);
  format.round_trip = [=](int64_t, float* k, float* v) {
    const auto tile = static_cast<size_t>(kTile);
    round_kvarn({k, tile * d}, tile, d, k_bits, true);
    round_kvarn({v, tile * d}, tile, d, v_bits, false);
  };
  return format;
}

const std::vector<FormatRow>& formats() {
  static const std::vector<FormatRow> rows = {
      {"q8_0", "llama.cpp's q8_0: blocks of 32 values with an f16 scale", 32, false,
       [](size_t d, const TensorRanges&) {
         return per_token(static_cast<int64_t>(d) / 32 * 34 * 2, round_q8_0, round_q8_0, d);
       }},
      {"q4_0_hadamard", "llama.cpp's q4_0, K and V rotated by a Hadamard matrix first", 32, false,
       [](size_t d, const TensorRanges&) {
         const auto rotated = [](std::span<float> x) {
           hadamard(x);
           round_q4_0(x);
           hadamard(x);
         };
         return per_token(static_cast<int64_t>(d) / 32 * 18 * 2, rotated, rotated, d);
       }},
      {"fp8", "FP8 E4M3 with scale 1, as vLLM stores it without calibration", 1, false,
       [](size_t d, const TensorRanges&) {
         const auto rounded = [](std::span<float> x) {
           for (float& value : x) value = to_e4m3(value);
         };
         return per_token(2 * static_cast<int64_t>(d), rounded, rounded, d);
       }},
      {"nvfp4",
       "NVFP4: E2M1 with an E4M3 scale for 16 values, and a scale per layer for K and V from the calibration text", 16,
       true,
       [](size_t d, const TensorRanges& ranges) {
         SimulatedFormat format;
         format.tile_bytes = 2 * static_cast<int64_t>(d / 2 + d / 16);
         format.round_trip = [d, ranges](int64_t layer, float* k, float* v) {
           round_nvfp4({k, d}, ranges.k[static_cast<size_t>(layer)]);
           round_nvfp4({v, d}, ranges.v[static_cast<size_t>(layer)]);
         };
         return format;
       }},
      {"turboquant_4", "TurboQuant as vLLM's turboquant_4bit_nc: two layers at either end exact", 8, false,
       [](size_t d, const TensorRanges&) { return turboquant(d, 4); }},
      {"turboquant_3", "TurboQuant as vLLM's turboquant_3bit_nc: two layers at either end exact", 8, false,
       [](size_t d, const TensorRanges&) { return turboquant(d, 3); }},
      {"kvarn_k4v2", "KVarN K4V2 in tiles of 128 tokens: the first tile, and the last until it is full, exact", 8,
       false, [](size_t d, const TensorRanges&) { return kvarn(d, 4, 2); }},
  };
  return rows;
}

const FormatRow& format_row(const std::string& name) {
  std::string known;
  for (const FormatRow& row : formats()) {
    if (row.name == name) return row;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  throw CacheError("kv_cache.format: expected one of " + known + ", found \"" + name + "\"");
}

}  // namespace

void hadamard(std::span<float> x) {
  const size_t block = x.size() & (~x.size() + 1);  // the lowest bit that is set
  const float scale = 1.0f / std::sqrt(static_cast<float>(block));
  for (size_t at = 0; at < x.size(); at += block) {
    for (size_t half = 1; half < block; half *= 2) {
      for (size_t i = at; i < at + block; i += 2 * half) {
        for (size_t j = i; j < i + half; ++j) {
          const float a = x[j], b = x[j + half];
          x[j] = a + b;
          x[j + half] = a - b;
        }
      }
    }
  }
  for (float& value : x) value *= scale;
}

float to_e4m3(float x) {
  constexpr float kMost = 448;
  constexpr int kLeastExponent = -6, kMantissa = 3;
  const float size = std::min(std::abs(x), kMost);
  if (size == 0) return 0;
  const int exponent = std::max(std::ilogb(size), kLeastExponent);
  return std::copysign(std::min(to_multiple(size, std::ldexp(1.0f, exponent - kMantissa)), kMost), x);
}

float to_e2m1(float x) {
  const float size = std::min(std::abs(x), 6.0f);
  const float step = size < 2 ? 0.5f : size < 4 ? 1.0f : 2.0f;
  return std::copysign(to_multiple(size, step), x);
}

void round_q8_0(std::span<float> x) {
  constexpr size_t kBlock = 32;
  for (size_t at = 0; at < x.size(); at += kBlock) {
    const std::span<float> block = x.subspan(at, kBlock);
    const float step = most(block) / 127, stored = to_f16(step);
    for (float& value : block) value = step > 0 ? std::round(value / step) * stored : 0.0f;
  }
}

void round_q4_0(std::span<float> x) {
  constexpr size_t kBlock = 32;
  for (size_t at = 0; at < x.size(); at += kBlock) {
    const std::span<float> block = x.subspan(at, kBlock);
    float end = 0;  // the value farthest from 0, with its sign: it takes the level -8
    for (const float value : block) end = std::abs(value) > std::abs(end) ? value : end;
    const float step = end / -8, stored = to_f16(step);
    for (float& value : block) {
      const float code = step != 0 ? std::min(15.0f, std::floor(value / step + 8.5f)) : 8.0f;
      value = (code - 8) * stored;
    }
  }
}

void round_range(std::span<float> x, int bits) {
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const float least = *low, step = (*high - *low) / static_cast<float>((1 << bits) - 1);
  const float stored_least = to_f16(least), stored = to_f16(step);
  for (float& value : x) value = (step > 0 ? std::round((value - least) / step) * stored : 0.0f) + stored_least;
}

std::vector<std::string> simulated_formats() {
  std::vector<std::string> names;
  for (const FormatRow& row : formats()) names.emplace_back(row.name);
  return names;
}

std::string_view simulated_summary(const std::string& name) { return format_row(name).summary; }

bool needs_ranges(const std::string& name) { return format_row(name).ranges; }

SimulatedFormat simulated_format(const std::string& name, const CacheShape& shape, const TensorRanges& ranges) {
  const FormatRow& row = format_row(name);
  if (shape.head_dim % row.multiple != 0) {
    throw CacheError("kv_cache.format: \"" + name + "\" expects a head_dim that is a multiple of " +
                     std::to_string(row.multiple) + ", found " + std::to_string(shape.head_dim));
  }
  return row.make(static_cast<size_t>(shape.head_dim), ranges);
}

}  // namespace smartkv
