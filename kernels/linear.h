// Matrix products y = x W^T for any number of rows. W is packed once, for the widest dot product of the CPU.
//
// W is [N, K], out_features by in_features. 16 output features ("lanes") lie side by side, and N is padded to a
// multiple of 16 with zeros. The layouts are:
//   kF32:  [N/16][K][16] f32
//   kBf16: [N/16][K/2][16][2] bf16                                (AVX-512 BF16: vdpbf16ps, one pair per lane)
//   integers: [N/16][K/32] groups of 32 inputs: planes of bits, and what scales them
//
// A group of integers has one plane of 8, 4 or 2 bits (kInt8, kInt4, kInt2), or lower bits in one plane and the upper
// ones in another: 4 + 2 (kInt6), 4 + 1 (kInt5), 2 + 1 (kInt3). The 4 bits of kIq4, kMxfp4 and kNvfp4 go through a
// table. linear_format.h has the places. A weight is scale * q + minimum; groups differ in how these are stored:
//  - Stored: f16 scale, f16 minimum. This takes 1 bit a weight more than the planes.
//  - Centred groups: the minimum is -centre * scale, with a centre of 128 (int8), 16 (int5) or 8 (int4), and is not
//    stored. Groups lie in pairs. 0.5 bits. The scales of mxfp4 are bf16, those of nvfp4 two E4M3, one for each half.
//  - Shared groups: pairs of groups share scale and minimum, and the minimum is stored as a multiple of the scale, as
//    GPTQ and AWQ have it. 0.5 bits.
//  - Coded groups: scales and minimums are integers times f16 factors for 256 inputs. 0.625 bits, with one code 0.375.
//
// These keep the types of GGUF without loss, in bits a weight (and those of the file):
//   Q4_0, IQ4_NL  4.5 (4.5)    Q4_1  5 (5)    Q5_0  5.5 (5.5)    Q5_1  6 (6)    Q8_0  8.5 (8.5)    MXFP4  4.5 (4.25)
//   Q2_K  2.625 (2.625)    Q3_K  3.625 (3.44)    Q4_K  4.625 (4.5)    Q5_K  5.625 (5.5)    Q6_K  6.625 (6.56)
//   IQ4_XS  4.375 (4.25)    NVFP4  4.5 (4.5)
//
// kEncoded: rows in a form that only its owner knows (EncodedRows). They are expanded to f32 in each product, which is
// slower. This serves types without an integer layout of about their size.
//
// The integer products quantize x to int8, per row and group of 32 inputs (scale = max|x| / 127), as ggml's Q8_1 does.
//
// Results are batch-invariant: row i of y has the same bits whatever the other rows and the number of threads are.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/aligned_buffer.h"

namespace smartkv {
class ThreadPool;
}

