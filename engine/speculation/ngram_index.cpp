#include "engine/speculation/ngram_index.h"

#include <algorithm>

#include "engine/sampling/random.h"

namespace smartkv {

uint64_t NgramIndex::key(size_t end, int64_t length) const {
  uint64_t hash = static_cast<uint64_t>(length);
  for (size_t i = end - static_cast<size_t>(length); i < end; ++i) {
    hash = detail::mix64(hash ^ static_cast<uint64_t>(tokens_[i]));
  }
  return hash;
}

void NgramIndex::append(TokenId token) {
  // The tokens before `token` become findable now that something follows them; so no lookup finds itself.
  const size_t end = tokens_.size();
  const int64_t longest = std::min(max_match_, static_cast<int64_t>(end));
  for (int64_t length = min_match_; length <= longest; ++length) {
    followers_[key(end, length)] = static_cast<uint32_t>(end);
  }
  tokens_.push_back(token);
}

int64_t NgramIndex::lookup(int64_t n, std::vector<TokenId>* draft) const {
  draft->clear();
  const size_t end = tokens_.size();
  for (int64_t length = std::min(max_match_, static_cast<int64_t>(end)); length >= min_match_; --length) {
    const auto found = followers_.find(key(end, length));
    if (found == followers_.end()) continue;
    const size_t start = found->second;
    int64_t agreed = 0;
    while (agreed < kMaxLength && static_cast<size_t>(agreed) < start &&
           tokens_[start - 1 - static_cast<size_t>(agreed)] == tokens_[end - 1 - static_cast<size_t>(agreed)]) {
      ++agreed;
    }
    if (agreed < length) continue;  // two n-grams of one hash
    for (int64_t i = 0; i < n; ++i) draft->push_back(tokens_[start + static_cast<size_t>(i) % (end - start)]);
    return agreed;
  }
  return 0;
}

}  // namespace smartkv
