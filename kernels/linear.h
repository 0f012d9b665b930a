// Matrix products y = x W^T for any number of rows. W is packed once, for the widest dot product of the CPU.
//
// W is [N, K], out_features by in_features. 16 output features ("lanes") lie side by side, and N is padded to a
// multiple of 16 with zeros. The layouts are:
//   kF32:  [N/16][K][16] f32
//   kBf16: [N/16][K/2][16][2] bf16                                (AVX-512 BF16: vdpbf16ps, one pair per lane)
//   kInt8: [N/16][K/32] groups of { [8][16][4] u8, [16] f16 scale, [16] f16 minimum }   (VNNI: vpdpbusd)
//   kInt4: [N/16][K/32] groups of { [4][16][4] u8 of two nibbles, [16] f16 scale, [16] f16 minimum }
//   kInt6: coded groups of { [4][16][4] u8 of two nibbles, [2][16][4] u8 of four times two bits }
//
// An integer weight is scale * q + minimum. A group need not store its scale and minimum as above:
//  - Centred groups: if the minimum of every group is that of centred integers, -128 scale (int8) or -8 scale (int4),
//    no minimum is stored, and groups lie in pairs (linear_format.h). A weight takes 8.5 bits instead of 9, or 4.5
//    instead of 5.
//  - Coded groups of int4: scales and minimums are integers of 8 bits times an f16 factor for 256 inputs. A weight
//    takes 4.625 bits. This stores GGUF's Q4_K without loss.
//  - Coded groups of int6: each 16 inputs have a scale, an integer of 8 bits times such a factor, and no minimum. A
//    weight takes 6.625 bits. This stores GGUF's Q6_K without loss.
//
// The integer products quantize x to int8, per row and group of 32 inputs (scale = max|x| / 127), as ggml's Q8_1 does.
//
// Results are batch-invariant: row i of y has the same bits whatever the other rows and the number of threads are.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/aligned_buffer.h"

namespace smartkv {
class ThreadPool;
}

namespace smartkv::kernels {

// Element types of packed weights.
enum class WeightType : uint8_t { kF32, kBf16, kInt8, kInt4, kInt6 };
// Returns the name of a type, such as "bf16".
std::string_view name(WeightType type);

// How integer groups store their minimums: each has its own (kStored), all have those of centred integers (kCentred),
// or scales and minimums are coded (kCoded). int8 allows kStored and kCentred, int4 all three, int6 only kCoded.
enum class Minimums : uint8_t { kStored, kCentred, kCoded };

// A matrix of weights [N, K] in one of the layouts above.
struct PackedMatrix {
  WeightType type = WeightType::kBf16;
  Minimums minimums = Minimums::kStored;
  int64_t out_features = 0;  // N
  int64_t in_features = 0;   // K: a multiple of 2 (bf16), 32 (int8, int4) or 256 (coded groups)
  AlignedBuffer data;
  int64_t bytes() const { return static_cast<int64_t>(data.size()); }
};

// Returns a matrix of zeros. Throws std::invalid_argument if K or the minimums do not fit the type.
PackedMatrix make_packed(WeightType type, int64_t out_features, int64_t in_features,
                         Minimums minimums = Minimums::kStored);
// Packs 16 rows (one lane group), f32 [16, K]. `group` is in [0, N/16 rounded up). Thread-safe for distinct groups.
// Integer types choose scale and minimum per row and group of 32 inputs:
//  - int8 is symmetric (minimum = -128 scale).
//  - int4 is asymmetric over the 16 levels and minimizes the squared error. It needs stored minimums.
//  - int6 and coded groups cannot be fitted to floats.
//
// Throws std::invalid_argument for a matrix that cannot be fitted, or for scales and minimums outside the range of f16.
void pack_lanes(PackedMatrix& matrix, int64_t group, const float* rows);
// Packs 32 weights that are integers already: inputs [32 k_group, 32 k_group + 32) of row 16 group + lane. A weight is
// scale * q + minimum, with q in [0, 255] (int8) or [0, 15] (int4). This keeps GGUF's blocks without loss:
//   Q4_0: (q, d, -8 d)    Q4_1: (q, d, m)    Q8_0: (q + 128, d, -128 d)
// A matrix of centred groups shifts q so that `minimum` becomes the centred one. Throws std::invalid_argument if a
// shifted q leaves its range, if scale or minimum leaves the range of f16, or if the matrix has no such groups.
// Thread-safe for distinct (group, k_group, lane).
void pack_group(PackedMatrix& matrix, int64_t group, int64_t k_group, int64_t lane, const uint8_t* q, float scale,
                float minimum);
// Reads back what pack_group() stored, q [32]. In a matrix of centred groups, q and minimum may be shifted.
void unpack_group(const PackedMatrix& matrix, int64_t group, int64_t k_group, int64_t lane, uint8_t* q, float* scale,
                  float* minimum);
// 256 weights of one row as a block of coded groups. Weight i, in group g = i / 32, is
//   int4: factors[0] codes[0][g] q[i] + factors[1] codes[1][g], q in [0, 15]
//   int6: factors[h] codes[h][g] (q[i] - 32), h = i % 32 / 16, q in [0, 63]
struct CodedBlock {
  uint8_t q[256];
  int8_t codes[2][8];
  float factors[2];  // Exactly representable in f16.
};
// Packs inputs [256 block, 256 block + 256) of row 16 group + lane. Throws std::invalid_argument for a level out of
// range, a factor that f16 cannot represent exactly, or a matrix without coded groups. Thread-safe for distinct
// (group, block, lane).
void pack_block(PackedMatrix& matrix, int64_t group, int64_t block, int64_t lane, const CodedBlock& values);
// Reads back what pack_block() stored.
void unpack_block(const PackedMatrix& matrix, int64_t group, int64_t block, int64_t lane, CodedBlock* values);
// Unpacks row `row` of the matrix to f32 `out` [K]. Serves tied embeddings from the packed weights.
void unpack_row(const PackedMatrix& matrix, int64_t row, float* out);

// How linear() writes y = x W^T.
enum class Epilogue : uint8_t {
  kStore,  // out = y (f32)
  kAdd,    // out += y (f32), for the residual stream
  // out = silu(gate) * up, in the type of x. W interleaves gate and up by 16 rows (16 gate lanes, 16 up lanes, ...).
  kSwiGlu,
  kGeGlu,  // The same with the tanh approximation of gelu(gate) in place of silu(gate).
};

inline bool is_gated(Epilogue epilogue) { return epilogue == Epilogue::kSwiGlu || epilogue == Epilogue::kGeGlu; }

// The caller owns x.
struct LinearInput {
  const void* x = nullptr;  // [rows, K]: f32 when matrix.type is kF32, else bf16; rows x_stride elements apart
  int64_t rows = 0;
  int64_t x_stride = 0;
};

struct LinearOutput {
  void* out = nullptr;  // [rows, N] f32; with a gate [rows, N/2] f32 or bf16 as x is
  int64_t stride = 0;   // Elements from one row to the next.
  Epilogue epilogue = Epilogue::kStore;
  const float* bias = nullptr;  // [N] or null, added before the epilogue
};

// Scratch for x: quantized for integer weights, or widened to f32. Reused between calls.
struct LinearScratch {
  AlignedBuffer x;
};

// Computes y = x W^T on the threads of `pool` and applies the epilogue. Throws std::invalid_argument if a stride is too
// small, or if N is not a multiple of 32 for a gate.
void linear(ThreadPool& pool, const PackedMatrix& matrix, const LinearInput& input, const LinearOutput& output,
            LinearScratch& scratch);

}  // namespace smartkv::kernels
