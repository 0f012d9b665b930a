// The bytes of a sequence that has a dense tail and a chain of stores, now and later. They follow from what the stores
// state (TokenStore::bytes_at()): growth from the stores of a sequence, and the bounds of a policy from empty ones.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "cache/stores/token_store.h"

namespace smartkv {

// A page that is shared now counts as long as the sequence holds it, and also when it lets go of it. So differences of
// these bytes bound the rise of the pool's bytes_in_use().
class StagedBytes {
 public:
  // view: the sequence now. Everything must outlive this object.
  StagedBytes(const PolicyContext& context, const StageView& view, std::span<const std::unique_ptr<TokenStore>> stores)
      : context_(context), view_(view), stores_(stores) {}

  // Returns the bytes once the sequence has grown to `tokens` tokens. REQUIRES: tokens >= view.tokens.
  int64_t at(int64_t tokens) const;
  // Returns an upper bound of the bytes at any moment until then, boundaries included. It assumes that stores never get
  // smaller, so that few boundaries have to be looked at.
  int64_t peak(int64_t tokens) const;

 private:
  // Returns the bytes of the tail.
  int64_t tail(const Moment& then) const;
  // Returns the bytes of a layer's tail that are free then.
  int64_t freed(int64_t layer, const Moment& then) const;
  // Returns the most bytes while a boundary is committed.
  int64_t committing(int64_t boundary) const;

  const PolicyContext& context_;
  StageView view_;
  std::span<const std::unique_ptr<TokenStore>> stores_;
};

}  // namespace smartkv
