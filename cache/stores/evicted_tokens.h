// Tokens of one layer that are evicted from the dense tail, on their way through a sequence's stores.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/dense_layer.h"
#include "cache/stores/scratch_rows.h"

namespace smartkv {

// Each KV head has its own list of evicted tokens. At first it has all tokens evicted from the tail. Afterwards it has
// the tokens that the stores so far did not take or gave up.
class EvictedTokens {
 public:
  struct Token {
    int32_t position;
    int32_t row;  // Row of a token that a store gave up. -1: the token is in the tail.
  };

  // Begins with tokens [first, end) of `tail`, whose pages are from `pool`. Both must outlive this object.
  EvictedTokens(const PagePool& pool, const DenseLayer& tail, int64_t first, int64_t end);
  EvictedTokens(const EvictedTokens&) = delete;
  EvictedTokens& operator=(const EvictedTokens&) = delete;

  // Returns the tokens of a KV head, in rising order of positions.
  std::span<const Token> of(int64_t head) const { return of_[static_cast<size_t>(head)].tokens; }
  // Returns where a token is, for jobs of the backend: a slot of the tail, or a row that lives as long as this object.
  kernels::TokenPlace place(int64_t head, const Token& token) const {
    return token.row < 0 ? tail_->place(token.position, head)
                         : of_[static_cast<size_t>(head)].rows[static_cast<size_t>(token.row)];
  }

  // Sets the tokens that are left to the stores that follow, in rising order of positions. Runs the copies that
  // give_up() asked for.
  void leave(int64_t head, std::vector<Token> tokens);
  // Moves a token that the store has held at `place` into a row, and returns it for the list that the store passes to
  // leave(). The place may be overwritten after leave().
  Token give_up(int64_t head, int32_t position, const kernels::TokenPlace& place);

 private:
  struct Head {
    std::vector<Token> tokens;
    ScratchRows memory;  // Memory of the rows of tokens that were given up.
    std::vector<kernels::TokenPlace> rows;
    std::vector<kernels::TokenMove> moves;  // Into `rows`, run by leave().
  };

  const PagePool* pool_;
  const DenseLayer* tail_;
  std::vector<Head> of_;  // by KV head
};

}  // namespace smartkv
