#include "cache/policies/gated_eviction/gate_jobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/rope.h"
#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

void score_layer(kernels::KvBackend& backend, ThreadPool& threads, const CacheShape& shape, const GateMaps* gate,
                 const TokenScoring& job) {
  const int64_t heads = shape.n_kv_heads, dim = shape.head_dim;
  const bool wants_values = job.importance != nullptr;
  std::vector<float> k(static_cast<size_t>(heads * job.n * dim)), v(wants_values ? k.size() : 0);
  // Calls task(head, from, end) in parallel for each of n_heads heads and each page. Tokens [from, end) of the job
  // lie in that page.
  const int64_t skipped = job.first / kPageTokens;
  const int64_t pages = (job.first + job.n + kPageTokens - 1) / kPageTokens - skipped;
  const auto for_pages = [&](int64_t n_heads, const auto& task) {
    threads.parallel_for(n_heads * pages, [&](int64_t i) {
      const int64_t start = (skipped + i % pages) * kPageTokens - job.first;
      task(i / pages, std::max<int64_t>(0, start), std::min(job.n, start + kPageTokens));
    });
  };
  for_pages(heads, [&](int64_t head, int64_t from, int64_t end) {
    const int64_t token = job.first + from, at = (head * job.n + from) * dim;
    const kernels::PageRead read{
        job.pages[token / kPageTokens],         head, 1, token % kPageTokens, end - from, k.data() + at,
        wants_values ? v.data() + at : nullptr, 0};
    backend.read(shape.type, dim, {&read, 1});
    backend.finish();
    for (int64_t i = from; i < end; ++i) {
      float* const key = k.data() + (head * job.n + i) * dim;
      if (gate != nullptr) {
        kernels::unrotate(job.angles + i * dim, dim, key);
      } else {
        job.scores[head * job.n + i] = std::sqrt(std::inner_product(key, key + dim, key, 0.0f));
      }
    }
  });
  if (gate == nullptr) return;
  gate_scores(threads, *gate, job.layer, k.data(), heads * job.n, job.scores);
  if (!wants_values) return;
  for_pages(gate->importance_heads, [&](int64_t head, int64_t from, int64_t end) {
    gate_importance(*gate, job.layer, head, k.data(), v.data(), job.n, from, end, job.importance + head * job.n);
  });
}

}  // namespace

std::shared_ptr<const UploadedGate> upload(const kernels::KvBackend& backend, std::shared_ptr<const GateMaps> maps) {
  auto* const device = kernels::find_kernels<GateKernels>(backend);
  return device == nullptr ? std::make_shared<const UploadedGate>(std::move(maps)) : device->upload(std::move(maps));
}

void score_tokens(kernels::KvBackend& backend, ThreadPool* threads, const CacheShape& shape,
                  const std::shared_ptr<const UploadedGate>& gate, std::span<const TokenScoring> layers) {
  if (auto* const device = kernels::find_kernels<GateKernels>(backend)) return device->score(shape, gate, layers);
  ThreadPool alone(1);
  ThreadPool& pool = threads != nullptr ? *threads : alone;
  const GateMaps* const maps = gate == nullptr ? nullptr : gate->maps.get();
  for (const TokenScoring& layer : layers) score_layer(backend, pool, shape, maps, layer);
}

}  // namespace smartkv
