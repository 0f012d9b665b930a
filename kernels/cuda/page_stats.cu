#include "kernels/cuda/page_stats.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/attention_kernels.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/page_values.h"
#include "kernels/cuda/platform.h"
#include "kernels/cuda/row_table.h"

namespace smartkv::kernels::cuda {
namespace {

constexpr int kHidden = static_cast<int>(GateMaps::kHidden);

// Tokens [first, first + n) of one KV head of a dense page. For importance: of all KV heads, and `head` is the
// importance head.
struct ScoreTile {
  const unsigned char* k;
  const unsigned char* v;
  int64_t head_stride;
  const float* angles;  // Angles from the first token of the tile on.
  GateTable gate;
  float* out;           // Results from the first token of the tile on.
  int32_t first, n, head;
};

__device__ __forceinline__ const uint32_t* words(const unsigned char* bytes) { return reinterpret_cast<const uint32_t*>(bytes); }

// Channels 2 i and 2 i + 1 of a key before RoPE, and the channels half a head further.
struct FourChannels {
  float low[2], high[2];
};
__device__ __forceinline__ FourChannels unrotated(const uint32_t* k, const float* angles, int i, int slot, int head_dim) {
  const int half = head_dim / 2;
  const uint32_t low = k[i * kPage + slot], high = k[(half / 2 + i) * kPage + slot];
  FourChannels x;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float cos = angles[2 * i + j], sin = angles[half + 2 * i + j];
    const float a = j == 0 ? low_bf16(low) : high_bf16(low), b = j == 0 ? low_bf16(high) : high_bf16(high);
    const float scale = 1.0f / fmaf(cos, cos, sin * sin);  // YaRN scales the rotation.
    x.low[j] = fmaf(cos, a, sin * b) * scale;
    x.high[j] = fmaf(cos, b, -sin * a) * scale;
  }
  return x;
}

// Returns the sum of two threads, thread and thread + kPage, for each of kPage tokens. All threads call it.
__device__ __forceinline__ float sum_of_halves(float x, float* shared) {
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread >= kPage) shared[thread - kPage] = x;
  __syncthreads();
  return thread < kPage ? x + shared[thread] : 0.0f;
}

// A block takes a tile, two threads a token.
__global__ void __launch_bounds__(kThreads) norm_kernel(const ScoreTile* tiles, int head_dim) {
  const ScoreTile& tile = tiles[blockIdx.x];
  const auto thread = static_cast<int>(threadIdx.x), token = thread % kPage, side = thread / kPage;
  const uint32_t* const k = words(tile.k + tile.head * tile.head_stride);
  float sum = 0.0f;
  if (token < tile.n) {
    for (int i = side; i < head_dim / 2; i += 2) {
      const uint32_t pair = k[i * kPage + tile.first + token];
      sum = fmaf(low_bf16(pair), low_bf16(pair), fmaf(high_bf16(pair), high_bf16(pair), sum));
    }
  }
  sum = sum_of_halves(sum, reinterpret_cast<float*>(shared_memory()));
  if (thread < tile.n) tile.out[thread] = sqrtf(sum);
}

// Shared memory of gate_kernel: kPage rows of bf16, padded so that ldmatrix meets no bank twice.
constexpr int kGateRow = 2 * (kHidden + 8);  // In bytes. head_dim is at most kHidden.
static_assert(kMaxHeadDim <= kHidden);

// Computes x [rows, kHidden] = relu(x W^T + b) from x [rows, in] in shared memory, in place. rows: 16 times `sixteens`.
// A warp has 64 columns of the result.
__device__ void hidden_map(unsigned char* x, int sixteens, const uint32_t* weight, const float* bias, int in) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int group = lane / 4, in_group = lane % 4;
  float sums[4][8][4] = {};
  for (int k = 0; k < in; k += 16) {
    uint32_t a[4][4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (r < sixteens) load_a(a[r], x + 16 * r * kGateRow + 2 * k, kGateRow);
    }
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const int column = 64 * warp + 8 * c + group;
      const uint32_t* const pairs = weight + (column / 16 * (in / 2) + k / 2 + in_group) * 16 + column % 16;
      const uint32_t b0 = pairs[0], b1 = pairs[4 * 16];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (r < sixteens) mma_bf16(sums[r][c], a[r], b0, b1);
      }
    }
  }
  __syncthreads();  // All threads have read x.
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const int column = 64 * warp + 8 * c + 2 * in_group;
    const float bias0 = bias[column], bias1 = bias[column + 1];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (r >= sixteens) continue;
      unsigned char* const row = x + (16 * r + group) * kGateRow + 2 * column;
      const float(&of)[4] = sums[r][c];
      *reinterpret_cast<uint32_t*>(row) = pack_bf16(fmaxf(of[0] + bias0, 0.0f), fmaxf(of[1] + bias1, 0.0f));
      *reinterpret_cast<uint32_t*>(row + 8 * kGateRow) = pack_bf16(fmaxf(of[2] + bias0, 0.0f), fmaxf(of[3] + bias1, 0.0f));
    }
  }
  __syncthreads();
}

