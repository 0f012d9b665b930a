// Finds where the last tokens of a sequence occurred before: what followed then is the draft.
// Source: prompt lookup decoding (Saxena 2023), over prompt and output, with one hash table for all match lengths.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/text/tokenizer.h"

namespace smartkv {

class NgramIndex {
 public:
  // Matches of min_match..max_match tokens are looked up, the longest first; of one length, the most recent.
  NgramIndex(int64_t min_match, int64_t max_match) : min_match_(min_match), max_match_(max_match) {}

  // Copies the tokens only: index() makes them findable, or the next lookup().
  void append(std::span<const TokenId> tokens);
  // Makes what is among the first n tokens findable; so a long prompt can be taken up piece by piece. O(max_match) for
  // each token that is new.
  void index(int64_t n);
  const std::vector<TokenId>& tokens() const { return tokens_; }

  static constexpr int64_t kMaxLength = 32;
  // What followed the match, n tokens at most; a match that reaches to the end goes on in circles. Returns how many
  // tokens agree, counted up to kMaxLength; 0: no match, and no draft. O(max_match) on average once all is indexed.
  int64_t lookup(int64_t n, std::vector<TokenId>* draft);

 private:
  // Which position follows the most recent occurrence of the tokens with this hash. Two n-grams of one hash take each
  // other's place: lookup() compares the tokens themselves.
  struct Slot {
    uint32_t hash = 0;
    uint32_t follower = 0;  // 0: the slot is empty
  };

  // Of the `length` tokens before position `end`, for each length up to `longest` in hashes[length].
  void hash_before(size_t end, int64_t longest, uint32_t* hashes) const;
  void insert(Slot slot);
  void grow();
  uint32_t follower(uint32_t hash) const;  // 0: none

  static constexpr int64_t kLongestMatch = 8;
  int64_t min_match_, max_match_;  // at most kLongestMatch
  std::vector<TokenId> tokens_;
  size_t indexed_ = 0;       // positions that are followers already, or never will be
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half of them used
  size_t used_ = 0;
};

}  // namespace smartkv
