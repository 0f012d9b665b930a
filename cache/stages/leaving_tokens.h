// Tokens of one layer that leave the dense tail, on their way through a sequence's stores.
#pragma once

#include <cstdint>
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

  // Tokens [first, end) of `tail`, which outlives this.
  LeavingTokens(const DenseLayer& tail, int64_t n_kv_heads, int64_t head_dim, int64_t first, int64_t end);

  // In rising order of positions.
  std::span<const Token> of(int64_t head) const { return tokens_[static_cast<size_t>(head)]; }
  // K after RoPE and V of one token: f32 [head_dim].
  void load(int64_t head, const Token& token, float* k, float* v) const;

  // What is left to the stores that follow, in rising order of positions.
  void leave(int64_t head, std::vector<Token> tokens) { tokens_[static_cast<size_t>(head)] = std::move(tokens); }
  // A token that a store held so far; the store passes it to leave().
  Token give_up(int64_t head, int32_t position, const float* k, const float* v);

 private:
  const DenseLayer* tail_;
  int64_t head_dim_;
  std::vector<std::vector<Token>> tokens_;  // by KV head
  std::vector<std::vector<float>> rows_;    // by KV head: K then V of what was given up, f32 [rows, 2, head_dim]
};

}  // namespace smartkv