// A block takes a tile.
__global__ void __launch_bounds__(kThreads) gate_kernel(const ScoreTile* tiles, int head_dim) {
  const ScoreTile& tile = tiles[blockIdx.x];
  unsigned char* const x = shared_memory();
  const auto thread = static_cast<int>(threadIdx.x), half = head_dim / 2;
  const uint32_t* const k = words(tile.k + tile.head * tile.head_stride);
  const int sixteens = (tile.n + 15) / 16, rows = 16 * sixteens;
  for (int i = thread; i < rows * half / 2; i += kThreads) {
    const int token = i % rows, pair = i / rows;
    FourChannels of = {};
    if (token < tile.n) of = unrotated(k, tile.angles + token * head_dim, pair, tile.first + token, head_dim);
    auto* const row = reinterpret_cast<uint32_t*>(x + token * kGateRow);
    row[pair] = pack_bf16(of.low[0], of.low[1]);
    row[half / 2 + pair] = pack_bf16(of.high[0], of.high[1]);
  }
  __syncthreads();
  for (int map = 0; map < GateMaps::kDepth - 1; ++map) {
    hidden_map(x, sixteens, tile.gate.weight[map], tile.gate.bias[map], map == 0 ? head_dim : kHidden);
  }
  // The last map has one row, the first of sixteen. Two threads take a token.
  const int token = thread / 2;
  const auto* const row = reinterpret_cast<const uint32_t*>(x + token * kGateRow);
  float sum = 0.0f;
  for (int i = thread % 2; token < tile.n && i < kHidden / 2; i += 2) {
    const uint32_t weight = tile.gate.weight[GateMaps::kDepth - 1][16 * i];
    sum = fmaf(low_bf16(row[i]), low_bf16(weight), fmaf(high_bf16(row[i]), high_bf16(weight), sum));
  }
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  if (thread % 2 == 0 && token < tile.n) tile.out[token] = sum + tile.gate.bias[GateMaps::kDepth - 1][0];
}

// A block takes a tile, and tile.head is the importance head. Two threads take the keys of a token. A warp takes the
// values of a pair of tokens.
__global__ void __launch_bounds__(kThreads) importance_kernel(const ScoreTile* tiles, int n_kv_heads, int head_dim) {
  const ScoreTile& tile = tiles[blockIdx.x];
  auto* const sums = reinterpret_cast<float*>(shared_memory());  // [kPage]
  const int features = 2 * n_kv_heads * head_dim, half = head_dim / 2;
  const float* const map = tile.gate.importance + int64_t{tile.head} * (features + 1);
  const auto thread = static_cast<int>(threadIdx.x), token = thread % kPage, side = thread / kPage;
  float sum = 0.0f;
  for (int head = 0; token < tile.n && head < n_kv_heads; ++head) {
    const uint32_t* const k = words(tile.k + head * tile.head_stride);
    const float* const weight = map + head * head_dim;
    for (int i = side; i < half / 2; i += 2) {
      const FourChannels of = unrotated(k, tile.angles + token * head_dim, i, tile.first + token, head_dim);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        sum = fmaf(weight[2 * i + j], of.low[j], fmaf(weight[half + 2 * i + j], of.high[j], sum));
      }
    }
  }
  sum = sum_of_halves(sum, sums);
  __syncthreads();
  if (thread < kPage) sums[thread] = sum;
  __syncthreads();
  const int lane = thread % 32;
  for (int pair = thread / 32; pair < kPage / 2; pair += kWarps) {
    float even = 0.0f, odd = 0.0f;
    for (int head = 0; head < n_kv_heads; ++head) {
      const uint32_t* const v = words(tile.v + head * tile.head_stride) + pair * head_dim;
      const float* const weight = map + (n_kv_heads + head) * head_dim;
      for (int d = lane; d < head_dim; d += 32) {
        even = fmaf(weight[d], low_bf16(v[d]), even);
        odd = fmaf(weight[d], high_bf16(v[d]), odd);
      }
    }
    even = sum_of_warp(even);
    odd = sum_of_warp(odd);
    const int to = 2 * pair + lane - tile.first;
    if (lane < 2 && to >= 0 && to < tile.n) tile.out[to] = sums[to] + (lane == 0 ? even : odd) + map[features];
  }
}

