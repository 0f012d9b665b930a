#include "kernels/cuda/kv_pages.h"

#include <algorithm>
#include <cfloat>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/attention_kernels.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/page_codes.h"
#include "kernels/cuda/platform.h"

namespace smartkv::kernels::cuda {
namespace {

// Of a dense page of bf16: where element (d, slot) of K, and of V, is.
__device__ __forceinline__ int k_place(int d, int slot) { return (d / 2 * kPage + slot) * 2 + d % 2; }
__device__ __forceinline__ int v_place(int head_dim, int d, int slot) { return (slot / 2 * head_dim + d) * 2 + slot % 2; }

__device__ __forceinline__ float rotated(const float* x, const float* angles, int d, int half) {
  if (angles == nullptr) return x[d];
  const int j = d < half ? d : d - half;
  const float cos = angles[j], sin = angles[half + j];
  return d < half ? fmaf(x[d], cos, -x[d + half] * sin) : fmaf(x[d], cos, x[d - half] * sin);
}

// A block: one KV head of a write. Neighbours in K are slots, in V channels: the threads follow.
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

// A warp per move.
__global__ void __launch_bounds__(kThreads) move_kernel(const SlotMove* moves, int n, int head_dim) {
  const int i = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x / 32);
  if (i >= n) return;
  const SlotMove& move = moves[i];
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int d = 2 * lane; d < head_dim; d += 64) {
    static_cast<uint32_t*>(move.to_k)[k_place(d, move.to_slot) / 2] =
        static_cast<const uint32_t*>(move.from_k)[k_place(d, move.from_slot) / 2];
  }
  for (int d = lane; d < head_dim; d += 32) {
    static_cast<uint16_t*>(move.to_v)[v_place(head_dim, d, move.to_slot)] =
        static_cast<const uint16_t*>(move.from_v)[v_place(head_dim, d, move.from_slot)];
  }
}

constexpr int kColumnLanes = 16;  // of a column: the sums of a vector of the CPU's
constexpr int kLaneValues = 256 / kColumnLanes;

// The values of a column that a lane has: i, i + 16, ...; n of them.
struct Column {
  float x[kLaneValues];
  int n;
};

// Over the 16 lanes, in the order of Vec16::reduce_add().
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

// As in kernels/quantized_page.cpp, operation by operation.
struct Scale {
  uint16_t scale, zero;  // f16; the scale is of bytes
};
__device__ __forceinline__ float unit_of(int bits) { return static_cast<float>(1 << (8 - bits)); }
__device__ __forceinline__ Scale scale_of(float low, float scale, int bits) {
  constexpr float kMost = 65504.0f;  // of f16
  return {float_to_half(fminf(fmaxf(scale / unit_of(bits), 0.0f), kMost)), float_to_half(fminf(fmaxf(low, -kMost), kMost))};
}

struct CodeLine {
  float scale, inverse, zero, most;
};
__device__ __forceinline__ CodeLine code_line(Scale of, int bits) {
  const float scale = half_to_float(of.scale) * unit_of(bits);
  return {scale, scale > 0 ? __fdiv_rn(1.0f, scale) : 0.0f, half_to_float(of.zero), static_cast<float>((1 << bits) - 1)};
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
  const float step =
      __fdiv_rn(__fsub_rn(codes.sum_xc, __fdiv_rn(__fmul_rn(sum_x, codes.sum_c), count)), variance);
  return scale_of(__fdiv_rn(__fsub_rn(sum_x, __fmul_rn(step, codes.sum_c)), count), step, bits);
}

