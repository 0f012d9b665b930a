// A tensor-parallel rank's part of a model (engine/weights/sharded_weights.h), with the configuration of the whole
// model.
#pragma once

#include <memory>
#include <utility>

#include "engine/model/llama.h"
#include "engine/parallel/rank_group.h"
#include "engine/parallel/rank_heads.h"
#include "engine/weights/sharded_weights.h"

namespace smartkv {

// Its caches, and the CacheShape of its policies, have the KV heads of the part only.
class PartModel : public Model {
 public:
  // `part` is made from the result of shard_weights(), and `whole` is the configuration of the weights before that.
  // `ranks` outlives this and its policies.
  PartModel(std::unique_ptr<Model> part, const ModelConfig& whole, RankGroup& ranks)
      : part_(std::move(part)), config_(part_->config()), heads_(std::make_shared<RankHeads>(ranks, whole.n_kv_heads)) {
    config_.n_heads = whole.n_heads;
    config_.n_kv_heads = whole.n_kv_heads;
    config_.intermediate_size = whole.intermediate_size;
  }

  const ModelConfig& config() const override { return config_; }
  // Collective: all ranks run the same pass. Only rank 0 writes logits.
  void forward(std::span<const SequenceInput> batch, float* logits) override { part_->forward(batch, logits); }
  bool batch_invariant() const override { return part_->batch_invariant(); }
  bool samples_tokens() const override { return part_->samples_tokens(); }
  void rope_angles(int64_t position, float* cos, float* sin) const override { part_->rope_angles(position, cos, sin); }
  const float* attention_sinks(int64_t layer) const override { return part_->attention_sinks(layer); }
  int64_t weight_bytes() const override { return part_->weight_bytes(); }
  const std::shared_ptr<kernels::KvBackend>& kv_backend() const override { return part_->kv_backend(); }
  std::shared_ptr<ModelHeads> heads() const override { return heads_; }
  const std::shared_ptr<RankHeads>& rank_heads() const { return heads_; }

 private:
  std::unique_ptr<Model> part_;
  ModelConfig config_;
  std::shared_ptr<RankHeads> heads_;
};

// Returns the shard of the rank that calls.
inline Shard shard_of(const RankGroup& ranks) { return {ranks.rank(), ranks.size()}; }

// Cuts this rank's part out of `weights` and loads it. `load` makes a backend that adds up over `ranks`. Throws
// ModelError, also if the model cannot be cut into so many parts.
std::unique_ptr<PartModel> make_part(const Weights& weights, const ModelOptions& options, ThreadPool& pool,
                                     RankGroup& ranks, const BackendLoader& load,
                                     std::shared_ptr<kernels::KvBackend> kv_backend = nullptr);

}  // namespace smartkv
