// Matrix products y = x W^T for any number of rows, with W packed once for the widest dot product of the CPU.
//
// Layouts, with 16 output features ("lanes") side by side; out_features is padded to 16 with zeros:
//   kF32:  [N/16][K][16] f32
//   kBf16: [N/16][K/2][16][2] bf16                                (AVX-512 BF16: vdpbf16ps, one pair per lane)
//   kInt8: [N/16][K/32] groups of { [8][16][4] u8, [16] f16 scale, [16] f16 minimum }   (VNNI: vpdpbusd)
//   kInt4: [N/16][K/32] groups of { [4][16][4] u8 of two nibbles, [16] f16 scale, [16] f16 minimum }
//   kInt6: coded groups of { [4][16][4] u8 of two nibbles, [2][16][4] u8 of four times two bits }: GGUF's Q6_K without loss
// An integer weight is scale * q + minimum. Where every minimum is that of centred integers, -128 scale or -8 scale, none is
// stored, and groups lie in pairs (linear_format.h): 8.5 bits a weight instead of 9, 4.5 instead of 5. Coded groups of int4 have
// scales and minimums of 8 bits times an f16 factor for 256 inputs: 4.625 bits, GGUF's Q4_K without loss; those of int6 two
// such scales, one for each 16 inputs: 6.625 bits. The integer products quantise x to int8 per row and group of 32
// (scale = max|x| / 127), as ggml's Q8_1 does.
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

enum class WeightType : uint8_t { kF32, kBf16, kInt8, kInt4, kInt6 };
std::string_view name(WeightType type);

// Of integer types: whether groups have minimums of their own, those of centred integers, or codes for scales and minimums.
// int8: kStored or kCentred; int4: any; int6: kCoded.
enum class Minimums : uint8_t { kStored, kCentred, kCoded };

struct PackedMatrix {
  WeightType type = WeightType::kBf16;
  Minimums minimums = Minimums::kStored;
  int64_t out_features = 0;  // N
  int64_t in_features = 0;   // K: a multiple of 2 (bf16), 32 (int8, int4) or 256 (coded)
  AlignedBuffer data;
  int64_t bytes() const { return static_cast<int64_t>(data.size()); }
};

// Allocates a matrix of zeros. Throws std::invalid_argument when K does not fit the type, or the minimums do not.
PackedMatrix make_packed(WeightType type, int64_t out_features, int64_t in_features, Minimums minimums = Minimums::kStored);
// Packs 16 rows (one lane group): rows f32 [16, K]. group in [0, N/16 rounded up). Thread-safe for distinct groups.
// Integer types choose scale and minimum per row and group of 32: int8 symmetric (minimum = -128 scale),
// int4 asymmetric over the 16 levels, minimising the squared error, which takes stored minimums; int6 and coded groups are never
// fitted (std::invalid_argument).
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
// 256 weights of a row as a block of coded groups. Weight i of group g = i / 32:
//   int4: factors[0] codes[0][g] q[i] + factors[1] codes[1][g], q in [0, 15]
//   int6: factors[h] codes[h][g] (q[i] - 32), h = i % 32 / 16, q in [0, 63]
struct CodedBlock {
  uint8_t q[256];
  int8_t codes[2][8];
  float factors[2];  // values that f16 holds
};
// Inputs [256 block, 256 block + 256) of row 16 group + lane. Throws std::invalid_argument for a level out of range, a factor that
// f16 does not hold, or a matrix without coded groups. Thread-safe for distinct (group, block, lane).
void pack_block(PackedMatrix& matrix, int64_t group, int64_t block, int64_t lane, const CodedBlock& values);
// The same back out.
void unpack_block(const PackedMatrix& matrix, int64_t group, int64_t block, int64_t lane, CodedBlock* values);
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
