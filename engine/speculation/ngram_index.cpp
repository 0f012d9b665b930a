#include "engine/speculation/ngram_index.h"

#include <algorithm>
#include <bit>

#include "kernels/random.h"

namespace smartkv {

void NgramIndex::append(std::span<const TokenId> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

void NgramIndex::hash_before(size_t end, int64_t longest, uint32_t* hashes) const {
  uint64_t hash = 0;
  for (int64_t length = 1; length <= longest; ++length) {
    hash = detail::mix64(hash ^ static_cast<uint64_t>(tokens_[end - static_cast<size_t>(length)]));
    hashes[length] = static_cast<uint32_t>(hash >> 32);
  }
}

void NgramIndex::index(int64_t n) {
  uint32_t hashes[kLongestMatch + 1];
  // An n-gram becomes findable only once a token follows it, so no lookup finds the end of the sequence itself.
  for (const size_t end = std::min(static_cast<size_t>(n), tokens_.size()); indexed_ < end; ++indexed_) {
    const int64_t longest = std::min(max_match_, static_cast<int64_t>(indexed_));
    hash_before(indexed_, longest, hashes);
    for (int64_t length = min_match_; length <= longest; ++length) {
      insert({hashes[length], static_cast<uint32_t>(indexed_)});
    }
  }
}

void NgramIndex::insert(Slot slot) {
  if (2 * (used_ + 1) > slots_.size()) grow();
  size_t at = slot.hash & (slots_.size() - 1);
  while (slots_[at].follower != 0 && slots_[at].hash != slot.hash) at = (at + 1) & (slots_.size() - 1);
  if (slots_[at].follower == 0) ++used_;
  slots_[at] = slot;
}

// Grows the table for all tokens appended so far, because a prompt is appended whole but indexed in pieces.
void NgramIndex::grow() {
  const size_t lengths = static_cast<size_t>(max_match_ - min_match_ + 1);
  std::vector<Slot> old(std::bit_ceil(2 * std::max(2 * used_ + 1, tokens_.size() * lengths)));
  old.swap(slots_);
  used_ = 0;
  for (const Slot& slot : old) {
    if (slot.follower != 0) insert(slot);
  }
}

uint32_t NgramIndex::follower(uint32_t hash) const {
  if (slots_.empty()) return 0;
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].follower != 0 && slots_[at].hash != hash) at = (at + 1) & (slots_.size() - 1);
  return slots_[at].follower;
}

int64_t NgramIndex::lookup(int64_t n, std::vector<TokenId>* draft) {
  draft->clear();
  const size_t end = tokens_.size();
  index(static_cast<int64_t>(end));
  uint32_t hashes[kLongestMatch + 1];
  const int64_t longest = std::min(max_match_, static_cast<int64_t>(end));
  hash_before(end, longest, hashes);
  for (int64_t length = longest; length >= min_match_; --length) {
    const size_t start = follower(hashes[length]);
    if (start == 0) continue;
    int64_t agreed = 0;
    while (agreed < kMaxLength && static_cast<size_t>(agreed) < start &&
           tokens_[start - 1 - static_cast<size_t>(agreed)] == tokens_[end - 1 - static_cast<size_t>(agreed)]) {
      ++agreed;
    }
    if (agreed < length) continue;  // two n-grams with the same hash
    for (int64_t i = 0; i < n; ++i) draft->push_back(tokens_[start + static_cast<size_t>(i) % (end - start)]);
    return agreed;
  }
  return 0;
}

}  // namespace smartkv
