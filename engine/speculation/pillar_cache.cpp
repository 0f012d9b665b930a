#include "engine/speculation/pillar_cache.h"

#include <nlohmann/json.hpp>

#include "cache/boundaries.h"
#include "cache/layered_cache.h"
#include "cache/parameters.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;
using kernels::KvSegment;

int64_t state_bytes(const CacheShape& shape, int64_t chosen) {
  return shape.n_layers * shape.n_kv_heads * chosen * static_cast<int64_t>(sizeof(int32_t));
}

// Returns the most rows after the chosen ones: rows of a verification, then rows of the draft that follows it.
int64_t rows_after(const PillarOptions& options) { return 2 * (options.drafted + 1); }

// Writes the positions of the `n` tokens with the greatest mass in ascending order. The last kRecent tokens are always
// among them. Later tokens are preferred among those of equal mass.
void best(std::span<const float> mass, int64_t n, int32_t* positions) {
  const auto size = static_cast<int64_t>(mass.size());
  const int64_t older = size - std::min({size, n, PillarCache::kRecent});
  int64_t left = n - (size - older);
  float threshold = 0;
  if (left > 0 && left < older) {
    std::vector<float> order(mass.begin(), mass.begin() + older);
    std::nth_element(order.begin(), order.begin() + left - 1, order.end(), std::greater<>());
    threshold = order[static_cast<size_t>(left - 1)];
  }
  int64_t equal = left - std::count_if(mass.begin(), mass.begin() + older, [&](float m) { return m > threshold; });
  int64_t skipped = std::count(mass.begin(), mass.begin() + older, threshold) - equal;
  for (int64_t i = 0; i < size; ++i) {
    const float m = mass[static_cast<size_t>(i)];
    const bool takes = i >= older || (left > 0 && (m > threshold || (m == threshold && skipped-- <= 0)));
    if (takes) *positions++ = static_cast<int32_t>(i);
  }
}

// Returns the place of a token in a dense page. It is const in spirit: the caller only reads it.
kernels::TokenPlace place(const KvSegment& page, int64_t head, int64_t slot) {
  const auto of_head = [&](const void* pages) {
    return const_cast<std::byte*>(static_cast<const std::byte*>(pages)) + head * page.head_stride;
  };
  return {of_head(page.k), of_head(page.v), static_cast<int32_t>(slot)};
}

class PillarPolicy final : public KvCachePolicy {
 public:
  PillarPolicy(const PolicyContext& context, const PillarOptions& options) : context_(&context), options_(options) {
    if (context.window.n_layers > 0) windows_ = make_window_policy(context);
  }
  std::string_view name() const override { return kPillarAttn; }
  int64_t max_bytes(int64_t prompt_tokens, int64_t n_tokens) const override {
    return PillarCache::max_bytes(context_->shape, options_, n_tokens) +
           (windows_ == nullptr ? 0 : windows_->max_bytes(prompt_tokens, n_tokens));
  }
  std::unique_ptr<SequenceCache> new_sequence(int64_t prompt_tokens) const override {
    return std::make_unique<PillarCache>(*context_, options_, prompt_tokens);
  }

 private:
  const PolicyContext* context_;
  PillarOptions options_;
  std::unique_ptr<KvCachePolicy> windows_;  // null if no layer has a window
};

}  // namespace

PillarCache::PillarCache(const PolicyContext& context, const PillarOptions& options, int64_t prompt_tokens)
    : context_(&context),
      options_(options),
      prompt_tokens_(prompt_tokens),
      rows_(static_cast<size_t>(context.shape.n_layers), DenseLayer(context.pool)),
      chosen_(static_cast<size_t>(context.shape.n_layers)),
      state_(context.pool) {}

PillarCache::PillarCache(const PillarCache& other) = default;

std::unique_ptr<SequenceCache> PillarCache::fork() const {
  auto copy = std::unique_ptr<PillarCache>(new PillarCache(*this));
  if (windows_ != nullptr) copy->windows_ = windows_->fork();
  return copy;
}

int64_t PillarCache::max_bytes(const CacheShape& shape, const PillarOptions& options, int64_t n_tokens) {
  const int64_t chosen = std::min(options.tokens, n_tokens);
  return dense_bytes(shape, chosen + std::min(rows_after(options), n_tokens)) + state_bytes(shape, chosen);
}