// Scale and zero of a column; bits 0: its mean. All lanes of a warp have columns of the same width.
__device__ Scale fit_column(const Column& column, int bits, bool least_squares, int32_t* not_finite) {
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
  if (!finite) atomicAdd(not_finite, 1);
  const auto count = static_cast<float>(column.n * kColumnLanes);
  if (bits == 0) return scale_of(__fdiv_rn(sum, count), 0.0f, 8);
  const float levels = static_cast<float>((1 << bits) - 1), half = (high - low) / 2, middle = (low + high) / 2;
  Scale best = scale_of(low, 2 * half / levels, bits);
  if (!least_squares || bits > 4) return best;
  Fit least = measure(column, code_line(best, bits));
  const auto take_if_better = [&](Scale scale) {
    const Fit trial = measure(column, code_line(scale, bits));
    if (!(trial.error < least.error)) return;
    least = trial;
    best = scale;
  };
  const float narrowest = bits == 2 ? 0.5f : bits == 3 ? 0.7f : 0.85f;
  for (float shrink = 0.95f; shrink > narrowest; shrink -= 0.05f) {
    take_if_better(scale_of(__fsub_rn(middle, __fmul_rn(shrink, half)), __fdiv_rn(__fmul_rn(2 * shrink, half), levels), bits));
  }
  // Where one is no better, those after it are the same: lanes whose column is done go on with the others.
  constexpr int kRefits = 4;
  for (int i = 0; i < kRefits; ++i) take_if_better(refit(least, sum, count, bits, best));
  return best;
}

// Codes of 64 rows, a word for each, to words of the page: one of `lanes`, all of which call it.
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
    for (int i = 0; i < 8; ++i) {  // bits 0, 8, 16 and 24 to 24, ..., 27; no two of the product's terms meet
      word |= ((rows[8 * (lane - 16) + i] >> 2 & 0x01010101u) * 0x01020408u >> 24 & 15u) << (4 * i);
    }
    out[lane] = word;
  }
}

struct Encoding {
  Segment page;
  QuantizedOffsets at;
  const uint8_t* token_order;
  const uint8_t* channel_order;
  unsigned char* blocks;
  int64_t block_stride;
  uint8_t k_quads[4], v_quads[4];
};

