#include "cache/stores/evicted_tokens.h"

namespace smartkv {

EvictedTokens::EvictedTokens(const PagePool& pool, const DenseLayer& tail, int64_t first, int64_t end)
    : pool_(&pool), tail_(&tail) {
  for (int64_t head = 0; head < pool.shape().n_kv_heads; ++head) {
    Head& of = of_.emplace_back(Head{{}, ScratchRows(pool.backend(), pool.shape().head_dim), {}, {}});
    for (int64_t position = first; position < end; ++position)
      of.tokens.push_back({static_cast<int32_t>(position), -1});
  }
}

void EvictedTokens::leave(int64_t head, std::vector<Token> tokens) {
  Head& of = of_[static_cast<size_t>(head)];
  of.tokens = std::move(tokens);
  pool_->backend()->move(pool_->shape().type, pool_->shape().head_dim, of.moves);
  of.moves.clear();
}

EvictedTokens::Token EvictedTokens::give_up(int64_t head, int32_t position, const kernels::TokenPlace& place) {
  Head& of = of_[static_cast<size_t>(head)];
  of.rows.push_back(of.memory.add());
  of.moves.push_back({place, of.rows.back()});
  return {position, static_cast<int32_t>(of.rows.size()) - 1};
}

}  // namespace smartkv
