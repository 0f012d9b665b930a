#include "lab/evaluation/simulated_policy.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "cache/forwarding_cache.h"
#include "cache/layered_cache.h"
#include "cache/parameters.h"
#include "cache/policies/full/full.h"

namespace smartkv {
namespace {

// K and V of the tokens that a tile lacks yet: f32 [n_layers, tile, n_kv_heads * head_dim].
struct OpenTile {
  std::vector<float> k, v;
};

// A format with tiles of one token changes rows as they are written. Otherwise the tokens of a tile stay uncommitted in
// the full cache until the tile is full, which is a boundary; then they are written again.
class SimulatedCache final : public ForwardingCache {
 public:
  SimulatedCache(std::shared_ptr<const SimulatedFormat> format, const CacheShape& shape,
                 std::unique_ptr<SequenceCache> full)
      : ForwardingCache({full.get()}), format_(std::move(format)), shape_(shape), full_(std::move(full)) {
    if (format_->tile == 1) return;
    open_.k.resize(static_cast<size_t>(shape.n_layers * format_->tile * width()));
    open_.v.resize(open_.k.size());
  }

  void write(int64_t layer, const KvRows& rows) override {
    if (format_->tile > 1) {
      for (int64_t i = 0; i < rows.n; ++i) {
        const int64_t at = tile_row(layer, tokens() + rows.first + i);
        std::copy_n(rows.k + i * rows.stride, width(), open_.k.data() + at);
        std::copy_n(rows.v + i * rows.stride, width(), open_.v.data() + at);
      }
      return full_->write(layer, rows);
    }
    if (format_->is_exact(layer, shape_.n_layers)) return full_->write(layer, rows);
    std::vector<float> k(static_cast<size_t>(rows.n * width())), v(k.size());
    for (int64_t i = 0; i < rows.n; ++i) {
      std::copy_n(rows.k + i * rows.stride, width(), k.data() + i * width());
      std::copy_n(rows.v + i * rows.stride, width(), v.data() + i * width());
    }
    for (int64_t i = 0; i < rows.n * shape_.n_kv_heads; ++i)
      format_->round_trip(layer, k.data() + i * shape_.head_dim, v.data() + i * shape_.head_dim);
    write_now(layer, k, v, rows.first, rows.n);
  }
  int64_t committed() const override { return committed_; }
  int64_t next_boundary() const override {
    const int64_t inner = full_->next_boundary();
    return format_->tile == 1 ? inner : std::min(inner, (committed_ / format_->tile + 1) * format_->tile);
  }
  void truncate(int64_t n_tokens) override {
    if (n_tokens < committed_) throw CacheError("simulated: committed tokens cannot be truncated");
    full_->truncate(n_tokens);
  }
  void commit(int64_t n_tokens) override {
    if (format_->tile == 1) {
      full_->commit(n_tokens);
    } else if (n_tokens == next_boundary()) {
      encode_tile();
      full_->commit(n_tokens);
    }
    committed_ = n_tokens;
  }
  CacheStats stats() const override {
    CacheStats stats = full_->stats();
    const int64_t coded = std::max<int64_t>(0, coded_end() - format_->exact_tokens);
    const int64_t exact_layers = std::min(shape_.n_layers, 2 * format_->exact_layers);
    const int64_t dense = shape_.bytes_per_token() / shape_.n_layers;  // of a token and layer
    const int64_t coded_layers = shape_.n_layers - exact_layers;
    stats.bytes = exact_layers * stats.tokens * dense +
                  coded_layers * ((stats.tokens - coded) * dense +
                                  coded / format_->tile * format_->tile_bytes * shape_.n_kv_heads);
    stats.shared_bytes = 0;
    return stats;
  }
  std::unique_ptr<SequenceCache> fork() const override { return copy(full_->fork()); }
  std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const override {
    auto full = full_->resume(prompt_tokens);
    return full == nullptr ? nullptr : copy(std::move(full));
  }

