// Matrix products y = x W^T for any number of rows, with W packed once for the widest dot product of the CPU.
//
// Layouts, with 16 output features ("lanes") side by side; out_features is padded to 16 with zeros:
//   kF32:  [N/16][K][16] f32
//   kBf16: [N/16][K/2][16][2] bf16                                (AVX-512 BF16: vdpbf16ps, one pair per lane)
//   kInt8: [N/16][K/32] groups of { [8][16][4] u8, [16] f16 scale, [16] f16 minimum }   (VNNI: vpdpbusd)
//   kInt4: [N/16][K/32] groups of { [4][16][4] u8 of two nibbles, [16] f16 scale, [16] f16 minimum }
// An integer weight is scale * q + minimum. Where every minimum is that of centred integers, -128 scale or -8 scale, none is
// stored, and groups lie in pairs (linear_format.h): 8.5 bits a weight instead of 9, 4.5 instead of 5. The integer products
// quantise x to int8 per row and group of 32 (scale = max|x| / 127), as ggml's Q8_1 does.
//
// Results are batch-invariant: row i of y is the same bits whatever the other rows and the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/aligned_buffer.h"

namespace smartkv {
class ThreadPool;
}

namespace smartkv::kernels {

enum class WeightType : uint8_t { kF32, kBf16, kInt8, kInt4 };
std::string_view name(WeightType type);

// Of integer types: whether groups have minimums of their own, or those of centred integers.
enum class Minimums : uint8_t { kStored, kCentred };

struct PackedMatrix {
  WeightType type = WeightType::kBf16;
  Minimums minimums = Minimums::kStored;
  int64_t out_features = 0;  // N
  int64_t in_features = 0;   // K: a multiple of 2 (bf16) or 32 (int8, int4)
  AlignedBuffer data;
  int64_t bytes() const { return static_cast<int64_t>(data.size()); }
};

// Allocates a matrix of zeros. Throws std::invalid_argument when K does not fit the type.
PackedMatrix make_packed(WeightType type, int64_t out_features, int64_t in_features, Minimums minimums = Minimums::kStored);
// Packs 16 rows (one lane group): rows f32 [16, K]. group in [0, N/16 rounded up). Thread-safe for distinct groups.
// Integer types choose scale and minimum per row and group of 32: int8 symmetric (minimum = -128 scale),
// int4 asymmetric over the 16 levels, minimising the squared error, which takes stored minimums (std::invalid_argument).
void pack_lanes(PackedMatrix& matrix, int64_t group, const float* rows);
// Packs 32 weights that are integers already (int8: q in [0, 255]; int4: q in [0, 15]), as scale * q + minimum:
// inputs [32 k_group, 32 k_group + 32) of row 16 group + lane. So GGUF's blocks are kept without loss: Q4_0 is
// (q, d, -8 d), Q4_1 (q, d, m), Q8_0 (q + 128, d, -128 d). Where minimums are centred, q is shifted so that this one is.
// Throws std::invalid_argument where it then leaves its range, or when scale or minimum leaves that of f16. Thread-safe for
// distinct (group, k_group, lane).
void pack_group(PackedMatrix& matrix, int64_t group, int64_t k_group, int64_t lane, const uint8_t* q, float scale,
                float minimum);
// The same back out, shifted as it may be: q [32].
void unpack_group(const PackedMatrix& matrix, int64_t group, int64_t k_group, int64_t lane, uint8_t* q, float* scale,
                  float* minimum);
// Row n of the matrix as f32: out [K]. Serves tied embeddings from the packed weights.
void unpack_row(const PackedMatrix& matrix, int64_t row, float* out);

// What happens to y = x W^T on its way out.
enum class Epilogue : uint8_t {
  kStore,   // y (f32)
  kAdd,     // out += y (f32): the residual
  kSwiGlu,  // W = gate and up interleaved by 16 rows (gate lanes, up lanes, ...): out = silu(gate) * up, type of x
};

struct LinearInput {
  const void* x = nullptr;  // [rows, K]: f32 when matrix.type is kF32, else bf16; rows x_stride elements apart
  int64_t rows = 0;
  int64_t x_stride = 0;
};

struct LinearOutput {
  void* out = nullptr;     // [rows, N] f32; with kSwiGlu [rows, N/2] f32 or bf16 as x is
  int64_t stride = 0;      // elements
  Epilogue epilogue = Epilogue::kStore;
  const float* bias = nullptr;  // [N] or nullptr, added before the epilogue
};

// Reused between calls: the quantised x of the integer types.
struct LinearScratch {
  AlignedBuffer x;
};

void linear(ThreadPool& pool, const PackedMatrix& matrix, const LinearInput& input, const LinearOutput& output,
            LinearScratch& scratch);

}  // namespace smartkv::kernels
