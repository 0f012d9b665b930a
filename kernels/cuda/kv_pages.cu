#include "kernels/cuda/kv_pages.h"

#include <algorithm>
#include <cfloat>
#include <stdexcept>
#include <string>

#include "kernels/attention_kernels.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/calibrated_codes.h"
#include "kernels/cuda/indexed_rows.h"
#include "kernels/cuda/page_values.h"
#include "kernels/cuda/platform.h"
#include "kernels/cuda/row_table.h"
#include "kernels/indexed_rows.h"

namespace smartkv::kernels::cuda {
namespace {

__device__ __forceinline__ float rotated(const float* x, const float* angles, int d, int half) {
  if (angles == nullptr) return x[d];
  const int j = d < half ? d : d - half;
  const float cos = angles[j], sin = angles[half + j];
  return d < half ? fmaf(x[d], cos, -x[d + half] * sin) : fmaf(x[d], cos, x[d - half] * sin);
}

// A block takes one KV head of a write. Neighbors in K are slots, in V channels, and the threads follow this order.
__global__ void __launch_bounds__(kThreads) write_kernel(const KvWrite* writes, int n_kv_heads, int head_dim) {
  const KvWrite& write = writes[blockIdx.x / n_kv_heads];
  const auto head = static_cast<int>(blockIdx.x % n_kv_heads), thread = static_cast<int>(threadIdx.x);
  auto* const to_k = reinterpret_cast<uint32_t*>(static_cast<unsigned char*>(write.page_k) + head * write.head_stride);
  for (int i = thread; i < write.n * head_dim / 2; i += kThreads) {
    const int row = i % write.n, d = 2 * (i / write.n);
    const float* const x = write.k + row * write.row_stride + int64_t{head} * head_dim;
    const float* const angles = write.angles == nullptr ? nullptr : write.angles + int64_t{row} * head_dim;
    to_k[k_place(d, write.slot + row) / 2] =
        pack_bf16(rotated(x, angles, d, head_dim / 2), rotated(x, angles, d + 1, head_dim / 2));
  }
  auto* const to_v = reinterpret_cast<uint16_t*>(static_cast<unsigned char*>(write.page_v) + head * write.head_stride);
  for (int i = thread; i < write.n * head_dim; i += kThreads) {
    const int row = i / head_dim, d = i % head_dim;
    const float x = write.v[row * write.row_stride + int64_t{head} * head_dim + d];
    to_v[v_place(head_dim, d, write.slot + row)] = static_cast<uint16_t>(pack_bf16(x, 0.0f));
  }
}

// A warp takes a move.
__global__ void __launch_bounds__(kThreads) move_kernel(const TokenMove* moves, int n, int head_dim) {
  const int i = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x / 32);
  if (i >= n) return;
  const TokenPlace from = moves[i].from, to = moves[i].to;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (to.slot == TokenPlace::kRow) {
    for (int d = lane; d < head_dim; d += 32) {
      static_cast<float*>(to.k)[d] = k_of(from, d);
      static_cast<float*>(to.v)[d] = v_of(from, head_dim, d);
    }
    return;
  }
  if (from.slot == TokenPlace::kRow) {
    for (int d = 2 * lane; d < head_dim; d += 64) {
      static_cast<uint32_t*>(to.k)[k_place(d, to.slot) / 2] = pack_bf16(k_of(from, d), k_of(from, d + 1));
    }
    for (int d = lane; d < head_dim; d += 32) {
      static_cast<uint16_t*>(to.v)[v_place(head_dim, d, to.slot)] =
          static_cast<uint16_t>(pack_bf16(v_of(from, head_dim, d), 0.0f));
    }
    return;
  }
  for (int d = 2 * lane; d < head_dim; d += 64) {
    static_cast<uint32_t*>(to.k)[k_place(d, to.slot) / 2] =
        static_cast<const uint32_t*>(from.k)[k_place(d, from.slot) / 2];
  }
  for (int d = lane; d < head_dim; d += 32) {
    static_cast<uint16_t*>(to.v)[v_place(head_dim, d, to.slot)] =
        static_cast<const uint16_t*>(from.v)[v_place(head_dim, d, from.slot)];
  }
}

constexpr int kCopyBlocks = 8;  // Blocks per copy.

__global__ void __launch_bounds__(kThreads) copy_kernel(const PageCopy* copies) {
  const PageCopy copy = copies[blockIdx.x / kCopyBlocks];
  const auto* const from = static_cast<const uint4*>(copy.from);
  auto* const to = static_cast<uint4*>(copy.to);
  const auto first = static_cast<int64_t>(blockIdx.x % kCopyBlocks * kThreads + threadIdx.x);
  for (int64_t i = first; i < static_cast<int64_t>(copy.bytes / 16); i += kCopyBlocks * kThreads) {
    to[i] = from == nullptr ? uint4{0, 0, 0, 0} : from[i];
  }
}

constexpr int kColumnLanes = 16;  // Lanes of a column: as many partial sums as a vector of the CPU has.
constexpr int kLaneValues = 256 / kColumnLanes;

// The values of a column that a lane has: values i, i + 16, ..., n of them.
struct Column {
  float x[kLaneValues];
  int n;
};

// Reduce over the 16 lanes of a column, in the order of Vec16::reduce_add().
__device__ __forceinline__ float sum_of_column(float x) {
  for (int mask = kColumnLanes / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(kAllLanes, x, mask);
  return x;
}
__device__ __forceinline__ float max_of_column(float x) {
  for (int mask = kColumnLanes / 2; mask > 0; mask /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, mask));
  return x;
}

template <typename Function>
__device__ __forceinline__ void for_each(const Column& column, const Function& function) {
#pragma unroll
  for (int i = 0; i < kLaneValues; ++i) {
    if (i < column.n) function(column.x[i], i);
  }
}

// The functions from here on compute as kernels/quantized_page.cpp does, operation by operation.
struct Scale {
  uint16_t scale, zero;  // f16. The scale is per unit of a byte, not of a code.
};
__device__ __forceinline__ Scale scale_of(float low, float scale, int bits) {
  constexpr float kMost = 65504.0f;  // The largest f16.
  return {float_to_half(fminf(fmaxf(scale / unit_of(bits), 0.0f), kMost)),
          float_to_half(fminf(fmaxf(low, -kMost), kMost))};
}

struct CodeLine {
  float scale, inverse, zero, most;
};
__device__ __forceinline__ CodeLine code_line(Scale of, int bits) {
  const float scale = half_to_float(of.scale) * unit_of(bits);
  return {scale, scale > 0 ? __fdiv_rn(1.0f, scale) : 0.0f, half_to_float(of.zero),
          static_cast<float>((1 << bits) - 1)};
}
__device__ __forceinline__ float code_of(float x, const CodeLine& line) {
  return rintf(fminf(fmaxf(__fmul_rn(__fsub_rn(x, line.zero), line.inverse), 0.0f), line.most));
}

struct Fit {
  float error, sum_c, sum_cc, sum_xc;
};
__device__ Fit measure(const Column& column, const CodeLine& line) {
  Fit fit = {};
  for_each(column, [&](float x, int) {
    const float c = code_of(x, line), difference = x - fmaf(line.scale, c, line.zero);
    fit.error = fmaf(difference, difference, fit.error);
    fit.sum_c += c;
    fit.sum_cc = fmaf(c, c, fit.sum_cc);
    fit.sum_xc = fmaf(x, c, fit.sum_xc);
  });
  return {sum_of_column(fit.error), sum_of_column(fit.sum_c), sum_of_column(fit.sum_cc), sum_of_column(fit.sum_xc)};
}

__device__ Scale refit(const Fit& codes, float sum_x, float count, int bits, Scale scale) {
  const float variance = __fsub_rn(codes.sum_cc, __fdiv_rn(__fmul_rn(codes.sum_c, codes.sum_c), count));
  if (!(variance > 0)) return scale;
  const float step = __fdiv_rn(__fsub_rn(codes.sum_xc, __fdiv_rn(__fmul_rn(sum_x, codes.sum_c), count)), variance);
  return scale_of(__fdiv_rn(__fsub_rn(sum_x, __fmul_rn(step, codes.sum_c)), count), step, bits);
}

// Returns scale and zero of a column, or its mean as the zero if bits is 0. Returns NaN if a value is not finite.
// REQUIRES: all lanes of a warp have columns of the same width.
__device__ Scale fit_column(const Column& column, int bits, bool least_squares) {
  float low = column.x[0], high = low, sum = 0.0f;
  bool finite = true;
  for_each(column, [&](float x, int i) {
    low = fminf(low, x);
    high = fmaxf(high, x);
    sum = i == 0 ? x : sum + x;
    finite = finite && fabsf(x) <= FLT_MAX;
  });
  low = -max_of_column(-low);
  high = max_of_column(high);
  sum = sum_of_column(sum);
  constexpr Scale kNotANumber = {0x7e00, 0x7e00};
  const bool sound = max_of_column(finite ? 0.0f : 1.0f) == 0.0f;
  const auto count = static_cast<float>(column.n * kColumnLanes);
  if (bits == 0) return sound ? scale_of(__fdiv_rn(sum, count), 0.0f, 8) : kNotANumber;
  const float levels = static_cast<float>((1 << bits) - 1), half = (high - low) / 2, middle = (low + high) / 2;
  Scale best = scale_of(low, 2 * half / levels, bits);
  if (!least_squares || bits > 4) return sound ? best : kNotANumber;
  Fit least = measure(column, code_line(best, bits));
  const auto take_if_better = [&](Scale scale) {
    const Fit trial = measure(column, code_line(scale, bits));
    if (!(trial.error < least.error)) return;
    least = trial;
    best = scale;
  };
  const float narrowest = bits == 2 ? 0.5f : bits == 3 ? 0.7f : 0.85f;
  for (float shrink = 0.95f; shrink > narrowest; shrink -= 0.05f) {
    take_if_better(
        scale_of(__fsub_rn(middle, __fmul_rn(shrink, half)), __fdiv_rn(__fmul_rn(2 * shrink, half), levels), bits));
  }
  // If a refit is no better, the refits after it are the same. So lanes with a finished column can continue with the
  // others.
  constexpr int kRefits = 4;
  for (int i = 0; i < kRefits; ++i) take_if_better(refit(least, sum, count, bits, best));
  return sound ? best : kNotANumber;
}

// Packs the codes of 64 rows, one word per row, into words of the page. All lanes of a warp call it.
__device__ void pack_block(const uint32_t* rows, int bits, uint32_t* out, int lane) {
  if (bits == 8) {
    for (int i = lane; i < 64; i += 32) out[i] = rows[i];
  } else if (bits == 4) {
    out[lane] = rows[lane / 16 * 32 + lane % 16] | rows[lane / 16 * 32 + 16 + lane % 16] << 4;
  } else if (lane < 16) {
    uint32_t word = 0;
    for (int s = 0; s < 4; ++s) word |= (rows[16 * s + lane] & 0x03030303u) << (2 * s);
    out[lane] = word;
  } else if (bits == 3 && lane < 24) {
    uint32_t word = 0;
    for (int i = 0; i < 8; ++i) {  // Moves bits 0, 8, 16 and 24 to 24, ..., 27. No two terms of the product meet.
      word |= ((rows[8 * (lane - 16) + i] >> 2 & 0x01010101u) * 0x01020408u >> 24 & 15u) << (4 * i);
    }
    out[lane] = word;
  }
}

// The encoding of one KV head.
struct Encoding {
  HeadValues from;
  QuantizedOffsets at;
  const uint8_t* channel_order;
  unsigned char* block;
  uint8_t k_quads[4], v_quads[4];
};

// A warp takes a quad, two columns at a time. Shared memory: the codes of one quad for each warp, [256][4].
__global__ void __launch_bounds__(kThreads, 4) encode_kernel(const Encoding* jobs, int head_dim) {
  const Encoding& job = jobs[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  unsigned char* const block = job.block;
  unsigned char* const codes = shared_memory() + warp * 4 * 256;
  const int k_quads = head_dim / 4, v_quads = kPage / 4;
  for (int i = warp; i < k_quads + v_quads; i += kWarps) {
    const bool is_k = i < k_quads;
    const int quad = is_k ? i : i - k_quads, extent = is_k ? kPage : head_dim;
    const QuadPlace of = quad_place(is_k ? job.k_quads : job.v_quads, quad, extent);
    auto* const scales = reinterpret_cast<uint16_t*>(block + (is_k ? job.at.k_scales : job.at.v_scales));
    auto* const zeros = reinterpret_cast<uint16_t*>(block + (is_k ? job.at.k_zeros : job.at.v_zeros));
    for (int two = 0; two < 4; two += 2) {
      const int in_quad = two + lane / kColumnLanes, column_index = 4 * quad + in_quad;
      Column column = {};
      column.n = extent / kColumnLanes;
      const int channel = is_k && job.channel_order != nullptr ? job.channel_order[column_index] : column_index;
#pragma unroll
      for (int j = 0; j < kLaneValues; ++j) {
        if (j >= column.n) continue;
        const int row = lane % kColumnLanes + kColumnLanes * j;
        column.x[j] = is_k ? job.from.k_at(head_dim, row, channel) : job.from.v_at(head_dim, column_index, row);
      }
      const Scale scale = fit_column(column, of.bits, is_k);
      if (lane % kColumnLanes == 0) {
        if (of.bits > 0) scales[column_index] = scale.scale;
        zeros[column_index] = scale.zero;
      }
      if (of.bits == 0) continue;
      const CodeLine line = code_line(scale, of.bits);
      for_each(column, [&](float x, int j) {
        codes[4 * (lane % kColumnLanes + kColumnLanes * j) + in_quad] = static_cast<unsigned char>(code_of(x, line));
      });
    }
    auto* const rows = reinterpret_cast<uint32_t*>(codes);
    for (int row = extent + lane; row < block_rows(extent); row += 32) rows[row] = 0;
    __syncwarp();
    if (of.bits > 0) {
      auto* out = reinterpret_cast<uint32_t*>(block + (is_k ? job.at.k_codes : job.at.v_codes) + of.bytes);
      for (int row = 0; row < extent; row += 64, out += 8 * of.bits) pack_block(rows + row, of.bits, out, lane);
    }
    __syncwarp();
  }
}

// Returns the code, from 2^(bits - 1) on, of the level that is nearest to a magnitude in units of 1 / 127.
__device__ __forceinline__ int nearest_level(float magnitude, int bits, const WidthView& widths) {
  const int half = 1 << (bits - 1);
  const float* const levels = widths.levels + (1 << bits) - 2 + half;
  int index = 0;
  for (int i = 1; i < half; ++i) index += magnitude > 0.5f * (levels[i - 1] + levels[i]) ? 1 : 0;
  return half + index;
}

// The line of codes of 5 bits and more.
__device__ CodeLine uniform_line(int bits, float scale, const WidthView& widths) {
  const float unit = __fdiv_rn(scale, 127.0f), step = __fmul_rn(unit, static_cast<float>(256 >> bits));
  return {step, step > 0 ? __fdiv_rn(1.0f, step) : 0.0f, __fmul_rn(unit, level_of(widths.levels, bits, 0)),
          static_cast<float>((1 << bits) - 1)};
}

// The encoding of one KV head of a calibrated page.
struct CalibratedEncoding {
  HeadValues from;
  const unsigned char* table;
  const float *within, *middle;
  unsigned char* page;
  const uint64_t* wide;  // the mask of the wide tokens, with two tiers
  int32_t head;
};

// Returns the byte of the scale of a column, as kernels/calibrated_page.cpp finds it. REQUIRES: all lanes of a warp
// have columns of the same width.
__device__ int fit_scale(const Column& column, int bits, const WidthView& widths) {
  const auto error = [&](int k) {
    const float scale = widths.scales[k];
    float sum = 0.0f;
    if (bits > 4) {
      const CodeLine line = uniform_line(bits, scale, widths);
      for_each(column, [&](float x, int) {
        const float difference = x - fmaf(line.scale, code_of(x, line), line.zero);
        sum = fmaf(difference, difference, sum);
      });
    } else {
      const float unit = __fdiv_rn(scale, 127.0f), inverse = scale > 0 ? __fdiv_rn(127.0f, scale) : 0.0f;
      for_each(column, [&](float x, int) {
        const float level = widths.levels[(1 << bits) - 2 + nearest_level(fabsf(x) * inverse, bits, widths)];
        const float difference = fmaf(-level, unit, fabsf(x));
        sum = fmaf(difference, difference, sum);
      });
    }
    return sum_of_column(sum);
  };
  float squares = 0.0f, top = 0.0f;
  for_each(column, [&](float x, int) {
    squares = fmaf(x, x, squares);
    top = fmaxf(top, fabsf(x));
  });
  squares = sum_of_column(squares);
  top = max_of_column(top);
  if (bits <= 4) {
    top = __fmul_rn(__fsqrt_rn(__fdiv_rn(squares, static_cast<float>(column.n * kColumnLanes))), normal_top(bits));
  }
  int best = 0, end = kMostScale;  // the first scale that is not below `top`
  while (best < end) {
    const int middle = (best + end) / 2;
    if (widths.scales[middle] < top) {
      best = middle + 1;
    } else {
      end = middle;
    }
  }
  const bool sound = squares <= FLT_MAX;
  float least = error(best);
  const int start = best;
  for (int step = -1; step <= 1; step += 2) {
    bool searches = sound && (step < 0 || best == start);  // the error has one minimum
    for (int i = 0; i < kMostScaleSteps; ++i) {
      const int next = best + step;
      searches = searches && next >= 0 && next <= kMostScale;
      if (max_of_warp(searches ? 1.0f : 0.0f) == 0.0f) break;
      const float trial = error(searches ? next : best);
      searches = searches && trial < least;
      if (!searches) continue;
      least = trial;
      best = next;
    }
  }
  return sound ? best : kMostScale + 1;
}

__device__ uint32_t code_of_column(float x, int bits, float scale, const WidthView& widths) {
  if (bits > 4) {
    return static_cast<uint32_t>(code_of(x, uniform_line(bits, scale, widths)));
  }
  const float inverse = scale > 0 ? __fdiv_rn(127.0f, scale) : 0.0f;
  const int code = nearest_level(fabsf(x) * inverse, bits, widths);
  return static_cast<uint32_t>(x > 0 ? code : (1 << bits) - 1 - code);
}

// Packs the codes of a quad, rows [64] of four codes, into the words of its blocks. Row r of V has the codes of column
// r % 4 for tokens 4 (r / 4) to 4 (r / 4) + 3. `quad`: the quad's place among the four that share blocks, or -1 if it
// has a block of its own. All lanes of a warp call it.
__device__ void pack_quad(const uint32_t* rows, int bits, int quad, uint32_t* out, int lane) {
  const auto row = [&](int part, int u, int c) {
    return rows[quad < 0 ? 16 * u + part * 4 + c : 16 * part + 4 * u + c];
  };
  // Word w of a plane is in block w / 4 at `at`, or, of a quad of its own, all are in one block.
  const auto place = [&](int part, int at) {
    return quad < 0 ? out + at + 4 * part : out + 8 * bits * part + at + 4 * quad;
  };
  if (bits == 8) {
    for (int i = lane; i < 64; i += 32) place(i / 16, i / 4 % 4 * 16)[i % 4] = row(i / 16, i / 4 % 4, i % 4);
    return;
  }
  int shift = 0, first = 0;
  if (bits >= 4) {
    const int part = lane / 8, h = lane / 4 % 2, c = lane % 4;
    place(part, 16 * h)[c] = (row(part, 2 * h, c) & 0x0f0f0f0fu) | (row(part, 2 * h + 1, c) & 0x0f0f0f0fu) << 4;
    shift = 4;
    first = 32;
  }
  if (((bits - shift) & 2) != 0) {
    if (lane < 16) {
      uint32_t word = 0;
      for (int u = 0; u < 4; ++u) word |= (row(lane / 4, u, lane % 4) >> shift & 0x03030303u) << (2 * u);
      place(lane / 4, first)[lane % 4] = word;
    }
    shift += 2;
    first += 16;
  }
  if (((bits - shift) & 1) != 0 && lane < 16) {
    uint32_t four = 0;  // Moves bits 0, 8, 16 and 24 to 24, ..., 27. No two terms of the product meet.
    const int part = lane / 4, u = lane % 4;
    for (int c = 0; c < 4; ++c) four |= ((row(part, u, c) >> shift & 0x01010101u) * 0x01020408u >> 24 & 15u) << (4 * c);
    auto* const halves = reinterpret_cast<uint16_t*>(quad < 0 ? out + first : out + 8 * bits * part + first);
    halves[quad < 0 ? 4 * u + part : 4 * u + quad] = static_cast<uint16_t>(four);
  }
}

// Shared memory of encode_calibrated_kernel(): for each warp 256 codes, [64][4]; the rotated mean key; with two tiers
// the token of each slot, and for each warp the bytes of 16 scales.
constexpr int kWarpCodes = 256, kGroupColumns = 16;
size_t encode_bytes(int64_t dim) {
  return kWarps * (kWarpCodes + kGroupColumns) + static_cast<size_t>(dim) * sizeof(float) + kPage;
}

// Encodes one side of one tier. A warp takes a group of 16 columns, two at a time. tokens: of all slots; codes and
// best: of the warp.
__device__ void encode_tier(const CalibratedEncoding& job, const WidthView& widths, const float* mean,
                            const TierSlots& tier, bool is_k, const uint8_t* tokens, unsigned char* codes,
                            uint8_t* best, int dim) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int in_part = lane % kColumnLanes;  // the slot of a part that this lane takes
  unsigned char* const page = job.page + widths.head->first;
  const auto value = [&](int column, int part) {
    const int channel = is_k ? widths.k_order[column] : widths.v_order[column];
    const int token = tokens[tier.first + 16 * part + in_part];
    return is_k ? __fsub_rn(job.from.k_at(dim, token, channel), key_offset(mean, job.within, dim, channel, token))
                : __fsub_rn(job.from.v_at(dim, token, channel), widths.v_mean[channel]);
  };
  for (int group = warp; group < coded_quads(tier.at->quads) / 4; group += kWarps) {
    const TierBlocks blocks = tier_blocks(tier, group);
    for (int two = 0; two < kGroupColumns; two += 2) {
      const int in_group = two + lane / kColumnLanes;
      Column column = {};
      column.n = tier.parts;
#pragma unroll
      for (int part = 0; part < kPage / kColumnLanes; ++part) {
        if (part < tier.parts) column.x[part] = value(kGroupColumns * group + in_group, part);
      }
      const int scale = fit_scale(column, blocks.bits, widths);
      if (in_part == 0) best[in_group] = static_cast<uint8_t>(scale);
    }
    __syncwarp();
    int most = 0;
    for (int c = 0; c < kGroupColumns; ++c) most = best[c] > most ? best[c] : most;
    const auto steps = [&](int c) { return tier_scale_steps(most, best[c]); };
    unsigned char* const scales = page + tier.at->scales + tier_scale_bytes(4) * group;
    if (lane == 0) scales[0] = static_cast<unsigned char>(most);
    if (lane < kGroupColumns / 2) {
      scales[1 + lane] = static_cast<unsigned char>(steps(2 * lane) | steps(2 * lane + 1) << 4);
    }
    for (int part = 0; part < tier.parts; ++part) {
      for (int two = 0; two < kGroupColumns; two += 2) {
        const int c = two + lane / kColumnLanes, k = tier_scale_below(most, steps(c));
        const int at = is_k ? 4 * (c / 4 * 16 + in_part) + c % 4 : 4 * (in_part / 4 * 16 + c) + in_part % 4;
        codes[at] = static_cast<unsigned char>(
            code_of_column(value(kGroupColumns * group + c, part), blocks.bits, widths.scales[k], widths));
      }
      __syncwarp();
      unsigned char* const to = page + tier.at->codes + blocks.bytes + 32 * blocks.bits * part;
      pack_quad(reinterpret_cast<const uint32_t*>(codes), blocks.bits, -1, reinterpret_cast<uint32_t*>(to), lane);
      __syncwarp();
    }
  }
}

// All threads of a block call it.
__device__ void encode_tiers(const CalibratedEncoding& job, const WidthView& widths, const float* mean,
                             unsigned char* codes, int dim) {
  const FlatWidths& head = *widths.head;
  auto* const tokens = shared_memory() + kWarps * kWarpCodes + static_cast<size_t>(dim) * sizeof(float);
  uint8_t* const best = tokens + kPage + threadIdx.x / 32 * kGroupColumns;
  if (threadIdx.x < kPage) {
    const int token = static_cast<int>(threadIdx.x);
    tokens[Slots{*job.wide, head.wide_tokens}.of(token)] = static_cast<unsigned char>(token);
  }
  if (threadIdx.x < kPage / 8) {
    job.page[head.first + head.mask + static_cast<int>(threadIdx.x)] =
        static_cast<unsigned char>(*job.wide >> (8 * threadIdx.x));
  }
  __syncthreads();
  for (int i = 0; i < 4; ++i) {
    const bool is_k = i % 2 == 0;
    const TierSlots tier = tier_of(is_k ? head.k : head.v, i >= 2, head.wide_tokens);
    encode_tier(job, widths, mean, tier, is_k, tokens, codes, best, dim);
  }
}

// With one tier a warp takes a quad, two columns at a time.
__global__ void __launch_bounds__(kThreads, 4) encode_calibrated_kernel(const CalibratedEncoding* jobs, int dim) {
  const CalibratedEncoding& job = jobs[blockIdx.x];
  const WidthView widths = widths_of(job.table, job.head, dim);
  const FlatWidths& head = *widths.head;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  unsigned char* const codes = shared_memory() + warp * kWarpCodes;
  auto* const mean = reinterpret_cast<float*>(shared_memory() + kWarps * kWarpCodes);
  unsigned char* const page = job.page + head.first;
  rotate_mean(widths, job.middle, dim, mean);
  __syncthreads();
  if (head.wide_tokens > 0) return encode_tiers(job, widths, mean, codes, dim);
  const int k_quads = coded_quads(head.k[0].quads), v_quads = coded_quads(head.v[0].quads);
  for (int i = warp; i < k_quads + v_quads; i += kWarps) {
    const bool is_k = i < k_quads;
    const int quad = is_k ? i : i - k_quads;
    const FlatTier& tier = is_k ? head.k[0] : head.v[0];
    const CodeBlock block = code_block(tier.quads, is_k, quad);
    for (int two = 0; two < 4; two += 2) {
      const int in_quad = two + lane / kColumnLanes, index = 4 * quad + in_quad;
      const int channel = is_k ? widths.k_order[index] : widths.v_order[index];
      Column column = {};
      column.n = kPage / kColumnLanes;
#pragma unroll
      for (int j = 0; j < kPage / kColumnLanes; ++j) {
        const int token = lane % kColumnLanes + kColumnLanes * j;
        column.x[j] =
            is_k ? __fsub_rn(job.from.k_at(dim, token, channel), key_offset(mean, job.within, dim, channel, token))
                 : __fsub_rn(job.from.v_at(dim, token, channel), widths.v_mean[channel]);
      }
      const int scale = fit_scale(column, block.bits, widths);
      if (lane % kColumnLanes == 0) page[tier.scales + index] = static_cast<unsigned char>(scale);
      for_each(column, [&](float x, int j) {
        const int token = lane % kColumnLanes + kColumnLanes * j;
        const int at = is_k ? 4 * token + in_quad : token / 4 * 16 + 4 * in_quad + token % 4;
        codes[at] = static_cast<unsigned char>(code_of_column(x, block.bits, widths.scales[scale], widths));
      });
    }
    __syncwarp();
    const bool shares = block.columns == 16;
    auto* const out =
        reinterpret_cast<uint32_t*>(page + tier.codes + block.bytes - (shares ? 32 * block.bits * block.part : 0));
    pack_quad(reinterpret_cast<const uint32_t*>(codes), block.bits, shares ? block.part : -1, out, lane);
    __syncwarp();
  }
}

// The reading of one KV head of a calibrated page.
struct CalibratedReading {
  const unsigned char* table;
  const float *within, *middle;
  const unsigned char* page;
  int32_t head, first, n;
  float* k;
  float* v;
};

// Shared memory: the rotated mean key.
__global__ void __launch_bounds__(kThreads) read_calibrated_kernel(const CalibratedReading* jobs, int dim) {
  const CalibratedReading& job = jobs[blockIdx.x];
  const WidthView widths = widths_of(job.table, job.head, dim);
  const unsigned char* const page = job.page + widths.head->first;
  auto* const mean = reinterpret_cast<float*>(shared_memory());
  rotate_mean(widths, job.middle, dim, mean);
  __syncthreads();
  const auto put = [&](float* rows, int token, int channel, float x) {
    if (token >= job.first && token < job.first + job.n) rows[(token - job.first) * dim + channel] = x;
  };
  if (job.k != nullptr) {
    decode_keys(widths, page, mean, job.within, dim,
                [&](int token, int channel, float x) { put(job.k, token, channel, x); });
  }
  if (job.v != nullptr) {
    decode_values(widths, page, dim, [&](int token, int channel, const float(&x)[4]) {
      for (int t = 0; t < 4; ++t) put(job.v, token + t, channel, x[t]);
    });
  }
}

// The reading of one KV head. All pointers are those of this head.
struct Reading {
  Segment page;
  int32_t first, n, k_columns;  // k_columns: how many columns of K are read, from the first on
  float* k;
  float* v;
};

// Neighboring threads take neighboring columns of a token.
__global__ void __launch_bounds__(kThreads) read_kernel(const Reading* jobs, int head_dim) {
  const Reading& job = jobs[blockIdx.x];
  const Segment& page = job.page;
  const auto* const dense_k = reinterpret_cast<const uint16_t*>(page.k);
  const auto* const dense_v = reinterpret_cast<const uint16_t*>(page.v);
  const uint8_t* const order = page.channel_order;
  for (int i = static_cast<int>(threadIdx.x); i < job.n * head_dim; i += kThreads) {
    const int row = i / head_dim, d = i % head_dim, t = job.first + row;
    if (job.k != nullptr && d < job.k_columns) {
      const int channel = order == nullptr ? d : order[d];
      const float x =
          page.k_codes == 0 ? low_bf16(dense_k[k_place(channel, t)]) : decoded(page, page.k, true, d, t, kPage);
      job.k[row * head_dim + channel] = x;
    }
    if (job.v != nullptr) {
      const float x =
          page.k_codes == 0 ? low_bf16(dense_v[v_place(head_dim, d, t)]) : decoded(page, page.k, false, t, d, head_dim);
      job.v[row * head_dim + d] = x;
    }
  }
}

void check_slot(const TokenPlace& place, bool may_be_row = false) {
  if (may_be_row && place.slot == TokenPlace::kRow) return;
  if (place.slot < 0 || place.slot >= kPageTokens) {
    throw std::invalid_argument("CUDA kernels: expected a slot of a page, found " + std::to_string(place.slot));
  }
}

// Returns the reading of one KV head of a page. k, v: the rows to write.
Reading reading_of(const AttentionShape& shape, const KvSegment& page, int64_t head, int64_t first, int64_t n, float* k,
                   float* v) {
  Reading row = {table_row(shape, page),
                 static_cast<int32_t>(first),
                 static_cast<int32_t>(n),
                 static_cast<int32_t>(shape.head_dim),
                 k,
                 v};
  row.page.k += head * page.head_stride;
  if (row.page.v != nullptr) row.page.v += head * page.head_stride;
  if (row.page.channel_order != nullptr) row.page.channel_order += head * shape.head_dim;
  return row;
}

int64_t blocks_of_warps(size_t n) { return (static_cast<int64_t>(n) + kWarps - 1) / kWarps; }

void launch_reads(std::span<const Reading> rows, int64_t head_dim, PageWorkspace& workspace, cudaStream_t stream) {
  launch(read_kernel, "read_pages", static_cast<int64_t>(rows.size()), kThreads, 0, stream,
         workspace.jobs.send(rows, stream), static_cast<int>(head_dim));
}

}  // namespace

