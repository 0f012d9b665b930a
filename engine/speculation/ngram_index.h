// Finds an earlier occurrence of the last tokens of a sequence. The tokens that followed it are the draft.
// Source: prompt lookup decoding (Saxena 2023), here over prompt and output, with one hash table for all match lengths.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/text/tokenizer.h"

namespace smartkv {

// The tokens of one sequence and an index of their n-grams. Not thread-safe.
class NgramIndex {
 public:
  // lookup() tries matches of max_match down to min_match tokens, and takes the most recent match of a length. An index
  // with min_match > max_match only stores the tokens. REQUIRES: max_match <= 8.
  NgramIndex(int64_t min_match, int64_t max_match) : min_match_(min_match), max_match_(max_match) {}

  // Appends a copy of the tokens. They become findable by index() or by the next lookup().
  void append(std::span<const TokenId> tokens);
  // Makes the n-grams among the first n tokens findable, so that a long prompt can be indexed piece by piece. Takes
  // O(max_match) for each token that is not indexed yet.
  void index(int64_t n);
  const std::vector<TokenId>& tokens() const { return tokens_; }

  static constexpr int64_t kMaxLength = 32;
  // Replaces `draft` by the n tokens that followed the match. If fewer than n tokens follow, they repeat cyclically.
  // Returns how many tokens agree, counted up to kMaxLength. Returns 0 and an empty draft if nothing matches. Takes
  // O(max_match) on average once all tokens are indexed.
  int64_t lookup(int64_t n, std::vector<TokenId>* draft);

 private:
  // Maps the hash of an n-gram to the position after its most recent occurrence. N-grams with equal hashes overwrite
  // each other, so lookup() compares the tokens themselves.
  struct Slot {
    uint32_t hash = 0;
    uint32_t follower = 0;  // 0 if the slot is empty
  };

  // Sets hashes[length] to the hash of the `length` tokens before position `end`, for each length in [1, longest].
  void hash_before(size_t end, int64_t longest, uint32_t* hashes) const;
  void insert(Slot slot);
  void grow();
  uint32_t follower(uint32_t hash) const;  // 0 if there is none

  static constexpr int64_t kLongestMatch = 8;
  int64_t min_match_, max_match_;  // at most kLongestMatch
  std::vector<TokenId> tokens_;
  size_t indexed_ = 0;       // tokens that index() has processed
  std::vector<Slot> slots_;  // open addressing; the size is a power of two, and at most half of the slots are used
  size_t used_ = 0;
};

}  // namespace smartkv
