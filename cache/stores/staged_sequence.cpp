#include "cache/stores/staged_sequence.h"

#include <numeric>

#include "cache/stores/staged_bytes.h"

namespace smartkv {

using kernels::kPageTokens;

StagedSequence::StagedSequence(const PolicyContext& context, const Boundaries& boundaries,
                               std::vector<std::unique_ptr<TokenStore>> stores)
    : context_(context),
      boundaries_(boundaries),
      boundary_(boundaries.after(0)),
      tail_(static_cast<size_t>(context.shape.n_layers), DenseLayer(context.pool)),
      stores_(std::move(stores)),
      scores_(context, hidden_scorer(stores_)) {}

StagedSequence::StagedSequence(const StagedSequence& other)
    : SequenceCache(other),
      context_(other.context_),
      boundaries_(other.boundaries_),
      boundary_(other.boundary_),
      tail_(other.tail_),
      scores_(other.scores_),
      tokens_(other.tokens_),
      committed_(other.committed_),
      may_share_(true) {
  for (const auto& store : other.stores_) stores_.push_back(store->fork());
  other.may_share_ = true;
}

std::unique_ptr<SequenceCache> StagedSequence::fork() const {
  return std::unique_ptr<SequenceCache>(new StagedSequence(*this));
}

void StagedSequence::reserve(int64_t n) {
  for (DenseLayer& layer : tail_) layer.reserve(tokens_, tokens_ + n);
  scores_.reserve(tokens_ + n);
}

void StagedSequence::write(int64_t layer, const KvRows& rows) { tail(layer).write(tokens_ + rows.first, rows); }

void StagedSequence::view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const {
  for (const auto& store : stores_) store->view(layer, segments);
  tail(layer).append_view(tokens_ + n_new, segments);
}

void StagedSequence::advance(int64_t n) {
  scores_.check(n);
  tokens_ += n;
  see_prompt();
}

void StagedSequence::see_prompt() {
  if (tokens_ > boundaries_.prompt_tokens) return;
  for (const auto& store : stores_) store->see(stage_view());
}

void StagedSequence::truncate(int64_t n_tokens) {
  if (n_tokens < committed_ || n_tokens > tokens_) {
    throw CacheError("truncate: expected a token count in [" + std::to_string(committed_) + ", " +
                     std::to_string(tokens_) + "], found " + std::to_string(n_tokens));
  }
  for (const auto& store : stores_) store->truncate(stage_view(), n_tokens);
  tokens_ = n_tokens;
  for (DenseLayer& layer : tail_) layer.truncate(n_tokens);
  scores_.truncate(n_tokens);
}

void StagedSequence::commit(int64_t n_tokens) {
  if (n_tokens < committed_ || n_tokens > tokens_ || n_tokens > boundary_) {
    throw CacheError("commit: expected a token count in [" + std::to_string(committed_) + ", " +
                     std::to_string(std::min(tokens_, boundary_)) + "], found " + std::to_string(n_tokens));
  }
  committed_ = n_tokens;
  if (n_tokens == boundary_) {
    if (n_tokens != tokens_) {
      throw CacheError("commit: token " + std::to_string(n_tokens) + " is a compaction boundary, but " +
                       std::to_string(tokens_) + " tokens were appended");
    }
    compact();
    boundary_ = boundaries_.after(n_tokens);
    see_prompt();  // At the next boundary more tokens of the prompt are evicted.
  }
}

void StagedSequence::compact() {
  const StageView view = stage_view();
  const int64_t first = view.tail_first, end = view.leaving();
  for (const auto& store : stores_) store->prepare(view);
  context_.for_each(shape().n_layers, [&](int64_t layer) {
    EvictedTokens tokens(*context_.pool, tail(layer), first, end);
    for (const auto& store : stores_) store->take(view, layer, &tokens);
    tail(layer).drop_before(end);  // A layer's lost tokens make room for the next layer's kept ones.
  });
  for (const auto& store : stores_) store->finish(view);
  scores_.drop_before(end);
}

bool StagedSequence::wants_check() const {
  return std::any_of(stores_.begin(), stores_.end(),
                     [&](const auto& store) { return store->wants_check(stage_view()); });
}

void StagedSequence::follow(const LogitCheck& check) {
  for (const auto& store : stores_) store->follow(check);
}

LogitCheck StagedSequence::judge(std::span<const float> exact, std::span<const float> own) {
  LogitCheck check;
  for (const auto& store : stores_) {
    if (store->judge(exact, own, &check)) break;
  }
  return check;
}

int64_t StagedSequence::n_probes() const {
  int64_t most = 0;
  for (const auto& store : stores_) most = std::max(most, store->n_probes());
  return most;
}

TokenRange StagedSequence::probes(int64_t n) const {
  const int64_t wanted = n_probes();
  if (wanted == 0) return {};
  return {std::max(tokens_, boundary_ - wanted), std::min(tokens_ + n, boundary_)};
}

void StagedSequence::observe(int64_t layer, const Probe& probe) {
  StoreProbe part{probe.position, probe.q, probe.mass.data()};
  for (const auto& store : stores_) part.tail += store->entries(layer);
  part.n_tail = probe.position + 1 - tail_[0].first();
  part.stride = part.tail + part.n_tail;
  if (static_cast<int64_t>(probe.mass.size()) != part.stride * shape().n_kv_heads) {
    throw CacheError("observe: expected the mass of " + std::to_string(shape().n_kv_heads) + " KV heads over " +
                     std::to_string(part.stride) + " entries, found " + std::to_string(probe.mass.size()) + " values");
  }
  for (const auto& store : stores_) {
    if (probe.position >= boundary_ - store->n_probes()) store->observe(stage_view(), layer, part);
    part.entry += store->entries(layer);
  }
  committed_ = std::max(committed_, probe.position + 1);  // An observed token cannot be rolled back.
}

int64_t StagedSequence::bytes_at(int64_t n_tokens) const {
  return StagedBytes(context_, stage_view(), stores_).at(n_tokens);
}

int64_t StagedSequence::max_growth(int64_t n) const {
  CacheStats held;
  StageView view = stage_view();
  view.may_share = false;  // Shared pages need not be counted.
  for (const DenseLayer& layer : tail_) held.bytes += layer.bytes();
  held.bytes += scores_.bytes();
  for (const auto& store : stores_) store->add_stats(view, &held);
  const int64_t end = tokens_ + std::max<int64_t>(0, n);
  return std::max<int64_t>(0, StagedBytes(context_, stage_view(), stores_).peak(end) - held.bytes);
}

std::vector<int64_t> StagedSequence::positions(int64_t layer, int64_t head) const {
  std::vector<int64_t> positions;
  for (const auto& store : stores_) store->positions(layer, head, &positions);
  const size_t first = positions.size();
  positions.resize(first + static_cast<size_t>(tokens_ - tail_[0].first()));
  std::iota(positions.begin() + static_cast<std::ptrdiff_t>(first), positions.end(), tail_[0].first());
  return positions;
}

std::unique_ptr<SequenceCache> StagedSequence::resume(int64_t prompt_tokens) const {
  if (prompt_tokens <= tokens_ || committed_ != tokens_) {
    throw CacheError("resume: expected all " + std::to_string(tokens_) +
                     " tokens to be committed, and a longer prompt; found " + std::to_string(committed_) +
                     " committed tokens and a prompt of " + std::to_string(prompt_tokens));
  }
  Boundaries boundaries = boundaries_;
  boundaries.prompt_tokens = prompt_tokens;
  if (!boundaries_.agree(boundaries, tokens_, n_probes())) return nullptr;
  std::unique_ptr<StagedSequence> resumed(new StagedSequence(*this));
  resumed->boundaries_ = boundaries;
  resumed->boundary_ = boundaries.next(tokens_);
  resumed->see_prompt();
  return resumed;
}

bool StagedSequence::save(StateWriter* out) const {
  if (out == nullptr) return true;
  out->fields(boundaries_.prompt_tokens, tokens_, committed_, boundary_, tail_[0].first());
  for (const DenseLayer& layer : tail_) layer.save(tokens_, out);
  scores_.save(tokens_, out);
  for (const auto& store : stores_) store->save(out);
  return true;
}

void StagedSequence::load(StateReader* in) {
  in->fields(boundaries_.prompt_tokens, tokens_, committed_, boundary_);
  const auto first = in->value<int64_t>();
  constexpr int64_t kMost = int64_t{1} << 31;  // Positions are 32 bits wide.
  in->expect(boundaries_.prompt_tokens >= 0 && boundaries_.prompt_tokens < kMost, "a prompt's length");
  in->expect(0 <= committed_ && committed_ <= tokens_ && tokens_ < kMost, "a count of tokens");
  const int64_t passed = boundaries_.last(boundary_ == tokens_ ? tokens_ - 1 : tokens_);
  in->expect(boundary_ == boundaries_.after(passed) && passed <= committed_, "a boundary after the tokens");
  in->expect(first == boundaries_.leaving(passed), "a tail that begins where the last compaction boundary put it");
  for (DenseLayer& layer : tail_) layer.load(first, tokens_, in);
  scores_.load(first, tokens_, in);
  for (const auto& store : stores_) store->load(stage_view(), in);
}

CacheStats StagedSequence::stats() const {
  CacheStats stats{.tokens = tokens_, .tokens_kept = tokens_ - tail_[0].first()};
  for (const DenseLayer& layer : tail_) {
    stats.bytes += layer.bytes();
    if (may_share_) stats.shared_bytes += layer.shared_bytes();
  }
  stats.bytes += scores_.bytes();
  for (const auto& store : stores_) store->add_stats(stage_view(), &stats);
  stats.full_bytes = dense_bytes(shape(), tokens_);
  return stats;
}

int64_t StagedSequence::stable_bytes() const {
  int64_t bytes = 0;
  for (const auto& store : stores_) bytes += store->stable_bytes();
  if (!stores_.empty() || boundary_ != Boundaries::kNever) return bytes;  // Tokens will be evicted from the tail.
  return dense_bytes(shape(), tokens_ - tokens_ % kPageTokens);  // Each fork continues the last page in a copy.
}

std::map<std::string, double> StagedSequence::details() const {
  std::map<std::string, double> details;
  for (const auto& store : stores_) store->add_details(&details);
  return details;
}

}  // namespace smartkv
