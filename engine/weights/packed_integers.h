// Projections of 4- or 8-bit integers as GPTQ (Frantar et al. 2022) and AWQ (Lin et al. 2023) store them in
// safetensors. The integers are packed into 32-bit words. Each output and group of inputs has a scale and a zero.
//   weight[n][k] = scale[g][n] (q[k][n] - zero[g][n]), where g is the group of input k
// Also the 4-bit floats of gpt-oss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace smartkv {

struct QuantizedRow;

// One projection with K inputs and N outputs.
struct PackedIntegers {
  enum class Layout : uint8_t {
    // q [K bits / 32, N]: a word holds neighbouring inputs. zeros [groups, N bits / 32], in order, each stored minus
    // one.
    kGptq,
    // As kGptq, but the zeros are stored as they are.
    kGptqV2,
    // 4 bits. q [K, N / 8] and zeros [groups, N / 8]: a word holds outputs 0, 2, 4, 6, 1, 3, 5, 7 of eight.
    kAwq,
    // Floats of 4 bits (OCP Microscaling Formats 1.0) in rows. q [N, K / 2]: a byte holds two neighbouring inputs.
    // zeros [N, K / 32]: the exponents of groups of 32. scales and group_of are empty.
    kMxfp4,
  };
  Layout layout = Layout::kGptq;
  int64_t bits = 4;                     // 4 or 8
  int64_t inputs = 0, outputs = 0;      // K, N
  std::span<const std::byte> q, zeros;  // Views of the mapped file.
  std::vector<float> scales;            // [groups, N]
  std::vector<int32_t> group_of;        // [K]: the group of each input.
  // [K] or empty: the inputs by group, if they do not lie in the order of the groups (act-order).
  std::vector<int32_t> order;
  // In this order, inputs [32 i, 32 i + 32) belong to one group for every i, or even [64 i, 64 i + 64) (in_pairs).
  bool in_groups = false, in_pairs = false;
  int64_t first_row = 0, row_step = 1;  // kMxfp4: output `row` is row first_row + row_step * row of q.
  bool symmetric = false;               // Every zero is the middle of the range: 8 (4 bits) or 128 (8 bits).

  // Writes all K weights of an output as f32. row: the output, 0 to N - 1.
  void expand(int64_t row, float* out) const;
  // Reads all zeros and returns the value for `symmetric`.
  bool zeros_are_middle() const;
  // Sets order, in_groups and in_pairs from group_of.
  void order_inputs();
  // Reads the same weights as integers, in the order of the groups. REQUIRES: in_groups.
  void read(int64_t row, QuantizedRow& out) const;

 private:
  // Scale and zero of an output in a group.
  struct Line {
    float scale;
    uint32_t zero;
  };
  void read_mxfp4(int64_t row, QuantizedRow& out) const;
  void read_integers(int64_t row, uint8_t* out) const;
  Line line(int64_t group, int64_t row) const;
};

}  // namespace smartkv