int64_t PillarCache::max_growth(int64_t n) const {
  const int64_t chosen = std::min(options_.tokens, tokens_ + n);
  const int64_t rows = std::max(this->rows(tokens_), chosen + std::min(rows_after(options_), tokens_ + n));
  int64_t bytes = std::max<int64_t>(0, state_bytes(shape(), chosen) - state_.bytes());
  for (const DenseLayer& layer : rows_) bytes += layer.growth(0, rows);
  if (windows_ != nullptr) bytes += windows_->max_growth(n);
  return bytes;
}

void PillarCache::reserve(int64_t n) {
  for (DenseLayer& layer : rows_) layer.reserve(rows(tokens_), rows(tokens_ + n));
  if (windows_ != nullptr) windows_->reserve(n);
}

void PillarCache::advance(int64_t n) {
  tokens_ += n;
  if (windows_ != nullptr) windows_->advance(n);
}

void PillarCache::follow_target(int64_t n, const SequenceCache* windows) {
  tokens_ += n;
  windows_ = windows == nullptr ? nullptr : windows->fork();
}

int64_t PillarCache::next_boundary() const { return windows_ == nullptr ? kNoBoundary : windows_->next_boundary(); }

void PillarCache::write(int64_t layer, const KvRows& rows) {
  if (layer >= shape().n_layers) return windows_->write(layer - shape().n_layers, rows);
  rows_[static_cast<size_t>(layer)].write(this->rows(tokens_ + rows.first), rows);
}

void PillarCache::view(int64_t layer, int64_t n_new, std::vector<KvSegment>* segments) const {
  if (layer >= shape().n_layers) return windows_->view(layer - shape().n_layers, n_new, segments);
  rows_[static_cast<size_t>(layer)].append_view(rows(tokens_ + n_new), segments);
}

void PillarCache::check_uncommitted(const std::string& call, int64_t n_tokens) const {
  if (n_tokens >= committed_ && n_tokens <= tokens_) return;
  throw CacheError("pillar_attn: " + call + ": expected a token count in [" + std::to_string(committed_) + ", " +
                   std::to_string(tokens_) + "], found " + std::to_string(n_tokens));
}

void PillarCache::truncate(int64_t n_tokens) {
  check_uncommitted("truncate", n_tokens);
  if (windows_ != nullptr) windows_->truncate(n_tokens);
  tokens_ = n_tokens;
  for (DenseLayer& layer : rows_) layer.truncate(rows(n_tokens));
}

void PillarCache::commit(int64_t n_tokens) {
  check_uncommitted("commit", n_tokens);
  if (windows_ != nullptr) windows_->commit(n_tokens);
  committed_ = n_tokens;
}

std::vector<int64_t> PillarCache::positions(int64_t layer, int64_t head) const {
  if (layer >= shape().n_layers) return windows_->positions(layer - shape().n_layers, head);
  const std::vector<int32_t>& of_layer = chosen_[static_cast<size_t>(layer)];
  const auto begin = of_layer.begin() + head * n_chosen_;
  std::vector<int64_t> positions(begin, begin + n_chosen_);
  for (int64_t i = first_; i < tokens_; ++i) positions.push_back(i);
  return positions;
}

CacheStats PillarCache::stats() const {
  CacheStats stats;
  stats.tokens = tokens_;
  stats.tokens_kept = rows(tokens_);
  stats.bytes = state_.bytes();
  for (const DenseLayer& layer : rows_) {
    stats.bytes += layer.bytes();
    stats.shared_bytes += layer.shared_bytes();
  }
  stats.full_bytes = dense_bytes(shape(), tokens_);
  if (windows_ != nullptr) stats.add_windows(windows_->stats());
  return stats;
}

TokenRange PillarCache::chooses(int64_t n) const {
  const int64_t end = tokens_ + n;
  if (tokens_ >= prompt_tokens_ && n <= options_.drafted + 1) return {tokens_, tokens_ + 1};
  return end >= prompt_tokens_ ? TokenRange{end - 1, end} : TokenRange{};
}