 private:
  int64_t width() const { return shape_.n_kv_heads * shape_.head_dim; }
  int64_t tile_row(int64_t layer, int64_t position) const {
    return (layer * format_->tile + position % format_->tile) * width();
  }
  // Tokens before this one are encoded, apart from the first ones, which stay exact.
  int64_t coded_end() const { return format_->tile == 1 ? tokens() : committed_ / format_->tile * format_->tile; }
  void write_now(int64_t layer, const std::vector<float>& k, const std::vector<float>& v, int64_t first, int64_t n) {
    full_->write(layer, {k.data(), v.data(), width(), first, n});
  }
  // Replaces the tokens of the tile that ends at tokens().
  void encode_tile() {
    const int64_t tile = format_->tile, first = tokens() - tile;
    if (first < format_->exact_tokens) return;
    full_->truncate(first);
    full_->reserve(tile);
    const auto head = static_cast<size_t>(tile * shape_.head_dim);
    std::vector<float> k(static_cast<size_t>(tile * width())), v(k.size()), head_k(head), head_v(head);
    for (int64_t layer = 0; layer < shape_.n_layers; ++layer) {
      std::copy_n(open_.k.data() + tile_row(layer, 0), k.size(), k.data());
      std::copy_n(open_.v.data() + tile_row(layer, 0), v.size(), v.data());
      for (int64_t h = 0; h < shape_.n_kv_heads; ++h) {
        for (int64_t t = 0; t < tile; ++t) {
          std::copy_n(k.data() + t * width() + h * shape_.head_dim, shape_.head_dim,
                      head_k.data() + t * shape_.head_dim);
          std::copy_n(v.data() + t * width() + h * shape_.head_dim, shape_.head_dim,
                      head_v.data() + t * shape_.head_dim);
        }
        format_->round_trip(layer, head_k.data(), head_v.data());
        for (int64_t t = 0; t < tile; ++t) {
          std::copy_n(head_k.data() + t * shape_.head_dim, shape_.head_dim,
                      k.data() + t * width() + h * shape_.head_dim);
          std::copy_n(head_v.data() + t * shape_.head_dim, shape_.head_dim,
                      v.data() + t * width() + h * shape_.head_dim);
        }
      }
      write_now(layer, k, v, 0, tile);
    }
    full_->advance(tile);
  }
  std::unique_ptr<SimulatedCache> copy(std::unique_ptr<SequenceCache> full) const {
    auto other = std::make_unique<SimulatedCache>(format_, shape_, std::move(full));
    other->open_ = open_;
    other->committed_ = committed_;
    return other;
  }

  std::shared_ptr<const SimulatedFormat> format_;
  CacheShape shape_;
  std::unique_ptr<SequenceCache> full_;
  OpenTile open_;
  int64_t committed_ = 0;
};

class SimulatedPolicy final : public KvCachePolicy {
 public:
  SimulatedPolicy(SimulatedFormat format, const CacheShape& shape, std::unique_ptr<KvCachePolicy> full)
      : format_(std::make_shared<const SimulatedFormat>(std::move(format))), shape_(shape), full_(std::move(full)) {}
  std::string_view name() const override { return "simulated"; }
  int64_t max_bytes(int64_t prompt_tokens, int64_t n_tokens) const override {
    return full_->max_bytes(prompt_tokens, n_tokens);
  }
  std::unique_ptr<SequenceCache> new_sequence(int64_t prompt_tokens) const override {
    return std::make_unique<SimulatedCache>(format_, shape_, full_->new_sequence(prompt_tokens));
  }

 private:
  std::shared_ptr<const SimulatedFormat> format_;
  CacheShape shape_;
  std::unique_ptr<KvCachePolicy> full_;
};

// A full cache that records the ranges of what is written.
class RangeCache final : public ForwardingCache {
 public:
  RangeCache(SequenceCache* full, int64_t width, TensorRanges* ranges)
      : ForwardingCache({full}), width_(width), ranges_(ranges) {}

  void write(int64_t layer, const KvRows& rows) override {
    if (layer >= std::ssize(ranges_->k)) return ForwardingCache::write(layer, rows);  // a layer with a window
    float k = 0, v = 0;
    for (int64_t i = 0; i < rows.n; ++i) {
      for (int64_t j = i * rows.stride; j < i * rows.stride + width_; ++j) {
        k = std::max(k, std::abs(rows.k[j]));
        v = std::max(v, std::abs(rows.v[j]));
      }
    }
    {
      const std::lock_guard lock(mutex_);
      const auto at = static_cast<size_t>(layer);
      ranges_->k[at] = std::max(ranges_->k[at], k);
      ranges_->v[at] = std::max(ranges_->v[at], v);
    }
    ForwardingCache::write(layer, rows);
  }
  std::unique_ptr<SequenceCache> fork() const override {
    throw CacheError("simulated: a recording cache cannot be forked");
  }
  std::unique_ptr<SequenceCache> resume(int64_t) const override { return nullptr; }

 private:
  const int64_t width_;
  TensorRanges* ranges_;
  std::mutex mutex_;
};

}  // namespace

std::unique_ptr<KvCachePolicy> make_simulated_policy(const EvaluationModel& model, const nlohmann::json& spec,
                                                     const TensorRanges& ranges) {
  nlohmann::json parameters = spec;
  parameters.erase("policy");
  Parameters read("simulated", parameters);
  const std::string name = read.text("format", "");
  read.done();
  SimulatedFormat format = simulated_format(name, model.shape, ranges);
  if (model.context == nullptr) throw EvaluationError("simulated: expected a policy context, found none");
  return add_windows(*model.context,
                     std::make_unique<SimulatedPolicy>(std::move(format), model.shape,
                                                       make_full_policy(*model.context, nlohmann::json::object())));
}

TensorRanges measure_ranges(const EvaluationModel& model, std::span<const TokenId> tokens) {
  TensorRanges ranges;
  ranges.k.resize(static_cast<size_t>(model.shape.n_layers));
  ranges.v.resize(ranges.k.size());
  const auto policy = model.make_policy("full");
  const auto full = policy->new_sequence(static_cast<int64_t>(tokens.size()));
  RangeCache recording(full.get(), model.shape.n_kv_heads * model.shape.head_dim, &ranges);
  feed(model.model, recording, tokens, 0, nullptr);
  return ranges;
}

}  // namespace smartkv
