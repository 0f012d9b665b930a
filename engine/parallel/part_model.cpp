#include "engine/parallel/part_model.h"

namespace smartkv {

std::unique_ptr<PartModel> make_part(const Weights& weights, const ModelOptions& options, ThreadPool& pool,
                                     RankGroup& ranks, const BackendLoader& load,
                                     std::shared_ptr<kernels::KvBackend> kv_backend) {
  check_shards(weights.config(), ranks.size());
  const std::unique_ptr<Weights> part = shard_weights(weights, shard_of(ranks));
  return std::make_unique<PartModel>(make_llama(*part, options, pool, load, std::move(kv_backend)), weights.config(),
                                     ranks);
}

}  // namespace smartkv