void write_kv(const AttentionShape& shape, std::span<const KvWrite> writes, PageWorkspace& workspace,
              CUstream_st* stream) {
  check_shape(shape);
  for (const KvWrite& write : writes) {
    if (write.slot < 0 || write.n < 0 || write.slot + write.n > kPageTokens) {
      throw std::invalid_argument("CUDA kernels: expected rows for slots of one page, found " +
                                  std::to_string(write.n) + " rows from slot " + std::to_string(write.slot));
    }
  }
  launch(write_kernel, "write_kv", static_cast<int64_t>(writes.size()) * shape.n_kv_heads, kThreads, 0, stream,
         workspace.jobs.send(writes, stream), static_cast<int>(shape.n_kv_heads), static_cast<int>(shape.head_dim));
}

void move_tokens(int64_t head_dim, std::span<const TokenMove> moves, PageWorkspace& workspace, CUstream_st* stream) {
  check_shape(page_shape(1, head_dim));
  for (const TokenMove& move : moves)
    check_slot(move.from, true), check_slot(move.to, move.from.slot != TokenPlace::kRow);
  launch(move_kernel, "move_tokens", blocks_of_warps(moves.size()), kThreads, 0, stream,
         workspace.jobs.send(moves, stream), static_cast<int>(moves.size()), static_cast<int>(head_dim));
}