// The statistics of one KV head of a dense page. Each result may be null.
struct Study {
  const unsigned char* k;
  const unsigned char* v;
  int32_t first, n;
  float* k_range;
  float* v_range;
  double* k_squares;
  double* v_squares;
};

__device__ __forceinline__ double total_of_warp(double x) {
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(kAllLanes, x, mask);
  return x;
}

struct Extent {
  float low = INFINITY, high = -INFINITY;
  double squares = 0;

  __device__ void add(float x) {
    low = fminf(low, x);
    high = fmaxf(high, x);
    squares += x * x;  // The product is exact.
  }
  __device__ void gather() {
    low = -max_of_warp(-low);
    high = max_of_warp(high);
    squares = total_of_warp(squares);
  }
};

// A warp takes a pair of channels of K at a time, then a pair of tokens of V.
__global__ void __launch_bounds__(kThreads) study_kernel(const Study* jobs, int head_dim) {
  const Study& job = jobs[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const auto has = [&](int slot) { return slot >= job.first && slot < job.first + job.n; };
  for (int pair = warp; pair < head_dim / 2; pair += kWarps) {
    Extent of[2];
    for (int slot = lane; slot < kPage; slot += 32) {
      if (!has(slot)) continue;
      const uint32_t x = words(job.k)[pair * kPage + slot];
      of[0].add(low_bf16(x));
      of[1].add(high_bf16(x));
    }
    for (int j = 0; j < 2; ++j) {
      of[j].gather();
      if (lane != 0) continue;
      if (job.k_range != nullptr) job.k_range[2 * pair + j] = of[j].high - of[j].low;
      if (job.k_squares != nullptr) job.k_squares[2 * pair + j] = of[j].squares;
    }
  }
  double squares = 0;
  for (int pair = warp; pair < kPage / 2; pair += kWarps) {
    Extent of[2];
    for (int d = lane; d < head_dim; d += 32) {
      const uint32_t x = words(job.v)[pair * head_dim + d];
      of[0].add(low_bf16(x));
      of[1].add(high_bf16(x));
    }
    for (int j = 0; j < 2; ++j) {
      of[j].gather();
      const int slot = 2 * pair + j;
      if (!has(slot)) continue;
      squares += of[j].squares;
      if (lane == 0 && job.v_range != nullptr) job.v_range[slot - job.first] = of[j].high - of[j].low;
    }
  }
  auto* const sums = reinterpret_cast<double*>(shared_memory());
  if (lane == 0) sums[warp] = squares;
  __syncthreads();
  if (threadIdx.x != 0 || job.v_squares == nullptr) return;
  double sum = 0;
  for (int i = 0; i < kWarps; ++i) sum += sums[i];
  *job.v_squares = sum;
}

// The products of one KV head. All pointers are those of this head.
struct Product {
  Segment page, residual;
  int32_t residual_columns, first, n, n_queries;
  const float* q;
  float* out;
  int64_t out_stride;
};

// Shared memory: keys, f32 [n, head_dim + 1].
__global__ void __launch_bounds__(kThreads) products_kernel(const Product* jobs, int head_dim) {
  const Product& job = jobs[blockIdx.x];
  auto* const keys = reinterpret_cast<float*>(shared_memory());
  const auto thread = static_cast<int>(threadIdx.x), row_floats = head_dim + 1;
  const bool coded = job.page.k_codes != 0;
  const auto load = [&](const Segment& page, int columns) {
    for (int i = thread; i < columns * job.n; i += kThreads) {
      const int t = i % job.n, column = i / job.n, slot = job.first + t;
      const int channel = page.channel_order == nullptr ? column : page.channel_order[column];
      keys[t * row_floats + channel] = coded ? decoded(page, page.k, true, column, slot, kPage)
                                             : low_bf16(reinterpret_cast<const uint16_t*>(page.k)[k_place(channel, slot)]);
    }
    __syncthreads();
  };
  load(job.page, head_dim);
  if (job.residual_columns > 0) load(job.residual, job.residual_columns);
  for (int i = thread; i < job.n * job.n_queries; i += kThreads) {
    const int t = i % job.n, query = i / job.n;
    const float *const q = job.q + query * head_dim, *const key = keys + t * row_floats;
    float sum = 0.0f;
    for (int d = 0; d < head_dim; ++d) sum = fmaf(q[d], key[d], sum);
    job.out[query * job.out_stride + t] = sum;
  }
}

void check_tokens(int64_t first, int64_t n) {
  if (first >= 0 && n >= 0 && first + n <= kPageTokens) return;
  throw std::invalid_argument("CUDA kernels: expected tokens of one page, found " + std::to_string(n) +
                              " tokens from token " + std::to_string(first));
}

AttentionShape shape_of(int64_t n_heads, int64_t head_dim) { return {n_heads, n_heads, head_dim, 1.0f, KvType::kBf16}; }

// Throws std::invalid_argument unless `page` is a dense page that fits.
void check_dense(int64_t n_heads, int64_t head_dim, const KvSegment& page) {
  check_shape(shape_of(n_heads, head_dim));
  kernels::check(shape_of(n_heads, head_dim), page);
  if (page.format != KvSegment::Format::kDense) {
    throw std::invalid_argument("CUDA kernels: expected dense pages, found quantized ones");
  }
}

// Returns the table row of one KV head of a page.
Segment head_row(int64_t head_dim, const KvSegment& page, int64_t head) {
  kernels::check(shape_of(head + 1, head_dim), page);
  Segment row = table_row(shape_of(head + 1, head_dim), page);
  row.k += head * page.head_stride;
  if (row.channel_order != nullptr) row.channel_order += head * head_dim;
  return row;
}

}  // namespace

