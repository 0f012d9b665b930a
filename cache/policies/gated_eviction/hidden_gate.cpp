#include "cache/policies/gated_eviction/hidden_gate.h"

#include <algorithm>

#include "kernels/bf16.h"
#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

class HiddenGateScorer final : public HiddenScorer {
 public:
  explicit HiddenGateScorer(std::shared_ptr<const HiddenGate> gate) : gate_(std::move(gate)) {}
  std::string_view name() const override { return "learned"; }

  void score(const PolicyContext& context, int64_t layer, const void* rows, int64_t n, float* scores) const override {
    constexpr int64_t kMost = 512;  // Tokens; bounds the scratch.
    const int64_t width = gate_->hidden_size();
    ThreadPool alone(1);
    ThreadPool& threads = context.threads != nullptr ? *context.threads : alone;
    std::vector<uint16_t> rounded;
    for (int64_t first = 0; first < n; first += kMost) {
      const int64_t some = std::min(kMost, n - first);
      const uint16_t* x = static_cast<const uint16_t*>(rows) + first * width;
      if (context.shape.type == kernels::KvType::kF32) {
        const float* const exact = static_cast<const float*>(rows) + first * width;
        rounded.resize(static_cast<size_t>(some * width));
        std::transform(exact, exact + some * width, rounded.begin(), to_bf16);
        x = rounded.data();
      }
      gate_->score(threads, layer, x, some, scores + first * gate_->n_kv_heads());
    }
  }

 private:
  std::shared_ptr<const HiddenGate> gate_;
};

}  // namespace

TokenScorer HiddenGate::scorer(const PolicyContext& context) const {
  if (context.shape.n_kv_heads != n_kv_heads_) {
    throw CacheError("kv_cache.gate: expected a process that holds all " + std::to_string(n_kv_heads_) +
                     " KV heads for " + description() + ", found one with " + std::to_string(context.shape.n_kv_heads));
  }
  return std::make_shared<HiddenGateScorer>(shared_from_this());
}

}  // namespace smartkv
