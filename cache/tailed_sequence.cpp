#include "cache/tailed_sequence.h"

#include <string>

namespace smartkv {

using kernels::kPageTokens;

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
  }
}

CacheStats TailedSequence::stats() const {
  CacheStats stats;
  stats.tokens = tokens_;
  stats.tokens_kept = tail_tokens();
  for (const DenseLayer& layer : tail_) stats.bytes += layer.bytes();
  stats.full_bytes = dense_bytes(shape(), tokens_);
  return stats;
}

void TailedSequence::drop_tail_before(int64_t token) {
  for (DenseLayer& layer : tail_) layer.drop_before(token);
}

int64_t dense_bytes(const CacheShape& shape, int64_t n_tokens) {
  return (n_tokens + kPageTokens - 1) / kPageTokens * kPageTokens * shape.bytes_per_token();
}

}  // namespace smartkv
