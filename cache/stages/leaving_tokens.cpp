#include "cache/stages/leaving_tokens.h"

#include <algorithm>

namespace smartkv {

LeavingTokens::LeavingTokens(const PagePool& pool, const DenseLayer& tail, int64_t first, int64_t end)
    : pool_(&pool),
      tail_(&tail),
      tokens_(static_cast<size_t>(pool.shape().n_kv_heads)),
      rows_(tokens_.size()) {
  for (std::vector<Token>& tokens : tokens_) {
    for (int64_t position = first; position < end; ++position) tokens.push_back({static_cast<int32_t>(position), -1});
  }
}

LeavingTokens::~LeavingTokens() {
  if (!reading_) return;
  try {  // a store threw
    pool_->backend()->finish();
  } catch (...) {
  }
}

std::vector<LeavingTokens::Rows> LeavingTokens::load() const {
  const auto dim = static_cast<size_t>(pool_->shape().head_dim);
  std::vector<Rows> rows(tokens_.size());
  for (size_t head = 0; head < tokens_.size(); ++head) {
    const std::vector<Token>& tokens = tokens_[head];
    auto& [k, v] = rows[head];
    k.resize(tokens.size() * dim);
    v.resize(k.size());
    for (size_t i = 0, n = 1; i < tokens.size(); i += n, n = 1) {
      if (tokens[i].row >= 0) continue;
      while (i + n < tokens.size() && tokens[i + n].row < 0 && tokens[i + n].position == tokens[i + n - 1].position + 1) ++n;
      tail_->read(tokens[i].position, static_cast<int64_t>(n), static_cast<int64_t>(head), 1, &k[i * dim], &v[i * dim], 0);
    }
  }
  pool_->backend()->finish();
  reading_ = false;
  for (size_t head = 0; head < tokens_.size(); ++head) {
    for (size_t i = 0; i < tokens_[head].size(); ++i) {
      if (tokens_[head][i].row < 0) continue;
      const std::vector<float>& row = rows_[head][static_cast<size_t>(tokens_[head][i].row)];
      std::copy_n(row.data(), dim, &rows[head].k[i * dim]);
      std::copy_n(row.data() + dim, dim, &rows[head].v[i * dim]);
    }
  }
  return rows;
}

LeavingTokens::Token LeavingTokens::give_up(int64_t head, int32_t position, const kernels::TokenPlace& place) {
  const CacheShape& shape = pool_->shape();
  auto& rows = rows_[static_cast<size_t>(head)];
  float* const row = rows.emplace_back(static_cast<size_t>(2 * shape.head_dim)).data();
  const kernels::PageRead job = read_of(place, row, row + shape.head_dim);
  reading_ = true;
  pool_->backend()->read(shape.type, shape.head_dim, {&job, 1});
  return {position, static_cast<int32_t>(rows.size()) - 1};
}

}  // namespace smartkv