namespace smartkv::kernels {

// Element types of packed weights.
enum class WeightType : uint8_t {
  kF32,
  kBf16,
  kInt8,
  kInt4,
  kInt6,
  kInt5,
  kInt3,
  kInt2,
  kIq4,
  kMxfp4,
  kNvfp4,
  kEncoded
};
inline constexpr int kWeightTypes = 12;
// Returns the name of a type, such as "bf16".
std::string_view name(WeightType type);

// The levels of 4-bit integers that stand for other integers, plus a centre. kIq4: GGUF's IQ4_NL and IQ4_XS. kMxfp4 and
// kNvfp4: floats of 1 sign, 2 exponent and 1 mantissa bits, doubled (OCP Microscaling Formats 1.0, section 5.3.3).
inline constexpr int kIq4Centre = 128, kFp4Centre = 12;
inline constexpr uint8_t kIq4Levels[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
inline constexpr uint8_t kFp4Levels[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// How integer groups store their minimums: each has its own (kStored), all have those of centred integers (kCentred),
// scales and minimums are coded (kCoded), or two groups share them (kShared).
//   int8: kStored, kCentred    int4: all    int5: kStored, kCentred, kCoded    int2, int3, int6: kCoded
//   iq4: kCentred, kCoded    mxfp4, nvfp4: kCentred
enum class Minimums : uint8_t { kStored, kCentred, kCoded, kShared };

// Rows of weights that expand to f32.
class EncodedRows {
 public:
  virtual ~EncodedRows() = default;
  virtual int64_t bytes() const = 0;                                   // Bytes of all rows.
  virtual std::vector<std::span<const std::byte>> memory() const = 0;  // Where they lie.
  // Writes row `row` to out [K]. Thread-safe.
  virtual void expand(int64_t row, float* out) const = 0;
};

// A matrix of weights [N, K] in one of the layouts above.
struct PackedMatrix {
  WeightType type = WeightType::kBf16;
  Minimums minimums = Minimums::kStored;
  int64_t out_features = 0;  // N
  int64_t in_features = 0;   // K: a multiple of 2 (bf16), 32 (integers), 64 (shared groups) or 256 (coded groups)
  AlignedBuffer data;
  std::shared_ptr<const EncodedRows> encoded = nullptr;  // kEncoded: the rows, in place of data.
  // [K] or empty: the inputs in the order of the columns of W, for integers whose groups are not neighbouring inputs.
  std::vector<int32_t> input_order = {};
  // [N] or empty: the factor of each row of W.
  std::vector<float> row_factors = {};
  int64_t bytes() const { return encoded != nullptr ? encoded->bytes() : static_cast<int64_t>(data.size()); }
  // Returns where the weights lie.
  std::vector<std::span<const std::byte>> memory() const;
};

// Returns a matrix of zeros. Throws std::invalid_argument if K or the minimums do not fit the type.
PackedMatrix make_packed(WeightType type, int64_t out_features, int64_t in_features,
                         Minimums minimums = Minimums::kStored);
// Returns a matrix of N encoded rows of K weights.
PackedMatrix make_encoded(std::shared_ptr<const EncodedRows> rows, int64_t out_features, int64_t in_features);
// Packs 16 rows (one lane group), f32 [16, K]. `group` is in [0, N/16 rounded up). Thread-safe for distinct groups.
// Integer types choose scale and minimum per row and group of 32 inputs:
//  - int8 is symmetric (minimum = -128 scale).
//  - int4 is asymmetric over the 16 levels and minimizes the squared error. It needs stored minimums.
//  - Other integers and coded groups cannot be fitted to floats.
//
// Throws std::invalid_argument for a matrix that cannot be fitted, or for scales and minimums outside the range of f16.
void pack_lanes(PackedMatrix& matrix, int64_t group, const float* rows);
// Packs 32 weights that are integers already: inputs [32 k_group, 32 k_group + 32) of row 16 group + lane. A weight is
// scale * q + minimum, with q up to 255 (int8), 31 (int5) or 15. This keeps GGUF's blocks without loss:
//   Q4_0: (q, d, -8 d)    Q4_1: (q, d, m)    Q5_0: (q, d, -16 d)    Q8_0: (q + 128, d, -128 d)
// With a table, the weight is scale * table[q] + minimum. nvfp4 has no minimum: scale and `minimum` are the scales of
// the two halves.
// Both of a pair of shared groups must have the same scale and minimum, and minimum / scale must be an f16.
// A matrix of centred groups shifts q so that `minimum` becomes the centred one. Throws std::invalid_argument if a
// shifted q leaves its range, if scale or minimum leaves the range of f16, or if the matrix has no such groups.
// Thread-safe for distinct (group, k_group, lane).
void pack_group(PackedMatrix& matrix, int64_t group, int64_t k_group, int64_t lane, const uint8_t* q, float scale,
                float minimum);
// Reads back what pack_group() stored, q [32]. In a matrix of centred groups, q and minimum may be shifted.
void unpack_group(const PackedMatrix& matrix, int64_t group, int64_t k_group, int64_t lane, uint8_t* q, float* scale,
                  float* minimum);
// 256 weights of one row as a block of coded groups. Weight i, in group g = i / 32 and half h = i % 32 / 16, is
//   int4, int5: factors[0] codes[0][g] q[i] + factors[1] codes[1][g]
//   int6, int3: factors[h] codes[h][g] (q[i] - centre), with a centre of 32 or 4
//   int2: factors[0] (codes[h][g] & 15) q[i] + factors[1] (codes[h][g] >> 4), codes being unsigned
//   iq4: factors[0] codes[0][g] (kIq4Levels[q[i]] - kIq4Centre); the other factor and codes are 0
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
  // out = g / (1 + exp(-1.702 g)) * (1 + u), where g is gate, at most 7, and u is up, from -7 to 7 (gpt-oss).
  kClampedSwiGlu,
};
inline constexpr float kClampedSwiGluLimit = 7.0f, kClampedSwiGluAlpha = 1.702f;

inline bool is_gated(Epilogue epilogue) { return epilogue != Epilogue::kStore && epilogue != Epilogue::kAdd; }

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

// Scratch for x: quantized for integer weights, or widened to f32 for others. Reused between calls.
struct LinearScratch {
  AlignedBuffer x;
};

// Computes y = x W^T on the threads of `pool` and applies the epilogue. Throws std::invalid_argument if a stride is too
// small, or if N is not a multiple of 32 for a gate.
void linear(ThreadPool& pool, const PackedMatrix& matrix, const LinearInput& input, const LinearOutput& output,
            LinearScratch& scratch);

// One of several products, with rows [first_output, first_output + outputs) of a matrix as W.
struct LinearGroup {
  const PackedMatrix* matrix = nullptr;
  int64_t first_output = 0;  // A multiple of 16, and of 32 for a gate.
  int64_t outputs = 0;
  LinearInput input;
  LinearOutput output;
};
// Row `row` of the input of a group.
struct LinearPlace {
  int32_t group = 0, row = 0;
};
// Computes several products at once, as one list of tasks. There are two forms:
//  - Without places, each group has its own input.
//  - With places [inputs, the same number for each], all groups have the same input.x. Row i of it goes to its places,
//    which together are all rows of all groups. It is quantized once if the formats of the groups allow.
// The bits of a row of a result are those that linear() gives. Throws std::invalid_argument as linear() does. REQUIRES:
// with places, all groups have the same in_features.
void linear_groups(ThreadPool& pool, std::span<const LinearGroup> groups, std::span<const LinearPlace> places,
                   int64_t inputs, LinearScratch& scratch);

}  // namespace smartkv::kernels