DeviceGate::DeviceGate(const GateMaps& maps, cudaStream_t stream)
    : n_kv_heads_(maps.n_kv_heads), head_dim_(maps.head_dim), importance_heads_(maps.importance_heads) {
  Staging staging;
  std::vector<size_t> offsets;
  const auto add = [&](const void* from, size_t bytes) { offsets.push_back(staging.add(from, bytes)); };
  for (size_t layer = 0; layer < maps.layers.size(); ++layer) {
    for (const GateMaps::Map& map : *maps.layers[layer]) {
      add(map.weight.data.data(), map.weight.data.size());
      add(map.bias.data(), map.bias.size() * sizeof(float));
    }
    if (!maps.importance.empty()) add(maps.importance[layer].data(), maps.importance[layer].size() * sizeof(float));
  }
  std::byte* const at = memory_.reserve(staging.bytes());
  check(cudaMemcpyAsync(at, staging.at(0), staging.bytes(), cudaMemcpyHostToDevice, stream), "copying a gate to the device");
  check(cudaStreamSynchronize(stream), "waiting for the device");
  size_t next = 0;
  for (size_t layer = 0; layer < maps.layers.size(); ++layer) {
    GateTable& table = layers_.emplace_back(GateTable{});
    for (size_t i = 0; i < GateMaps::kDepth; ++i) {
      table.weight[i] = reinterpret_cast<const uint32_t*>(at + offsets[next++]);
      table.bias[i] = reinterpret_cast<const float*>(at + offsets[next++]);
    }
    if (!maps.importance.empty()) table.importance = reinterpret_cast<const float*>(at + offsets[next++]);
  }
}

