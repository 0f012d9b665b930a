// Tokens of one layer that leave the dense tail, on their way through a sequence's stores.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/dense_layer.h"
#include "cache/stages/scratch_rows.h"

namespace smartkv {

// Each KV head has its own: at first all that leave the tail, then what the stores so far did not take or gave up.
class LeavingTokens {
 public:
  struct Token {
    int32_t position;
    int32_t row;  // of those that a store gave up; -1: in the tail
  };

  // Tokens [first, end) of `tail`, whose pages are the pool's. Both outlive this.
  LeavingTokens(const PagePool& pool, const DenseLayer& tail, int64_t first, int64_t end);
  LeavingTokens(const LeavingTokens&) = delete;
  LeavingTokens& operator=(const LeavingTokens&) = delete;

  // In rising order of positions.
  std::span<const Token> of(int64_t head) const { return of_[static_cast<size_t>(head)].tokens; }
  // For jobs of the backend: a slot of the tail, or a row, which stays as long as this.
  kernels::TokenPlace place(int64_t head, const Token& token) const {
    return token.row < 0 ? tail_->place(token.position, head) : of_[static_cast<size_t>(head)].rows[static_cast<size_t>(token.row)];
  }

  // What is left to the stores that follow, in rising order of positions.
  void leave(int64_t head, std::vector<Token> tokens);
  // A token that a store held so far at a place, which may get another one after leave(), to which the store passes it.
  Token give_up(int64_t head, int32_t position, const kernels::TokenPlace& place);

 private:
  struct Head {
    std::vector<Token> tokens;
    ScratchRows memory;                     // of what was given up
    std::vector<kernels::TokenPlace> rows;
    std::vector<kernels::TokenMove> moves;  // to the last of them
  };

  const PagePool* pool_;
  const DenseLayer* tail_;
  std::vector<Head> of_;  // by KV head
};

}  // namespace smartkv
