// Rank 0's model: the whole one to those that use it. What is done to its caches the other ranks do to theirs.
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

class LeadingModel final : public Model {
 public:
  // Waits until all ranks have loaded. processes: of the others, told through link->lose(); null: somebody else's. Throws ModelError,
  // where a rank could not load, and RankError.
  LeadingModel(std::unique_ptr<PartModel> part, std::shared_ptr<RankLink> link, std::unique_ptr<RankProcesses> processes = nullptr);
  ~LeadingModel() override;

  const ModelConfig& config() const override { return part_->config(); }
  // Throws RankError once a rank is lost, which any failure of a pass as a whole counts as: where the others are is then unknown.
  void forward(std::span<const SequenceInput> batch, float* logits) override;
  bool batch_invariant() const override { return part_->batch_invariant(); }
  void rope_angles(int64_t position, float* cos, float* sin) const override { part_->rope_angles(position, cos, sin); }
  int64_t weight_bytes() const override { return weight_bytes_; }  // of all ranks
  const std::shared_ptr<kernels::KvBackend>& kv_backend() const override { return part_->kv_backend(); }
  // Refuses policies that cannot have KV heads on different ranks.
  std::unique_ptr<KvCachePolicy> make_policy(const PolicyContext& context, const nlohmann::json& spec) const override;
  std::shared_ptr<ModelHeads> heads() const override { return part_->heads(); }
  void idle() override;
  int64_t ranks() const override { return link_->group().size(); }
  std::string lost() const override { return link_->lost(); }
  void on_lost(std::function<void()> call) override { link_->on_lost(std::move(call)); }

 private:
  std::pair<PagePool*, int64_t> held_here() const;  // the pool, if there is one, and its bytes less the excess
  // Returns a failure that has no place to go; throws what fails the pass as a whole.
  std::exception_ptr pass(std::span<const SequenceInput> batch, float* logits);

  std::unique_ptr<PartModel> part_;
  std::shared_ptr<RankLink> link_;
  // In the pool, on behalf of the rank that holds most: what it held more than this one at the end of the last pass.
  mutable std::mutex pool_mutex_;  // until there is one
  mutable std::shared_ptr<PagePool> pool_;
  mutable std::unique_ptr<PoolCharge> excess_;
  std::unique_ptr<RankProcesses> processes_;
  int64_t weight_bytes_ = 0;
};

// Tells all ranks how many bytes of weights each has, and whether it has loaded at all; returns the sum. Throws ModelError naming the
// ranks that have not. weight_bytes: this rank's; negative: it has not.
int64_t meet_loaded(RankGroup& ranks, int64_t weight_bytes);

}  // namespace smartkv
