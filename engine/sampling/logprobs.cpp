#include "engine/sampling/logprobs.h"

#include <cmath>

namespace smartkv {

void LogprobRow::assign(std::span<const float> logits) {
  logits_ = logits;
  const float max = scan_row(logits, &block_max_);
  scratch_.resize(logits.size());
  exp_row(logits, max, 1.0f, scratch_.data());
  log_sum_ = static_cast<double>(max) + std::log(row_sum(scratch_));
}

float LogprobRow::logprob(TokenId token) const {
  return static_cast<float>(static_cast<double>(logits_[static_cast<size_t>(token)]) - log_sum_);
}

TokenLogprob LogprobRow::of(TokenId token, int32_t k) {
  TokenLogprob result{token, logprob(token), {}};
  if (k <= 0) return result;
  const float floor = top_k_floor(block_max_, k, &scratch_);
  candidates_.clear();
  for (size_t block = 0; block < block_max_.size(); ++block) {
    if (block_max_[block] < floor) continue;
    const size_t end = std::min((block + 1) * kScanBlock, logits_.size());
    for (size_t i = block * kScanBlock; i < end; ++i) {
      if (logits_[i] >= floor) candidates_.push_back(static_cast<TokenId>(i));
    }
  }
  const auto count = std::min(static_cast<size_t>(k), candidates_.size());
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(count), candidates_.end(),
                    [this](TokenId a, TokenId b) {
                      const float x = logits_[static_cast<size_t>(a)], y = logits_[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  for (size_t i = 0; i < count; ++i) result.top.emplace_back(candidates_[i], logprob(candidates_[i]));
  return result;
}

}  // namespace smartkv
