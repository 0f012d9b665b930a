// Finds where the last tokens of a sequence occurred before: what followed then is the draft.
// Source: prompt lookup decoding (Saxena 2023), over prompt and output, with one hash table per match length.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/text/tokenizer.h"

namespace smartkv {

class NgramIndex {
 public:
  // Matches of min_match..max_match tokens are looked up, the longest first; of one length, the most recent.
  NgramIndex(int64_t min_match, int64_t max_match) : min_match_(min_match), max_match_(max_match) {}

  // O(max_match) on average.
  void append(TokenId token);
  const std::vector<TokenId>& tokens() const { return tokens_; }

  static constexpr int64_t kMaxLength = 32;
  // What followed the match, n tokens at most; a match that reaches to the end goes on in circles. Returns how many
  // tokens agree, counted up to kMaxLength; 0: no match, and no draft.
  int64_t lookup(int64_t n, std::vector<TokenId>* draft) const;

 private:
  uint64_t key(size_t end, int64_t length) const;  // of the `length` tokens before position `end`

  int64_t min_match_, max_match_;
  std::vector<TokenId> tokens_;
  std::unordered_map<uint64_t, uint32_t> followers_;  // key: position after the most recent occurrence
};

}  // namespace smartkv
