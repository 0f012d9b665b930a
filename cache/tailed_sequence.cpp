#include "cache/tailed_sequence.h"

#include <exception>
#include <mutex>
#include <numeric>
#include <string>

#include "kernels/thread_pool.h"

namespace smartkv {

using kernels::kPageTokens;

TailedSequence::TailedSequence(const TailedSequence& other)
    : SequenceCache(other),
      state_(other.state_),
      context_(other.context_),
      boundaries_(other.boundaries_),
      boundary_(other.boundary_),
      tail_(other.tail_),
      tokens_(other.tokens_),
      committed_(other.committed_),
      may_share_(true) {
  other.may_share_ = true;
}

void TailedSequence::reserve(int64_t n) {
  for (DenseLayer& layer : tail_) layer.reserve(tokens_, tokens_ + n);
}

void TailedSequence::write(int64_t layer, const KvRows& rows) { tail(layer).write(tokens_ + rows.first, rows); }

void TailedSequence::view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const {
  tail(layer).append_view(tokens_ + n_new, segments);
}

void TailedSequence::truncate(int64_t n_tokens) {
  if (n_tokens < committed_ || n_tokens > tokens_) {
    throw CacheError("truncate: expected a token count in [" + std::to_string(committed_) + ", " +
                     std::to_string(tokens_) + "], found " + std::to_string(n_tokens));
  }
  tokens_ = n_tokens;
  for (DenseLayer& layer : tail_) layer.truncate(n_tokens);
}

void TailedSequence::commit(int64_t n_tokens) {
  if (n_tokens < committed_ || n_tokens > tokens_ || n_tokens > next_boundary()) {
    throw CacheError("commit: expected a token count in [" + std::to_string(committed_) + ", " +
                     std::to_string(std::min(tokens_, next_boundary())) + "], found " + std::to_string(n_tokens));
  }
  committed_ = n_tokens;
  if (n_tokens == next_boundary()) {
    if (n_tokens != tokens_) {
      throw CacheError("commit: token " + std::to_string(n_tokens) + " is a compaction boundary, but " +
                       std::to_string(tokens_) + " tokens were appended");
    }
    compact();
    boundary_ = boundaries_.after(n_tokens);
  }
}

int64_t TailedSequence::growth(int64_t n) const {
  int64_t bytes = 0;
  for (const DenseLayer& layer : tail_) bytes += layer.growth(tokens_, tokens_ + n);
  return bytes + compaction_growth(tokens_ + n);
}

std::vector<int64_t> TailedSequence::represented(int64_t /*layer*/, int64_t /*head*/) const {
  std::vector<int64_t> positions(static_cast<size_t>(tokens_));
  std::iota(positions.begin(), positions.end(), int64_t{0});
  return positions;
}

std::unique_ptr<SequenceCache> TailedSequence::resume(int64_t prompt_tokens) const {
  if (prompt_tokens <= tokens_ || committed_ != tokens_) {
    throw CacheError("resume: expected all " + std::to_string(tokens_) + " tokens to be committed, and a longer prompt; found " +
                     std::to_string(committed_) + " committed tokens and a prompt of " + std::to_string(prompt_tokens));
  }
  Boundaries boundaries = boundaries_;
  boundaries.prompt_tokens = prompt_tokens;
  if (!boundaries_.agree(boundaries, tokens_, n_probes())) return nullptr;
  std::unique_ptr<SequenceCache> fork = this->fork();
  auto& resumed = static_cast<TailedSequence&>(*fork);  // of this very class
  resumed.boundaries_ = boundaries;
  resumed.boundary_ = boundaries.next(tokens_);
  return fork;
}

CacheStats TailedSequence::stats() const {
  CacheStats stats;
  stats.tokens = tokens_;
  stats.tokens_kept = tail_tokens();
  stats.bytes = state_.bytes();
  for (const DenseLayer& layer : tail_) {
    stats.bytes += layer.bytes();
    if (may_share_) stats.shared_bytes += layer.shared_bytes();
  }
  stats.full_bytes = dense_bytes(shape(), tokens_);
  return stats;
}

void TailedSequence::for_each(int64_t n, const std::function<void(int64_t)>& task) const {
  std::exception_ptr failure;
  std::mutex mutex;
  const auto guarded = [&](int64_t i) {  // a worker must not throw
    try {
      task(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  if (context().threads != nullptr) {
    context().threads->parallel_for(n, guarded);
  } else {
    for (int64_t i = 0; i < n; ++i) guarded(i);
  }
  if (failure) std::rethrow_exception(failure);
}

void TailedSequence::drop_tail_before(int64_t token) {
  for (DenseLayer& layer : tail_) layer.drop_before(token);
}

int64_t dense_bytes(const CacheShape& shape, int64_t n_tokens) {
  return (n_tokens + kPageTokens - 1) / kPageTokens * kPageTokens * shape.bytes_per_token();
}

}  // namespace smartkv
