// The model of tensor-parallel rank 0, which its users see as the whole model. The other ranks repeat on their caches
// whatever is done to the caches here.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "cache/page_pool.h"
#include "engine/model/model.h"
#include "engine/parallel/part_model.h"
#include "engine/parallel/rank_link.h"
#include "engine/parallel/rank_processes.h"

namespace smartkv {

// The engine thread calls forward() and idle(). The other methods may be called from any thread.
class LeadingModel final : public Model {
 public:
  // Waits until all ranks have loaded. `processes` are those of the other ranks, whose end is reported by link->lose().
  // It is null if the caller owns them. Throws ModelError if a rank could not load, and RankError.
  LeadingModel(std::unique_ptr<PartModel> part, std::shared_ptr<RankLink> link,
               std::unique_ptr<RankProcesses> processes = nullptr);
  ~LeadingModel() override;

  const ModelConfig& config() const override { return part_->config(); }
  // Throws RankError once a rank is lost. A failure of a pass as a whole counts as a loss, because the state of the
  // other ranks is then unknown.
  void forward(std::span<const SequenceInput> batch, float* logits) override;
  bool batch_invariant() const override { return part_->batch_invariant(); }
  bool samples_tokens() const override { return part_->samples_tokens(); }
  void rope_angles(int64_t position, float* cos, float* sin) const override { part_->rope_angles(position, cos, sin); }
  const float* attention_sinks(int64_t layer) const override { return part_->attention_sinks(layer); }
  int64_t weight_bytes() const override { return weight_bytes_; }  // sum over all ranks
  const std::shared_ptr<kernels::KvBackend>& kv_backend() const override { return part_->kv_backend(); }
  // Throws CacheError for policies that do not support KV heads on different ranks.
  std::unique_ptr<KvCachePolicy> make_policy(const PolicyContext& context, const nlohmann::json& spec) const override;
  std::shared_ptr<ModelHeads> heads() const override { return part_->heads(); }
  void idle() override;
  int64_t ranks() const override { return link_->group().size(); }
  std::string lost() const override { return link_->lost(); }
  void on_lost(std::function<void()> call) override { link_->on_lost(std::move(call)); }

 private:
  // Returns the pool, or null if there is none yet, and the bytes in use without excess_.
  std::pair<PagePool*, int64_t> held_here() const;
  // Runs a pass on all ranks. Returns the failure of a sequence whose input has no place for it, or null. Throws what
  // fails the pass as a whole.
  std::exception_ptr pass(std::span<const SequenceInput> batch, float* logits);

  std::unique_ptr<PartModel> part_;
  std::shared_ptr<RankLink> link_;
  mutable std::mutex pool_mutex_;  // guards the initialisation of pool_ and excess_
  mutable std::shared_ptr<PagePool> pool_;
  // Charge for the rank that holds most: the bytes that it held beyond this rank's at the end of the last pass.
  mutable std::unique_ptr<PoolCharge> excess_;
  std::unique_ptr<RankProcesses> processes_;
  int64_t weight_bytes_ = 0;
};

// Collective. Exchanges how many bytes of weights each rank has loaded, and returns the sum. `weight_bytes` is this
// rank's number, negative if it could not load. Throws ModelError naming the first rank that could not load.
int64_t meet_loaded(RankGroup& ranks, int64_t weight_bytes);

}  // namespace smartkv