// A warp per quad, which it takes two columns at a time. Shared memory: codes of a quad a warp, [256][4].
__global__ void __launch_bounds__(kThreads, 4) encode_kernel(const Encoding* jobs, int n_kv_heads, int head_dim,
                                                             int32_t* not_finite) {
  const Encoding& job = jobs[blockIdx.x / n_kv_heads];
  const auto head = static_cast<int>(blockIdx.x % n_kv_heads);
  if (job.page.kv_head >= 0 && job.page.kv_head != head) return;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int place = job.page.kv_head >= 0 ? 0 : head;
  unsigned char* const block = job.blocks + place * job.block_stride;
  const uint8_t* const tokens = job.token_order == nullptr ? nullptr : job.token_order + head * kPage;
  const uint8_t* const channels = job.channel_order == nullptr ? nullptr : job.channel_order + head * head_dim;
  const auto slot_of = [&](int t) { return tokens == nullptr ? t : tokens[t]; };
  const auto* const k = reinterpret_cast<const uint16_t*>(job.page.k + place * job.page.head_stride);
  const auto* const v = reinterpret_cast<const uint16_t*>(job.page.v + place * job.page.head_stride);
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
      const int channel = is_k && channels != nullptr ? channels[column_index] : column_index;
#pragma unroll
      for (int j = 0; j < kLaneValues; ++j) {
        if (j >= column.n) continue;
        const int row = lane % kColumnLanes + kColumnLanes * j;
        const int at = is_k ? k_place(channel, slot_of(row)) : v_place(head_dim, row, slot_of(column_index));
        column.x[j] = low_bf16((is_k ? k : v)[at]);
      }
      const Scale scale = fit_column(column, of.bits, is_k, not_finite);
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

struct Reading {
  Segment page;
  float* k;
  float* v;
};

// A value of a page of codes.
__device__ float decoded(const Segment& page, const unsigned char* block, bool is_k, int column, int row, int extent) {
  const auto* const halves = reinterpret_cast<const uint16_t*>(block);
  const uint16_t* const scales = halves + (is_k ? 0 : page.v_scales / 2);
  const uint16_t* const zeros = halves + (is_k ? page.k_zeros : page.v_zeros) / 2;
  const QuadPlace of = quad_place(is_k ? page.k_quads : page.v_quads, column / 4, extent);
  const float zero = half_to_float(zeros[column]);
  if (of.bits == 0) return zero;
  const auto* const words = reinterpret_cast<const uint32_t*>(block + (is_k ? page.k_codes : page.v_codes) + of.bytes);
  const QuadEntry quad = quad_entry(of.bits, 0);
  const uint32_t* const codes = words + row / 64 * quad.block_words();
  const int part = row / 16 % 4;
  const uint32_t four = codes_of(quad, codes, codes[part_words(quad, part) + row % 16], part, row % 16);
  const auto code = static_cast<float>(four >> (8 * (column % 4)) & 255u);
  return fmaf(half_to_float(scales[column]) * unit_of(of.bits), code, zero);  // the product is exact
}

// Rows and columns of one KV head, columns (of codes) last among neighbours' words.
__global__ void __launch_bounds__(kThreads) read_kernel(const Reading* jobs, int n_kv_heads, int head_dim) {
  const Reading& job = jobs[blockIdx.x / n_kv_heads];
  const Segment& page = job.page;
  const auto head = static_cast<int>(blockIdx.x % n_kv_heads);
  if (page.kv_head >= 0 && page.kv_head != head) return;
  const int place = page.kv_head >= 0 ? 0 : head;
  const unsigned char* const k = page.k + place * page.head_stride;
  const auto* const dense_k = reinterpret_cast<const uint16_t*>(k);
  const auto* const dense_v = reinterpret_cast<const uint16_t*>(page.v + place * page.head_stride);
  const uint8_t* const order = page.channel_order == nullptr ? nullptr : page.channel_order + head * head_dim;
  const int64_t out = int64_t{place} * page.tokens * head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < page.tokens * head_dim; i += kThreads) {
    const int t = i / head_dim, d = i % head_dim;
    if (job.k != nullptr) {
      const int channel = order == nullptr ? d : order[d];
      const float x = page.k_codes == 0 ? low_bf16(dense_k[k_place(channel, t)]) : decoded(page, k, true, d, t, kPage);
      job.k[out + t * head_dim + channel] = x;
    }
    if (job.v != nullptr) {
      const float x = page.k_codes == 0 ? low_bf16(dense_v[v_place(head_dim, d, t)]) : decoded(page, k, false, t, d, head_dim);
      job.v[out + t * head_dim + d] = x;
    }
  }
}

// The jobs on the device.
template <typename T>
const T* upload(std::span<const T> jobs, PageWorkspace& workspace, cudaStream_t stream) {
  std::byte* const to = workspace.jobs.reserve(jobs.size_bytes());
  check(cudaMemcpyAsync(to, jobs.data(), jobs.size_bytes(), cudaMemcpyHostToDevice, stream), "copying jobs");
  return reinterpret_cast<const T*>(to);
}

// The same of rows that are put together here, in the workspace's memory of the host; row(i): the i-th.
template <typename T, typename Row>
const T* upload_rows(size_t n, PageWorkspace& workspace, cudaStream_t stream, const Row& row) {
  workspace.host.resize(n * sizeof(T));
  for (size_t i = 0; i < n; ++i) {
    const T one = row(i);
    std::memcpy(workspace.host.data() + i * sizeof(T), &one, sizeof(T));
  }
  return upload(std::span(reinterpret_cast<const T*>(workspace.host.data()), n), workspace, stream);
}

int64_t blocks_of(const AttentionShape& shape, size_t jobs) { return static_cast<int64_t>(jobs) * shape.n_kv_heads; }

}  // namespace

