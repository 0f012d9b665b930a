#include "engine/weights/packed_integers.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/weights/k_quants.h"
#include "engine/weights/quantized_rows.h"

namespace smartkv {
namespace {

uint32_t word(std::span<const std::byte> bytes, int64_t i) {
  uint32_t value;
  std::memcpy(&value, bytes.data() + i * 4, sizeof value);
  return value;
}

// Returns the place of an output in AWQ's word of 8 integers.
int64_t awq_place(int64_t output) { return output % 2 * 4 + output % 8 / 2; }

}  // namespace

void PackedIntegers::read_integers(int64_t row, uint8_t* out) const {
  const int64_t per_word = 32 / bits;
  const uint32_t mask = (1u << bits) - 1;
  if (layout == Layout::kAwq) {
    const int64_t shift = awq_place(row) * bits;
    for (int64_t k = 0; k < inputs; ++k) {
      out[k] = static_cast<uint8_t>(word(q, k * (outputs / per_word) + row / per_word) >> shift & mask);
    }
    return;
  }
  for (int64_t k = 0; k < inputs; k += per_word) {
    uint32_t packed = word(q, k / per_word * outputs + row);
    for (int64_t i = 0; i < per_word; ++i, packed >>= bits) out[k + i] = static_cast<uint8_t>(packed & mask);
  }
}

PackedIntegers::Line PackedIntegers::line(int64_t group, int64_t row) const {
  const int64_t per_word = 32 / bits;
  const uint32_t mask = (1u << bits) - 1;
  const int64_t place = layout == Layout::kAwq ? awq_place(row) : row % per_word;
  uint32_t zero = word(zeros, group * (outputs / per_word) + row / per_word) >> (place * bits) & mask;
  if (layout == Layout::kGptq) zero = (zero + 1) & mask;
  return {scales[static_cast<size_t>(group * outputs + row)], zero};
}

bool PackedIntegers::zeros_are_middle() const {
  const uint32_t middle = (1u << (bits - 1)) - (layout == Layout::kGptq ? 1 : 0);
  uint32_t expected = 0;
  for (int64_t shift = 0; shift < 32; shift += bits) expected |= middle << shift;
  for (int64_t i = 0; i < static_cast<int64_t>(zeros.size() / 4); ++i) {
    if (word(zeros, i) != expected) return false;
  }
  return true;
}

void PackedIntegers::read_mxfp4(int64_t row, QuantizedRow& out) const {
  const int64_t at = first_row + row_step * row;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(q.data()) + at * inputs / 2;
  const auto* const exponents = reinterpret_cast<const uint8_t*>(zeros.data()) + at * inputs / kRowGroup;
  out.resize(inputs);
  for (int64_t k = 0; k < inputs; ++k) out.q[k] = static_cast<uint8_t>(bytes[k / 2] >> (k % 2 * 4) & 15);
  for (int64_t g = 0; g < inputs / kRowGroup; ++g) {
    out.scale[g] = mxfp4_scale(exponents[g]);
    out.minimum[g] = -static_cast<float>(kernels::kFp4Centre) * out.scale[g];
  }
}

void PackedIntegers::expand(int64_t row, float* out) const {
  if (layout == Layout::kMxfp4) {
    QuantizedRow floats;
    read_mxfp4(row, floats);
    for (int64_t k = 0; k < inputs; ++k) {
      out[k] = floats.scale[k / kRowGroup] * static_cast<float>(kernels::kFp4Levels[floats.q[k]]) +
               floats.minimum[k / kRowGroup];
    }
    return;
  }
  std::vector<uint8_t> integers(static_cast<size_t>(inputs));
  read_integers(row, integers.data());
  int64_t group = -1;
  Line current{};
  for (int64_t k = 0; k < inputs; ++k) {
    if (group_of[k] != group) {
      group = group_of[k];
      current = line(group, row);
    }
    out[k] = current.scale * (static_cast<float>(integers[k]) - static_cast<float>(current.zero));
  }
}

void PackedIntegers::order_inputs() {
  std::vector<int32_t> by_group(static_cast<size_t>(inputs));
  std::iota(by_group.begin(), by_group.end(), 0);
  std::stable_sort(by_group.begin(), by_group.end(), [&](int32_t a, int32_t b) { return group_of[a] < group_of[b]; });
  const auto are_whole = [&](int64_t size) {
    if (inputs % size != 0) return false;
    for (int64_t k = 0; k < inputs; ++k) {
      if (group_of[by_group[k]] != group_of[by_group[k - k % size]]) return false;
    }
    return true;
  };
  in_groups = are_whole(kRowGroup);
  in_pairs = are_whole(2 * kRowGroup);
  order.clear();
  if (!std::is_sorted(by_group.begin(), by_group.end())) order = std::move(by_group);
}

void PackedIntegers::read(int64_t row, QuantizedRow& out) const {
  if (layout == Layout::kMxfp4) return read_mxfp4(row, out);
  out.resize(inputs);
  read_integers(row, out.q.data());
  if (!order.empty()) {
    const std::vector<uint8_t> in_file = out.q;
    for (size_t k = 0; k < order.size(); ++k) out.q[k] = in_file[order[k]];
  }
  for (int64_t g = 0; g < inputs / kRowGroup; ++g) {
    const int64_t first = g * kRowGroup;
    const Line current = line(group_of[order.empty() ? first : order[first]], row);
    out.scale[g] = current.scale;
    out.minimum[g] = -static_cast<float>(current.zero) * current.scale;
  }
}

}  // namespace smartkv
