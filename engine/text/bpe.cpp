#include "engine/text/bpe.h"

#include <algorithm>
#include <cstdio>
#include <queue>
#include <tuple>

#include "engine/text/reused_buffer.h"
#include "engine/text/utf8.h"

namespace smartkv {
namespace {

constexpr uint64_t kNoPair = ~uint64_t{0};
constexpr size_t kShortPiece = 48;  // Symbols. For longer pieces, a heap finds the next merge.

uint64_t pair_of(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}
size_t slot_of(uint64_t pair, size_t mask) { return static_cast<size_t>((pair * 0x9e3779b97f4a7c15u) >> 20) & mask; }

}  // namespace

Bpe::Bpe(std::vector<std::string> tokens, std::span<const BpeMerge> merges, const BpeOptions& options)
    : tokens_(std::move(tokens)), options_(options) {
  ids_.reserve(tokens_.size());
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (!tokens_[id].empty()) ids_.emplace(tokens_[id], static_cast<TokenId>(id));
  }
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    byte_ids_[byte] = options_.byte_fallback ? id_of(name) : -1;
  }
  for (size_t character = 0; character < character_ids_.size(); ++character) {
    std::string text;
    utf8_append(text, static_cast<char32_t>(character));
    character_ids_[character] = id_of(text);
  }
  size_t capacity = 16;
  while (capacity < 2 * merges.size()) capacity *= 2;
  merges_.assign(capacity, {kNoPair, 0, 0});
  for (const auto [left, right, rank] : merges) {
    const std::string merged = text_of(left) + text_of(right);
    const TokenId result = id_of(merged);
    if (result < 0) {
      throw TokenizerError("merge of \"" + text_of(left) + "\" and \"" + text_of(right) +
                           "\": expected the merged token in the vocabulary, found none");
    }
    const uint64_t pair = pair_of(left, right);
    size_t slot = slot_of(pair, capacity - 1);
    while (merges_[slot].pair != kNoPair && merges_[slot].pair != pair) slot = (slot + 1) & (capacity - 1);
    merges_[slot] = {pair, rank, result};
  }
}

TokenId Bpe::id_of(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? -1 : found->second;
}

const Bpe::Merge* Bpe::find_merge(TokenId left, TokenId right) const {
  const uint64_t pair = pair_of(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t slot = slot_of(pair, mask);; slot = (slot + 1) & mask) {
    if (merges_[slot].pair == pair) return &merges_[slot];
    if (merges_[slot].pair == kNoPair) return nullptr;
  }
}

TokenId Bpe::id_of_character(std::string_view character) const {
  if (character.size() > 2 || utf8_length(character) == 0) return id_of(character);
  const char32_t value = utf8_decode(character);
  return value < character_ids_.size() ? character_ids_[value] : id_of(character);
}

void Bpe::symbols_of(std::string_view piece, std::vector<TokenId>* ids) const {
  bool fusing = false;
  while (!piece.empty()) {
    const std::string_view character = utf8_next(piece);
    const TokenId id = id_of_character(character);
    const bool known = id >= 0;
    const bool as_bytes = !known && std::all_of(character.begin(), character.end(), [&](char byte) {
      return byte_ids_[static_cast<unsigned char>(byte)] >= 0;
    });
    if (known) {
      ids->push_back(id);
    } else if (as_bytes) {
      for (const char byte : character) ids->push_back(byte_ids_[static_cast<unsigned char>(byte)]);
    } else if (options_.unknown >= 0 && !(options_.fuse_unknown && fusing)) {
      ids->push_back(options_.unknown);
    }
    fusing = !known && !as_bytes;
  }
}

bool Bpe::has_byte_tokens() const {
  return std::all_of(byte_ids_.begin(), byte_ids_.end(), [](TokenId id) { return id >= 0; });
}

void Bpe::encode(std::string_view piece, std::vector<TokenId>* ids) const {
  if (options_.ignore_merges) {
    if (const TokenId id = id_of(piece); id >= 0) {
      ids->push_back(id);
      return;
    }
  }
  thread_local std::vector<TokenId> symbols;
  symbols.clear();
  symbols_of(piece, &symbols);
  if (symbols.size() <= kShortPiece) {
    merge_short(&symbols);
  } else {
    merge_long(&symbols);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
  free_if_large(&symbols);
}

void Bpe::merge_short(std::vector<TokenId>* ids) const {
  const Merge* next[kShortPiece];  // next[i]: the merge of symbols i and i + 1
  for (size_t i = 0; i + 1 < ids->size(); ++i) next[i] = find_merge((*ids)[i], (*ids)[i + 1]);
  while (ids->size() > 1) {
    size_t best = ids->size();
    for (size_t i = 0; i + 1 < ids->size(); ++i) {
      if (next[i] != nullptr && (best == ids->size() || next[i]->rank < next[best]->rank)) best = i;
    }
    if (best == ids->size()) return;
    (*ids)[best] = next[best]->result;
    ids->erase(ids->begin() + static_cast<std::ptrdiff_t>(best) + 1);
    for (size_t i = best + 1; i + 1 < ids->size(); ++i) next[i] = next[i + 1];
    if (best > 0) next[best - 1] = find_merge((*ids)[best - 1], (*ids)[best]);
    if (best + 1 < ids->size()) next[best] = find_merge((*ids)[best], (*ids)[best + 1]);
  }
}

void Bpe::merge_long(std::vector<TokenId>* ids) const {
  struct Symbol {
    TokenId id;
    int32_t previous, next;  // -1 at the ends
  };
  struct Candidate {
    int32_t rank, left;
    TokenId left_id, right_id, result;
    bool operator<(const Candidate& other) const { return std::tie(other.rank, other.left) < std::tie(rank, left); }
  };
  const int32_t n = static_cast<int32_t>(ids->size());
  std::vector<Symbol> symbols;
  for (int32_t i = 0; i < n; ++i) symbols.push_back({(*ids)[static_cast<size_t>(i)], i - 1, i + 1 < n ? i + 1 : -1});
  std::priority_queue<Candidate> queue;
  const auto propose = [&](int32_t left) {
    if (left < 0 || symbols[left].next < 0) return;
    const TokenId a = symbols[left].id, b = symbols[symbols[left].next].id;
    if (const Merge* merge = find_merge(a, b)) queue.push({merge->rank, left, a, b, merge->result});
  };
  for (int32_t i = 0; i < n; ++i) propose(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[top.left];
    // Skip a candidate if one of its symbols has been merged since, or has another neighbour.
    if (left.id != top.left_id || left.next < 0 || symbols[left.next].id != top.right_id) continue;
    Symbol& right = symbols[left.next];
    left.id = top.result;
    right.id = -1;
    left.next = right.next;
    if (right.next >= 0) symbols[right.next].previous = top.left;
    propose(left.previous);
    propose(top.left);
  }
  ids->clear();
  for (int32_t i = 0; i >= 0; i = symbols[i].next) ids->push_back(symbols[i].id);
}

}  // namespace smartkv
