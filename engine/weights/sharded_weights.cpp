#include "engine/weights/sharded_weights.h"

#include <algorithm>

#include "engine/weights/reshaped_weights.h"

namespace smartkv {
namespace {

// Returns the shard's range of MLP columns. Shards get whole blocks of 32 columns if each can have one, because
// pad_weights() does not change a multiple of 32.
ShardRange intermediate_range(int64_t size, const Shard& shard) {
  constexpr int64_t kBlock = 32;
  const int64_t block = size >= kBlock * shard.size ? kBlock : 1;
  const ShardRange blocks = shard_range((size + block - 1) / block, shard);
  const int64_t first = blocks.first * block;
  return {first, std::min(size, first + blocks.n * block) - first};
}

class ShardedWeights final : public ReshapedWeights {
 public:
  ShardedWeights(const Weights& weights, const Shard& shard)
      : ReshapedWeights(weights, shard_config(weights.config(), shard)), head_dim_(weights.config().head_dim) {
    const ModelConfig& c = weights.config();
    const ShardRange kv = shard_range(c.n_kv_heads, shard);
    const int64_t group = c.n_heads / c.n_kv_heads;
    kv_ = {kv.first * c.head_dim, kv.n * c.head_dim};
    q_ = {kv_.first * group, kv_.n * group};
    intermediate_ = intermediate_range(c.intermediate_size, shard);
  }

  std::optional<TensorView> find(std::string_view name) const override {
    std::optional<TensorView> view = weights_.find(name);
    const Cut cut = cut_of(name);
    if (!view || (!cut.rows && !cut.columns)) return view;
    TensorView part = {view->name, TensorType::kF32, view->shape, {}};
    if (cut.rows) part.shape.front() = cut.rows->n;
    if (cut.columns) part.shape.back() = cut.columns->n;
    return part;
  }
  int64_t file_row(std::string_view name, int64_t row) const override {
    return cut_of(name).rows ? row : weights_.file_row(name, row);
  }

  void read_rows(std::string_view name, int64_t first, int64_t count, float* out) const override {
    const Cut cut = cut_of(name);
    const std::optional<TensorView> view = weights_.find(name);
    if (!view || (!cut.rows && !cut.columns)) return weights_.read_rows(name, first, count, out);
    if (view->shape.size() == 1) {
      const std::vector<float> values = weights_.read(name, view->shape);
      std::copy_n(values.begin() + cut.rows->first, cut.rows->n, out);
      return;
    }
    const int64_t from = first + (cut.rows ? cut.rows->first : 0);
    if (!cut.columns) return weights_.read_rows(name, from, count, out);
    const int64_t width = view->row_elements();
    std::vector<float> rows(static_cast<size_t>(count * width));
    weights_.read_rows(name, from, count, rows.data());
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(rows.begin() + i * width + cut.columns->first, cut.columns->n, out + i * cut.columns->n);
    }
  }

 private:
  struct Cut {
    std::optional<ShardRange> rows, columns;
  };

  // Returns which rows or columns of a tensor the shard has. A tensor-parallel rank computes its summand of the
  // residual stream from its own columns. The biases that are added after the sum are the same on every tensor-parallel
  // rank.
  Cut cut_of(std::string_view name) const {
    const auto is = [&](std::string_view projection) { return name.find(projection) != std::string_view::npos; };
    const bool bias = name.ends_with(".bias");
    Cut cut;
    if (is(".q_proj.")) cut.rows = q_;
    if (name.ends_with(".sinks")) cut.rows = {q_.first / head_dim_, q_.n / head_dim_};
    if (is(".k_proj.") || is(".v_proj.")) cut.rows = kv_;
    if (is(".o_proj.") && !bias) cut.columns = q_;
    if (is(".gate_proj.") || is(".up_proj.")) cut.rows = intermediate_;
    if (is(".down_proj.") && !bias) cut.columns = intermediate_;
    return cut;
  }

  int64_t head_dim_;
  ShardRange q_, kv_, intermediate_;  // Rows of the projections.
};

}  // namespace

ShardRange shard_range(int64_t n, const Shard& shard) {
  const int64_t each = n / shard.size, more = n % shard.size;
  return {shard.rank * each + std::min(shard.rank, more), each + (shard.rank < more ? 1 : 0)};
}

std::vector<int64_t> shard_sizes(int64_t n, int64_t size) {
  std::vector<int64_t> sizes;
  for (int64_t rank = 0; rank < size; ++rank) sizes.push_back(shard_range(n, {rank, size}).n);
  return sizes;
}

void check_shards(const ModelConfig& config, int64_t size) {
  if (size > 1 && config.n_experts > 0) {
    throw ModelError("tensor_parallel: expected 1 for " + config.name + ", which has experts (" + config.architecture +
                     "), found " + std::to_string(size));
  }
  const int64_t most = std::min(config.n_kv_heads, config.intermediate_size);
  if (size > most) {
    throw ModelError("tensor_parallel: expected at most " + std::to_string(most) + " ranks, one per KV head of " +
                     config.name + ", found " + std::to_string(size));
  }
  if (size > 1 && config.qk_norm == QkNorm::kProjection) {
    throw ModelError("tensor_parallel: expected 1 for " + config.name + ", whose query and key norms span all heads (" +
                     config.architecture + "), found " + std::to_string(size));
  }
}

ModelConfig shard_config(ModelConfig config, const Shard& shard) {
  const int64_t group = config.n_heads / config.n_kv_heads;
  config.n_kv_heads = shard_range(config.n_kv_heads, shard).n;
  config.n_heads = config.n_kv_heads * group;
  config.intermediate_size = intermediate_range(config.intermediate_size, shard).n;
  return config;
}

std::unique_ptr<Weights> shard_weights(const Weights& weights, const Shard& shard) {
  return std::make_unique<ShardedWeights>(weights, shard);
}

}  // namespace smartkv