void PillarCache::choose(int64_t layer, const Probe& probe, int64_t n, std::span<const KvSegment> target) {
  const int64_t end = tokens_ + n, heads = shape().n_kv_heads;
  int64_t entries = 0;
  for (const KvSegment& segment : target) {
    const bool plain = segment.format == KvSegment::Format::kDense && segment.kv_head < 0 && segment.bias == nullptr;
    if (plain && entries % kPageTokens == 0) entries += segment.tokens;
  }
  if (entries != end) {
    throw CacheError("pillar_attn: expected a cache of " + std::to_string(end) + " dense tokens, found " +
                     std::to_string(entries));
  }
  first_ = probe.position;
  n_chosen_ = std::min(options_.tokens, first_);
  DenseLayer& rows = rows_[static_cast<size_t>(layer)];
  std::vector<int32_t>& chosen = chosen_[static_cast<size_t>(layer)];
  rows.reserve(0, this->rows(end));
  chosen.resize(static_cast<size_t>(heads * n_chosen_));
  const int64_t stride = static_cast<int64_t>(probe.mass.size()) / heads;
  context_->for_each(heads, [&](int64_t head) {
    best(probe.mass.subspan(static_cast<size_t>(head * stride), static_cast<size_t>(first_)), n_chosen_,
         chosen.data() + head * n_chosen_);
  });
  const int64_t blocks = (this->rows(end) + kPageTokens - 1) / kPageTokens;
  context_->for_each(heads * blocks, [&](int64_t i) {
    const int64_t head = i / blocks, from = i % blocks * kPageTokens;
    std::vector<kernels::TokenMove> moves;
    for (int64_t row = from; row < std::min(from + kPageTokens, this->rows(end)); ++row) {
      const int64_t at =
          row < n_chosen_ ? chosen[static_cast<size_t>(head * n_chosen_ + row)] : first_ + row - n_chosen_;
      moves.push_back(
          {place(target[static_cast<size_t>(at / kPageTokens)], head, at % kPageTokens), rows.place(row, head)});
    }
    context_->pool->backend()->move(shape().type, shape().head_dim, moves);
  });
  if (layer + 1 < shape().n_layers) return;
  committed_ = first_ + 1;  // the token of the query is already accepted
  state_.set(state_bytes(shape(), n_chosen_));
}

PillarMirror::PillarMirror(SequenceCache* target, PillarCache* draft)
    : ForwardingCache({target, draft}), target_(target), draft_(draft) {
  show(target->tokens() - draft->tokens());  // earlier tokens need no rows
}

void PillarMirror::show(int64_t n) {
  const auto* layered = dynamic_cast<const LayeredCache*>(target_);
  draft_->follow_target(n, layered == nullptr ? nullptr : &layered->windows());
}

void PillarMirror::advance(int64_t n) {
  target_->advance(n);
  show(n);
}

void PillarMirror::reserve(int64_t n) {
  target_->reserve(n);
  n_ = n;
}

void PillarMirror::observe(int64_t layer, const Probe& probe) {
  const auto contains = [&](const TokenRange& range) {
    return probe.position >= range.first && probe.position < range.end;
  };
  // The target's probes depend on positions only, so a pass that ended at this position would have the same ones.
  if (contains(target_->probes(probe.position + 1 - tokens()))) target_->observe(layer, probe);
  if (!contains(draft_->chooses(n_))) return;
  view_.clear();
  target_->view(layer, n_, &view_);
  draft_->choose(layer, probe, n_, view_);
}

bool is_pillar(const nlohmann::json& kv_cache) {
  return (kv_cache.is_object() && kv_cache.contains("policy") ? kv_cache.at("policy") : kv_cache) == kPillarAttn;
}

std::unique_ptr<KvCachePolicy> make_pillar_policy(const PolicyContext& context, const nlohmann::json& kv_cache,
                                                  int64_t drafted) {
  if (context.shape.n_layers == 0) {
    throw CacheError("kv_cache: policy \"pillar_attn\" needs a layer with full attention, found a sliding_window of " +
                     std::to_string(context.window.tokens) + " tokens in all layers");
  }
  nlohmann::json parameters = kv_cache.is_object() ? kv_cache : nlohmann::json::object();
  parameters.erase("policy");
  Parameters read("pillar_attn", parameters);
  PillarOptions options;
  options.tokens = read.integer("tokens", options.tokens, 2 * PillarCache::kRecent, int64_t{1} << 24);
  options.drafted = drafted;
  read.done();
  return std::make_unique<PillarPolicy>(context, options);
}

}  // namespace smartkv