void write_kv(const AttentionShape& shape, std::span<const KvWrite> writes, PageWorkspace& workspace, CUstream_st* stream) {
  check_shape(shape);
  for (const KvWrite& write : writes) {
    if (write.slot < 0 || write.n < 0 || write.slot + write.n > kPageTokens) {
      throw std::invalid_argument("CUDA kernels: expected rows for slots of one page, found " + std::to_string(write.n) +
                                  " from slot " + std::to_string(write.slot) + " on");
    }
  }
  const KvWrite* const jobs = upload(writes, workspace, stream);
  launch(write_kernel, "write_kv", blocks_of(shape, writes.size()), kThreads, 0, stream, jobs,
         static_cast<int>(shape.n_kv_heads), static_cast<int>(shape.head_dim));
}

void move_tokens(const AttentionShape& shape, std::span<const SlotMove> moves, PageWorkspace& workspace, CUstream_st* stream) {
  check_shape(shape);
  for (const SlotMove& move : moves) {
    if (move.from_slot < 0 || move.to_slot < 0 || move.from_slot >= kPageTokens || move.to_slot >= kPageTokens) {
      throw std::invalid_argument("CUDA kernels: expected slots of a page, found a move from " +
                                  std::to_string(move.from_slot) + " to " + std::to_string(move.to_slot));
    }
  }
  const SlotMove* const jobs = upload(moves, workspace, stream);
  const auto n = static_cast<int>(moves.size());
  launch(move_kernel, "move_tokens", (n + kWarps - 1) / kWarps, kThreads, 0, stream, jobs, n, static_cast<int>(shape.head_dim));
}

void encode_pages(const AttentionShape& shape, std::span<const EncodeJob> jobs, int32_t* not_finite, PageWorkspace& workspace,
                  CUstream_st* stream) {
  check_shape(shape);
  const auto* const rows = upload_rows<Encoding>(jobs.size(), workspace, stream, [&](size_t i) {
    const EncodeJob& job = jobs[i];
    kernels::check(shape, job.page);
    KvSegment coded;
    coded.format = KvSegment::Format::kQuantized;
    coded.tokens = kPageTokens;
    coded.quantized = job.layout;
    kernels::check(shape, coded);
    if (job.page.format != KvSegment::Format::kDense || job.page.tokens != kPageTokens) {
      throw std::invalid_argument("CUDA kernels: expected a full dense page to encode, found " +
                                  std::to_string(job.page.tokens) + " tokens");
    }
    Encoding row = {};
    row.page = table_row(shape, job.page);
    row.at = quantized_offsets(job.layout, shape.head_dim);
    row.token_order = job.token_order;
    row.channel_order = job.channel_order;
    row.blocks = static_cast<unsigned char*>(job.blocks);
    row.block_stride = job.block_stride;
    std::copy_n(job.layout.k.quads.data(), 4, row.k_quads);
    std::copy_n(job.layout.v.quads.data(), 4, row.v_quads);
    return row;
  });
  launch(encode_kernel, "encode_pages", blocks_of(shape, jobs.size()), kThreads, kWarps * 4 * 256, stream, rows,
         static_cast<int>(shape.n_kv_heads), static_cast<int>(shape.head_dim), not_finite);
}

void read_pages(const AttentionShape& shape, std::span<const ReadJob> jobs, PageWorkspace& workspace, CUstream_st* stream) {
  check_shape(shape);
  const auto* const rows = upload_rows<Reading>(jobs.size(), workspace, stream, [&](size_t i) {
    kernels::check(shape, jobs[i].page);
    return Reading{table_row(shape, jobs[i].page), jobs[i].k, jobs[i].v};
  });
  launch(read_kernel, "read_pages", blocks_of(shape, jobs.size()), kThreads, 0, stream, rows,
         static_cast<int>(shape.n_kv_heads), static_cast<int>(shape.head_dim));
}

}  // namespace smartkv::kernels::cuda
