#include "engine/weights/codebooks.h"

#include <bit>

#include "engine/weights/codebook_grids.h"
#include "engine/weights/k_quants.h"

namespace smartkv {
namespace {

// Writes the kEntries levels of a row of a grid, with negative signs where the bits of `signs` are set.
template <int kEntries, int kBits>
void write_row(uint16_t row, const uint8_t* levels, unsigned signs, float scale, float* out) {
  for (int j = 0; j < kEntries; ++j) {
    const float value = scale * static_cast<float>(levels[row >> (kBits * j) & ((1 << kBits) - 1)]);
    out[j] = (signs >> j & 1) != 0 ? -value : value;
  }
}
constexpr uint8_t kIq2Magnitudes[4] = {8, 25, 43};
constexpr uint8_t kIq3XxsMagnitudes[8] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr uint8_t kIq3SMagnitudes[8] = {1, 3, 5, 7, 9, 11, 13, 15};
void iq2_row(uint16_t row, unsigned signs, float scale, float* out) {
  write_row<8, 2>(row, kIq2Magnitudes, signs, scale, out);
}

// Returns the signs of 8 weights: 7 bits, and an eighth that makes the number of negative signs even.
unsigned even_signs(unsigned bits) { return bits | static_cast<unsigned>(std::popcount(bits) % 2) << 7; }

// Returns the scale of half group i, of 4 bits.
float nibble(const uint8_t* scales, int i) { return static_cast<float>(scales[i / 2] >> (4 * (i % 2)) & 15); }

constexpr float kDelta = 0.125f;  // The levels of IQ1 are -1, 0 and 1, all plus or minus this.
void iq1_row(int index, float scale, float delta, float* out) {
  const uint16_t row = kIq1SGrid[index];
  for (int j = 0; j < 8; ++j) out[j] = scale * (static_cast<float>((row >> (2 * j) & 3) - 1) + delta);
}

}  // namespace

void expand_iq2_xxs(const uint8_t* p, float* y) {
  const float d = read_f16(p);
  for (int g = 0; g < 8; ++g, y += 32) {
    const uint8_t* const indices = p + 2 + 8 * g;
    const auto packed = read_number<uint32_t>(indices + 4);
    const float scale = d * (0.5f + static_cast<float>(packed >> 28)) * 0.25f;
    for (int i = 0; i < 4; ++i) iq2_row(kIq2XxsGrid[indices[i]], even_signs(packed >> (7 * i) & 127), scale, y + 8 * i);
  }
}

void expand_iq2_xs(const uint8_t* p, float* y) {
  const float d = read_f16(p);
  for (int i = 0; i < 32; ++i) {
    const auto packed = read_number<uint16_t>(p + 2 + 2 * i);
    const float scale = d * (0.5f + nibble(p + 66, i / 2)) * 0.25f;
    iq2_row(kIq2XsGrid[packed & 511], even_signs(packed >> 9), scale, y + 8 * i);
  }
}

void expand_iq2_s(const uint8_t* p, float* y) {
  const float d = read_f16(p);
  for (int i = 0; i < 32; ++i) {
    const int index = p[2 + i] | (p[66 + i / 4] >> (2 * (i % 4)) & 3) << 8;
    iq2_row(kIq2SGrid[index], p[34 + i], d * (0.5f + nibble(p + 74, i / 2)) * 0.25f, y + 8 * i);
  }
}

void expand_iq3_xxs(const uint8_t* p, float* y) {
  const float d = read_f16(p);
  for (int i = 0; i < 64; ++i) {  // Eight of these share a word of signs and scale.
    const auto packed = read_number<uint32_t>(p + 66 + i / 8 * 4);
    const float scale = d * (0.5f + static_cast<float>(packed >> 28)) * 0.5f;
    const unsigned signs = even_signs(packed >> (7 * (i % 8 / 2)) & 127);
    write_row<4, 3>(kIq3XxsGrid[p[2 + i]], kIq3XxsMagnitudes, signs >> (4 * (i % 2)), scale, y + 4 * i);
  }
}

void expand_iq3_s(const uint8_t* p, float* y) {
  const float d = read_f16(p);
  for (int i = 0; i < 64; ++i) {
    const int index = p[2 + i] | (p[66 + i / 8] >> (i % 8) & 1) << 8;
    const unsigned signs = static_cast<unsigned>(p[74 + i / 2]) >> (4 * (i % 2));
    write_row<4, 3>(kIq3SGrid[index], kIq3SMagnitudes, signs, d * (1 + 2 * nibble(p + 106, i / 8)), y + 4 * i);
  }
}

void expand_iq1_s(const uint8_t* p, float* y) {
  const float d = read_f16(p);
  for (int i = 0; i < 32; ++i) {  // Four of these share a word: upper bits of the indices, scale and sign of the delta.
    const auto packed = read_number<uint16_t>(p + 34 + i / 4 * 2);
    const float scale = d * static_cast<float>(2 * (packed >> 12 & 7) + 1);
    const int index = p[2 + i] | (packed >> (3 * (i % 4)) & 7) << 8;
    iq1_row(index, scale, (packed & 0x8000) == 0 ? kDelta : -kDelta, y + 8 * i);
  }
}

void expand_iq1_m(const uint8_t* p, float* y) {
  // Each of four words has 4 bits of the f16 factor above four scales of 3 bits.
  uint16_t factor = 0;
  for (int i = 0; i < 4; ++i) factor |= static_cast<uint16_t>((read_number<uint16_t>(p + 48 + 2 * i) >> 12) << (4 * i));
  const float d = kernels::half_to_float(factor);
  for (int i = 0; i < 32; ++i) {
    const int high = p[32 + i / 2] >> (4 * (i % 2)) & 15;
    const int scale = read_number<uint16_t>(p + 48 + i / 8 * 2) >> (3 * (i % 8 / 2)) & 7;
    iq1_row(p[i] | (high & 7) << 8, d * static_cast<float>(2 * scale + 1), (high & 8) == 0 ? kDelta : -kDelta,
            y + 8 * i);
  }
}

void expand_tq1_0(const uint8_t* p, float* y) {
  // A byte has five ternary digits as a fraction of 256, the last four bytes have four.
  const float d = read_f16(p + 52);
  constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
  const auto digit = [&](uint8_t byte, int i) {
    const auto shifted = static_cast<uint8_t>(byte * kPowers[i]);
    return d * static_cast<float>((shifted * 3 >> 8) - 1);
  };
  for (int i = 0; i < 5; ++i) {
    for (int j = 0; j < 32; ++j) y[32 * i + j] = digit(p[j], i);
    for (int j = 0; j < 16; ++j) y[160 + 16 * i + j] = digit(p[32 + j], i);
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) y[240 + 4 * i + j] = digit(p[48 + j], i);
  }
}

void expand_tq2_0(const uint8_t* p, float* y) {
  const float d = read_f16(p + 64);
  for (int i = 0; i < 256; ++i) {
    y[i] = d * static_cast<float>((p[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) - 1);
  }
}

}  // namespace smartkv
