#include "cache/stages/leaving_tokens.h"

#include <algorithm>

namespace smartkv {

LeavingTokens::LeavingTokens(const DenseLayer& tail, int64_t n_kv_heads, int64_t head_dim, int64_t first, int64_t end)
    : tail_(&tail),
      head_dim_(head_dim),
      tokens_(static_cast<size_t>(n_kv_heads)),
      rows_(static_cast<size_t>(n_kv_heads)) {
  for (std::vector<Token>& tokens : tokens_) {
    for (int64_t position = first; position < end; ++position) tokens.push_back({static_cast<int32_t>(position), -1});
  }
}

void LeavingTokens::load(int64_t head, const Token& token, float* k, float* v) const {
  if (token.row < 0) return tail_->load(token.position, head, k, v);
  const float* row = rows_[static_cast<size_t>(head)].data() + token.row * 2 * head_dim_;
  std::copy_n(row, head_dim_, k);
  std::copy_n(row + head_dim_, head_dim_, v);
}

LeavingTokens::Token LeavingTokens::give_up(int64_t head, int32_t position, const float* k, const float* v) {
  std::vector<float>& rows = rows_[static_cast<size_t>(head)];
  const auto row = static_cast<int32_t>(static_cast<int64_t>(rows.size()) / (2 * head_dim_));
  rows.insert(rows.end(), k, k + head_dim_);
  rows.insert(rows.end(), v, v + head_dim_);
  return {position, row};
}

}  // namespace smartkv
