// Projections of 4- or 8-bit integers as GPTQ (Frantar et al. 2022) and AWQ (Lin et al. 2023) store them in safetensors: packed
// into 32-bit words, with a scale and a zero for each output and group of inputs.
//   weight[n][k] = scale[g][n] (q[k][n] - zero[g][n]), g the group of input k
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace smartkv {

struct QuantizedRow;

struct PackedIntegers {
  enum class Layout : uint8_t {
    kGptq,    // q [K bits / 32, N]: a word holds neighbouring inputs; zeros [groups, N bits / 32] in order, each less one
    kGptqV2,  // the same with the zeros themselves
    kAwq,     // 4 bits; q [K, N / 8], zeros [groups, N / 8]: a word holds outputs 0, 2, 4, 6, 1, 3, 5, 7 of eight
  };
  Layout layout = Layout::kGptq;
  int64_t bits = 4;  // 4 or 8
  int64_t inputs = 0, outputs = 0;  // K, N
  std::span<const std::byte> q, zeros;
  std::vector<float> scales;      // [groups, N]
  std::vector<int32_t> group_of;  // [K]
  bool in_order = false;          // each 32 neighbouring inputs, from the first on, are of one group
  bool symmetric = false;         // every zero is the middle, 8 or 128

  // Row n, all K inputs, as f32.
  void expand(int64_t row, float* out) const;
  bool zeros_are_middle() const;  // reads them all
  // The same as integers; needs in_order.
  void read(int64_t row, QuantizedRow& out) const;

 private:
  struct Line {
    float scale;
    uint32_t zero;
  };
  void read_integers(int64_t row, uint8_t* out) const;
  Line line(int64_t group, int64_t row) const;
};

}  // namespace smartkv