void score_tokens(int64_t n_kv_heads, int64_t head_dim, const DeviceGate* gate, std::span<const TokenScoring> layers,
                  PageWorkspace& workspace, cudaStream_t stream) {
  if (gate != nullptr && (gate->n_kv_heads() != n_kv_heads || gate->head_dim() != head_dim)) {
    throw std::invalid_argument("CUDA kernels: expected a gate of " + std::to_string(n_kv_heads) + " KV heads of " +
                                std::to_string(head_dim) + ", found " + std::to_string(gate->n_kv_heads()) + " of " +
                                std::to_string(gate->head_dim()));
  }
  const auto add_tiles = [&](bool importance) {
    workspace.rows.clear();
    for (const TokenScoring& layer : layers) {
      float* const out = importance ? layer.importance : layer.scores;
      for (int64_t done = 0, some = 0; out != nullptr && done < layer.n; done += some) {
        const int64_t token = layer.first + done;
        const KvSegment& page = layer.pages[static_cast<size_t>(token / kPageTokens)];
        check_dense(n_kv_heads, head_dim, page);
        ScoreTile tile = {};
        some = std::min(layer.n - done, kPageTokens - token % kPageTokens);
        tile.k = static_cast<const unsigned char*>(page.k);
        tile.v = static_cast<const unsigned char*>(page.v);
        tile.head_stride = page.head_stride;
        tile.first = static_cast<int32_t>(token % kPageTokens);
        tile.n = static_cast<int32_t>(some);
        if (gate != nullptr) {
          tile.gate = gate->layer(layer.layer);
          tile.angles = layer.angles + done * head_dim;
        }
        for (int64_t head = 0; head < (importance ? gate->importance_heads() : n_kv_heads); ++head) {
          tile.head = static_cast<int32_t>(head);
          tile.out = out + head * layer.n + done;
          append_row(tile, &workspace.rows);
        }
      }
    }
    return rows_of<ScoreTile>(workspace.rows);
  };
  const auto dim = static_cast<int>(head_dim);
  const auto tiles = add_tiles(false);
  const auto blocks = static_cast<int64_t>(tiles.size());
  const ScoreTile* const table = workspace.jobs.send(tiles, stream);
  if (gate == nullptr) {
    launch(norm_kernel, "key norms", blocks, kThreads, kPage * sizeof(float), stream, table, dim);
    return;
  }
  launch(gate_kernel, "gate scores", blocks, kThreads, kPage * kGateRow, stream, table, dim);
  const auto important = add_tiles(true);
  launch(importance_kernel, "gate importance", static_cast<int64_t>(important.size()), kThreads, kPage * sizeof(float), stream,
         workspace.jobs.send(important, stream), static_cast<int>(n_kv_heads), dim);
}

void study_pages(int64_t head_dim, std::span<const PageStats> pages, PageWorkspace& workspace, cudaStream_t stream) {
  workspace.rows.clear();
  for (const PageStats& page : pages) {
    check_dense(page.n_heads, head_dim, page.page);
    check_tokens(page.first, page.n);
    for (int64_t head = 0; head < page.n_heads; ++head) {
      const auto of = [&](auto* results, int64_t each) { return results == nullptr ? nullptr : results + head * each; };
      const int64_t offset = head * page.page.head_stride;
      append_row(Study{static_cast<const unsigned char*>(page.page.k) + offset, static_cast<const unsigned char*>(page.page.v) + offset,
                       static_cast<int32_t>(page.first), static_cast<int32_t>(page.n), of(page.k_range, head_dim),
                       of(page.v_range, page.n), of(page.k_squares, head_dim), of(page.v_squares, 1)},
                 &workspace.rows);
    }
  }
  const auto rows = rows_of<Study>(workspace.rows);
  launch(study_kernel, "study_pages", static_cast<int64_t>(rows.size()), kThreads, kWarps * sizeof(double), stream,
         workspace.jobs.send(rows, stream), static_cast<int>(head_dim));
}

void multiply_keys(int64_t head_dim, std::span<const KeyProducts> products, PageWorkspace& workspace, cudaStream_t stream) {
  workspace.rows.clear();
  check_shape(shape_of(1, head_dim));
  for (const KeyProducts& from : products) {
    check_tokens(from.first, from.n);
    if (from.n == 0 || from.n_queries == 0) continue;
    Product row = {};
    row.page = head_row(head_dim, from.page, from.head);
    if (from.residual != nullptr) {
      row.residual = head_row(head_dim, *from.residual, from.head);
      row.residual_columns = static_cast<int32_t>(from.residual_columns);
    }
    row.first = static_cast<int32_t>(from.first);
    row.n = static_cast<int32_t>(from.n);
    row.n_queries = static_cast<int32_t>(from.n_queries);
    row.q = from.q;
    row.out = from.out;
    row.out_stride = from.out_stride;
    append_row(row, &workspace.rows);
  }
  const auto rows = rows_of<Product>(workspace.rows);
  launch(products_kernel, "multiply_keys", static_cast<int64_t>(rows.size()), kThreads,
         static_cast<size_t>(kPageTokens * (head_dim + 1)) * sizeof(float), stream, workspace.jobs.send(rows, stream),
         static_cast<int>(head_dim));
}

}  // namespace smartkv::kernels::cuda