void copy_pages(std::span<const PageCopy> copies, PageWorkspace& workspace, CUstream_st* stream) {
  for (const PageCopy& copy : copies) {
    if (copy.bytes % 16 == 0) continue;
    throw std::invalid_argument("CUDA kernels: expected to copy a multiple of 16 bytes, found " +
                                std::to_string(copy.bytes));
  }
  launch(copy_kernel, "copy_pages", static_cast<int64_t>(copies.size()) * kCopyBlocks, kThreads, 0, stream,
         workspace.jobs.send(copies, stream));
}

void encode_pages(int64_t head_dim, std::span<const PageEncode> pages, PageWorkspace& workspace, CUstream_st* stream) {
  const int64_t values = kPageTokens * head_dim;
  int64_t decoded_heads = 0;
  for (const PageEncode& page : pages) {
    if (page.table != nullptr) continue;
    const KvSegment coded{.format = KvSegment::Format::kQuantized, .tokens = kPageTokens, .quantized = page.layout};
    check_shape(page_shape(page.n_heads, head_dim));
    kernels::check(page_shape(page.n_heads, head_dim), coded);
    if (page.rows != nullptr && !is_row_bits(page.row_bits)) {
      throw std::invalid_argument("CUDA kernels: expected rows of 4 or 8 bits, or dense rows (0), found " +
                                  std::to_string(page.row_bits));
    }
    if (page.source.quantized == nullptr) continue;
    kernels::check(page_shape(page.n_heads, head_dim), *page.source.quantized);
    if (page.source.residual != nullptr) kernels::check(page_shape(page.n_heads, head_dim), *page.source.residual);
    decoded_heads += page.n_heads;
  }
  const size_t decoded_bytes = static_cast<size_t>(2 * decoded_heads * values) * sizeof(float);
  auto* decoded = reinterpret_cast<float*>(workspace.scratch.reserve(decoded_bytes));
  workspace.readings.clear();
  workspace.residuals.clear();
  workspace.encodings.clear();
  workspace.row_encodings.clear();
  workspace.calibrated.clear();
  for (const PageEncode& page : pages) {
    if (page.table != nullptr) {
      const Segment at =
          table_row(page_shape(page.n_heads, head_dim), KvSegment::calibrated(page.blocks, page.table, page.middle));
      for (int64_t head = 0; head < page.n_heads; ++head) {
        append_row(CalibratedEncoding{{page.source.tokens.data() + head * kPageTokens, nullptr, nullptr},
                                      at.widths,
                                      at.within,
                                      at.middle,
                                      static_cast<unsigned char*>(page.blocks),
                                      page.wide == nullptr ? nullptr : page.wide + head,
                                      static_cast<int32_t>(head)},
                   &workspace.calibrated);
      }
      continue;
    }
    const AttentionShape shape = page_shape(page.n_heads, head_dim);
    for (int64_t head = 0; head < page.n_heads; ++head) {
      Encoding row = {};
      if (page.source.quantized != nullptr) {
        append_row(reading_of(shape, *page.source.quantized, head, 0, kPageTokens, decoded, decoded + values),
                   &workspace.readings);
        if (page.source.residual != nullptr) {
          Reading residual = reading_of(shape, *page.source.residual, head, 0, kPageTokens, decoded, nullptr);
          residual.k_columns = static_cast<int32_t>(page.source.residual_columns);
          append_row(residual, &workspace.residuals);
        }
        row.from.k = decoded;
        row.from.v = decoded + values;
        decoded += 2 * values;
      } else {
        row.from.tokens = page.source.tokens.data() + head * kPageTokens;
      }
      row.at = quantized_offsets(page.layout, head_dim);
      row.channel_order = page.channel_order == nullptr ? nullptr : page.channel_order + head * head_dim;
      row.block = static_cast<unsigned char*>(page.blocks) + head * page.block_stride;
      std::copy_n(page.layout.k.quads.data(), 4, row.k_quads);
      std::copy_n(page.layout.v.quads.data(), 4, row.v_quads);
      append_row(row, &workspace.encodings);
      if (page.rows == nullptr) continue;
      const int64_t bytes = indexed_rows_bytes(KvType::kBf16, head_dim, page.row_bits);
      append_row(row_encoding(row.from, head_dim, page.row_bits, static_cast<std::byte*>(page.rows) + head * bytes),
                 &workspace.row_encodings);
    }
  }
  launch_reads(rows_of<Reading>(workspace.readings), head_dim, workspace, stream);
  launch_reads(rows_of<Reading>(workspace.residuals), head_dim, workspace, stream);
  const auto encodings = rows_of<Encoding>(workspace.encodings);
  launch(encode_kernel, "encode_pages", static_cast<int64_t>(encodings.size()), kThreads, kWarps * 4 * 256, stream,
         workspace.jobs.send(encodings, stream), static_cast<int>(head_dim));
  const auto calibrated = rows_of<CalibratedEncoding>(workspace.calibrated);
  launch(encode_calibrated_kernel, "encode_pages: calibrated", static_cast<int64_t>(calibrated.size()), kThreads,
         encode_bytes(head_dim), stream, workspace.jobs.send(calibrated, stream), static_cast<int>(head_dim));
  encode_rows(head_dim, rows_of<RowEncoding>(workspace.row_encodings), workspace.jobs, stream);
}

