#include <algorithm>

#include "cache/policies/gated_eviction/gate_jobs.h"
#include "kernels/attention_kernels.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/kv_backend.h"
#include "kernels/cuda/page_queue.h"
#include "kernels/cuda/page_values.h"
#include "kernels/cuda/platform.h"
#include "kernels/cuda/row_table.h"

namespace smartkv {
namespace {

using namespace kernels;
using namespace kernels::cuda;

// The maps of one layer: weights in bf16 as GateMaps packs them, biases, and the maps of importance.
struct GateTable {
  const uint32_t* weight[GateMaps::kDepth];
  const float* bias[GateMaps::kDepth];
  const float* importance;  // [importance_heads, features + 1]. Null if there are none.
};

constexpr int kHidden = static_cast<int>(GateMaps::kHidden);

// Tokens [first, first + n) of one KV head of a dense page. For importance: of all KV heads, and `head` is the
// importance head.
struct ScoreTile {
  const unsigned char* k;
  const unsigned char* v;
  int64_t head_stride;
  const float* angles;  // Angles from the first token of the tile on.
  GateTable gate;
  float* out;  // Results from the first token of the tile on.
  int32_t first, n, head;
};

// Channels 2 i and 2 i + 1 of a key before RoPE, and the channels half a head further.
struct FourChannels {
  float low[2], high[2];
};
__device__ __forceinline__ FourChannels unrotated(const uint32_t* k, const float* angles, int i, int slot,
                                                  int head_dim) {
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
      *reinterpret_cast<uint32_t*>(row + 8 * kGateRow) =
          pack_bf16(fmaxf(of[2] + bias0, 0.0f), fmaxf(of[3] + bias1, 0.0f));
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

// A gate in the memory of a CUDA device.
class CudaGate final : public UploadedGate {
 public:
  // Copies the maps to the device and waits until they are there.
  CudaGate(std::shared_ptr<const GateMaps> of, cudaStream_t stream) : UploadedGate(std::move(of)) {
    Staging staging;
    std::vector<size_t> offsets;
    const auto add = [&](const void* from, size_t bytes) { offsets.push_back(staging.add(from, bytes)); };
    for (size_t layer = 0; layer < maps->layers.size(); ++layer) {
      for (const GateMaps::Map& map : *maps->layers[layer]) {
        add(map.weight.data.data(), map.weight.data.size());
        add(map.bias.data(), map.bias.size() * sizeof(float));
      }
      if (maps->importance.empty()) continue;
      add(maps->importance[layer].data(), maps->importance[layer].size() * sizeof(float));
    }
    std::byte* const at = memory_.reserve(staging.bytes());
    check(cudaMemcpyAsync(at, staging.at(0), staging.bytes(), cudaMemcpyHostToDevice, stream), "copying a gate");
    check(cudaStreamSynchronize(stream), "waiting for the device");
    size_t next = 0;
    for (size_t layer = 0; layer < maps->layers.size(); ++layer) {
      GateTable& table = layers_.emplace_back(GateTable{});
      for (size_t i = 0; i < GateMaps::kDepth; ++i) {
        table.weight[i] = reinterpret_cast<const uint32_t*>(at + offsets[next++]);
        table.bias[i] = reinterpret_cast<const float*>(at + offsets[next++]);
      }
      if (!maps->importance.empty()) table.importance = reinterpret_cast<const float*>(at + offsets[next++]);
    }
  }

  const GateTable& layer(int64_t i) const { return layers_[static_cast<size_t>(i)]; }

 private:
  std::vector<GateTable> layers_;
  DeviceBuffer memory_;
};

class ScoreJobs final : public WaveJobs {
 public:
  void score(const CacheShape& shape, std::shared_ptr<const CudaGate> gate, std::span<const TokenScoring> layers,
             Staging& staging, ResultSpace& results) {
    CallStaging call(staging);
    const bool joins = !calls_.empty() && calls_.back().gate == gate && calls_.back().n_kv_heads == shape.n_kv_heads;
    if (!joins) calls_.push_back({gate, shape.n_kv_heads, {}});
    for (const TokenScoring& layer : layers) {
      const auto row = static_cast<size_t>(layer.n) * sizeof(float);
      const size_t importance = gate == nullptr ? 0 : static_cast<size_t>(gate->maps->importance_heads) * row;
      calls_.back().layers.push_back({layer,
                                      {layer.pages.begin(), layer.pages.end()},
                                      call.add(layer.angles, static_cast<size_t>(shape.head_dim) * row),
                                      results.add(layer.scores, static_cast<size_t>(shape.n_kv_heads) * row),
                                      results.add(layer.importance, importance)});
    }
  }
  void clear() override { calls_.clear(); }
  void run(int64_t head_dim, const WaveMemory& memory, PageWorkspace& workspace, cudaStream_t stream) override {
    for (const Call& call : calls_) run(call, head_dim, memory, workspace, stream);
  }

 private:
  struct Layer {
    TokenScoring job;
    std::vector<KvSegment> pages;
    size_t angles, scores, importance;
  };
  struct Call {
    std::shared_ptr<const CudaGate> gate;
    int64_t n_kv_heads;
    std::vector<Layer> layers;
  };

  static void run(const Call& call, int64_t head_dim, const WaveMemory& memory, PageWorkspace& workspace,
                  cudaStream_t stream) {
    const CudaGate* const gate = call.gate.get();
    const auto add_tiles = [&](bool importance) {
      workspace.rows.clear();
      for (const Layer& layer : call.layers) {
        const TokenScoring& job = layer.job;
        auto* const out = memory.output<float>(importance ? layer.importance : layer.scores);
        for (int64_t done = 0, some = 0; out != nullptr && done < job.n; done += some) {
          const int64_t token = job.first + done;
          const KvSegment& page = layer.pages[static_cast<size_t>(token / kPageTokens)];
          check_dense(call.n_kv_heads, head_dim, page);
          ScoreTile tile = {};
          some = std::min(job.n - done, kPageTokens - token % kPageTokens);
          tile.k = static_cast<const unsigned char*>(page.k);
          tile.v = static_cast<const unsigned char*>(page.v);
          tile.head_stride = page.head_stride;
          tile.first = static_cast<int32_t>(token % kPageTokens);
          tile.n = static_cast<int32_t>(some);
          if (gate != nullptr) {
            tile.gate = gate->layer(job.layer);
            tile.angles = memory.input<float>(layer.angles) + done * head_dim;
          }
          for (int64_t head = 0; head < (importance ? gate->maps->importance_heads : call.n_kv_heads); ++head) {
            tile.head = static_cast<int32_t>(head);
            tile.out = out + head * job.n + done;
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
    launch(importance_kernel, "gate importance", std::ssize(important), kThreads, kPage * sizeof(float), stream,
           workspace.jobs.send(important, stream), static_cast<int>(call.n_kv_heads), dim);
  }

  std::vector<Call> calls_;
};

class CudaGateKernels final : public GateKernels {
 public:
  explicit CudaGateKernels(DeviceKvBackend& backend) : backend_(backend) {}

  std::shared_ptr<const UploadedGate> upload(std::shared_ptr<const GateMaps> maps) override {
    std::shared_ptr<const UploadedGate> found;
    backend_.on_stream([&](cudaStream_t stream) {
      std::erase_if(gates_, [](const auto& gate) { return gate.expired(); });
      for (const auto& known : gates_) {
        const auto gate = known.lock();
        if (gate != nullptr && gate->maps == maps) found = gate;
      }
      if (found != nullptr) return;
      found = std::make_shared<const CudaGate>(std::move(maps), stream);
      gates_.push_back(found);
    });
    return found;
  }

  void score(const CacheShape& shape, std::shared_ptr<const UploadedGate> gate,
             std::span<const TokenScoring> layers) override {
    if (layers.empty()) return;
    const auto of_device = std::dynamic_pointer_cast<const CudaGate>(gate);
    if (of_device != gate) throw std::invalid_argument("CUDA kernels: expected a gate of this backend");
    if (gate != nullptr && (gate->maps->n_kv_heads != shape.n_kv_heads || gate->maps->head_dim != shape.head_dim)) {
      throw std::invalid_argument("CUDA kernels: expected a gate of " + std::to_string(shape.n_kv_heads) +
                                  " KV heads of " + std::to_string(shape.head_dim) + ", found " +
                                  std::to_string(gate->maps->n_kv_heads) + " of " +
                                  std::to_string(gate->maps->head_dim));
    }
    backend_.enqueue(shape.type, shape.head_dim, [&](PageQueue& queue) {
      for (const TokenScoring& layer : layers) {
        for (const KvSegment& page : layer.pages) queue.reads(page.k);
      }
      queue.jobs<ScoreJobs>().score(shape, of_device, layers, queue.staging(), queue.results());
    });
  }

 private:
  DeviceKvBackend& backend_;
  // Gates on the device. on_stream() guards them.
  std::vector<std::weak_ptr<const UploadedGate>> gates_;
};

}  // namespace

std::unique_ptr<GateKernels> make_cuda_gate_kernels(kernels::cuda::DeviceKvBackend& backend) {
  return std::make_unique<CudaGateKernels>(backend);
}

}  // namespace smartkv
