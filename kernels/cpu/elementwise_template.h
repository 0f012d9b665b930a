// The functions of elementwise_kernels.h, written once over Vec16. Include after one vec16_*.h. Everything has internal
// linkage.
#pragma once

#include <cmath>

#include "kernels/calibrated_page.h"
#include "kernels/elementwise_kernels.h"

namespace smartkv::kernels {
namespace {

void rms_norm_row(const float* x, int64_t n, const float* weight, float eps, KvType type, void* out) {
  Vec16 squares = Vec16::zero();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) squares = Vec16::fma(Vec16::load(x + i), Vec16::load(x + i), squares);
  float sum = squares.reduce_add();
  for (int64_t j = i; j < n; ++j) sum += x[j] * x[j];
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
  const Vec16 factor = Vec16::set1(scale);
  auto* bf16 = static_cast<uint16_t*>(out);
  auto* f32 = static_cast<float*>(out);
  for (i = 0; i + 16 <= n; i += 16) {
    const Vec16 y = Vec16::load(x + i) * factor * Vec16::load(weight + i);
    if (type == KvType::kBf16) {
      y.store_bf16(bf16 + i);
    } else {
      y.store(f32 + i);
    }
  }
  for (; i < n; ++i) {
    float y[16] = {x[i] * scale * weight[i]};
    if (type == KvType::kBf16) {
      uint16_t rounded[16];
      Vec16::load(y).store_bf16(rounded);
      bf16[i] = rounded[0];
    } else {
      f32[i] = y[0];
    }
  }
}

void rope_heads(float* x, int64_t n_heads, int64_t head_dim, const float* cos, const float* sin) {
  const int64_t half = head_dim / 2;
  for (int64_t h = 0; h < n_heads; ++h) {
    float* a = x + h * head_dim;
    float* b = a + half;
    int64_t i = 0;
    for (; i + 16 <= half; i += 16) {
      const Vec16 va = Vec16::load(a + i), vb = Vec16::load(b + i), c = Vec16::load(cos + i), s = Vec16::load(sin + i);
      (va * c - vb * s).store(a + i);
      (vb * c + va * s).store(b + i);
    }
    for (; i < half; ++i) {
      const float va = a[i], vb = b[i];
      a[i] = va * cos[i] - vb * sin[i];
      b[i] = vb * cos[i] + va * sin[i];
    }
  }
}

Range range(const float* x, int64_t n) {
  Vec16 low = Vec16::load(x), high = low, sum = low;
  for (int64_t i = 16; i < n; i += 16) {
    const Vec16 value = Vec16::load(x + i);
    low = Vec16::min(low, value);
    high = Vec16::max(high, value);
    sum = sum + value;
  }
  return {-(Vec16::zero() - low).reduce_max(), high.reduce_max(), sum.reduce_add()};
}

inline Vec16 codes_of(Vec16 x, const CodeLine& line) {
  const Vec16 level = (x - Vec16::set1(line.zero)) * Vec16::set1(line.scale > 0 ? 1.0f / line.scale : 0.0f);
  return Vec16::round(Vec16::min(Vec16::max(level, Vec16::zero()), Vec16::set1(line.most)));
}

CodeFit measure_codes(const float* x, int64_t n, const CodeLine& line) {
  Vec16 error = Vec16::zero(), sum_c = error, sum_cc = error, sum_xc = error;
  for (int64_t i = 0; i < n; i += 16) {
    const Vec16 value = Vec16::load(x + i), c = codes_of(value, line);
    const Vec16 difference = value - Vec16::fma(Vec16::set1(line.scale), c, Vec16::set1(line.zero));
    error = Vec16::fma(difference, difference, error);
    sum_c = sum_c + c;
    sum_cc = Vec16::fma(c, c, sum_cc);
    sum_xc = Vec16::fma(value, c, sum_xc);
  }
  return {error.reduce_add(), sum_c.reduce_add(), sum_cc.reduce_add(), sum_xc.reduce_add()};
}

void encode(const float* x, int64_t n, const CodeLine& line, uint8_t* codes) {
  for (int64_t i = 0; i < n; i += 16) codes_of(Vec16::load(x + i), line).store_codes(codes + i);
}

// Returns 1 where a > b, else 0.
inline Vec16 is_greater(Vec16 a, Vec16 b) {
  return Vec16::min(Vec16::max((a - b) * Vec16::set1(1e30f), Vec16::zero()), Vec16::set1(1.0f));
}

// The positive levels in units of 1 / 127, and the steps between them.
struct LevelSteps {
  LevelSteps(int bits, float scale)
      : n(1 << (bits - 1)), unit(scale / 127.0f), inverse(scale > 0 ? 127.0f / scale : 0.0f) {
    const auto& levels = kPositiveLevels[static_cast<size_t>(bits)];
    least = levels[0];
    for (int i = 1; i < n; ++i) {
      border[i] = 0.5f * static_cast<float>(levels[i - 1] + levels[i]);
      rise[i] = static_cast<float>(levels[i] - levels[i - 1]);
    }
  }
  int n;
  float unit, inverse, least, border[8], rise[8];
};

float measure_levels(const float* x, int64_t n, int bits, float scale) {
  const LevelSteps steps(bits, scale);
  Vec16 error = Vec16::zero();
  for (int64_t i = 0; i < n; i += 16) {
    const Vec16 magnitude = Vec16::max_abs(Vec16::load(x + i), Vec16::zero());
    const Vec16 scaled = magnitude * Vec16::set1(steps.inverse);
    Vec16 level = Vec16::set1(steps.least);
    for (int j = 1; j < steps.n; ++j) {
      level = Vec16::fma(is_greater(scaled, Vec16::set1(steps.border[j])), Vec16::set1(steps.rise[j]), level);
    }
    const Vec16 difference = magnitude - level * Vec16::set1(steps.unit);
    error = Vec16::fma(difference, difference, error);
  }
  return error.reduce_add();
}

void encode_levels(const float* x, int64_t n, int bits, float scale, uint8_t* codes) {
  const LevelSteps steps(bits, scale);
  for (int64_t i = 0; i < n; i += 16) {
    const Vec16 value = Vec16::load(x + i), scaled = Vec16::max_abs(value, Vec16::zero()) * Vec16::set1(steps.inverse);
    Vec16 index = Vec16::zero();
    for (int j = 1; j < steps.n; ++j) index = index + is_greater(scaled, Vec16::set1(steps.border[j]));
    // half + index for a positive value, half - 1 - index for another.
    const Vec16 negative = Vec16::set1(static_cast<float>(steps.n - 1)) - index;
    const Vec16 between = Vec16::fma(Vec16::set1(2.0f), index, Vec16::set1(1.0f));
    Vec16::fma(is_greater(value, Vec16::zero()), between, negative).store_codes(codes + i);
  }
}

}  // namespace
}  // namespace smartkv::kernels