void read_pages(int64_t head_dim, std::span<const PageRead> pages, PageWorkspace& workspace, CUstream_st* stream) {
  workspace.readings.clear();
  workspace.calibrated.clear();
  for (const PageRead& page : pages) {
    const AttentionShape shape = page_shape(page.n_heads, head_dim);
    check_shape(shape);
    kernels::check(shape, page.page);
    check_tokens(page.first, page.n);
    for (int64_t head = 0; head < page.n_heads; ++head) {
      const auto row = [&](float* rows) { return rows == nullptr ? nullptr : rows + head * page.head_stride; };
      if (page.page.table != nullptr) {
        const Segment at = table_row(shape, page.page);
        append_row(
            CalibratedReading{at.widths, at.within, at.middle, at.k, static_cast<int32_t>(page.head + head),
                              static_cast<int32_t>(page.first), static_cast<int32_t>(page.n), row(page.k), row(page.v)},
            &workspace.calibrated);
        continue;
      }
      append_row(reading_of(shape, page.page, page.head + head, page.first, page.n, row(page.k), row(page.v)),
                 &workspace.readings);
    }
  }
  launch_reads(rows_of<Reading>(workspace.readings), head_dim, workspace, stream);
  const auto calibrated = rows_of<CalibratedReading>(workspace.calibrated);
  launch(read_calibrated_kernel, "read_pages: calibrated", static_cast<int64_t>(calibrated.size()), kThreads,
         static_cast<size_t>(head_dim) * sizeof(float), stream, workspace.jobs.send(calibrated, stream),
         static_cast<int>(head_dim));
}

}  // namespace smartkv::kernels::cuda
