// Tokens of one layer that leave the dense tail, on their way through a sequence's stores.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "cache/dense_layer.h"

namespace smartkv {

// Each KV head has its own: at first all that leave the tail, then what the stores so far did not take or gave up.
class LeavingTokens {
 public:
  struct Token {
    int32_t position;
    int32_t row;  // of those that a store gave up; -1: in the tail
  };

  // f32 [tokens, head_dim] each.
  struct Rows {
    std::vector<float> k, v;
  };

  // Tokens [first, end) of `tail`, whose pages are the pool's. Both outlive this.
  LeavingTokens(const PagePool& pool, const DenseLayer& tail, int64_t first, int64_t end);
  ~LeavingTokens();
  LeavingTokens(const LeavingTokens&) = delete;
  LeavingTokens& operator=(const LeavingTokens&) = delete;

  // In rising order of positions.
  std::span<const Token> of(int64_t head) const { return tokens_[static_cast<size_t>(head)]; }
  // Of a token in the tail, for jobs of the backend.
  kernels::TokenPlace place(int64_t head, const Token& token) const { return tail_->place(token.position, head); }
  // K after RoPE and V of the KV heads' tokens, by KV head, in the order of of(). Waits for the backend.
  std::vector<Rows> load() const;

  // What is left to the stores that follow, in rising order of positions.
  void leave(int64_t head, std::vector<Token> tokens) { tokens_[static_cast<size_t>(head)] = std::move(tokens); }
  // A token that a store held so far at a place, which may get another one; the store passes it to leave().
  Token give_up(int64_t head, int32_t position, const kernels::TokenPlace& place);

 private:
  const PagePool* pool_;
  const DenseLayer* tail_;
  std::vector<std::vector<Token>> tokens_;            // by KV head
  std::vector<std::deque<std::vector<float>>> rows_;  // by KV head: K then V of what was given up, f32 [2, head_dim] each
  mutable bool reading_ = false;                      // the backend may yet write rows_
};

}  // namespace smartkv
