#include "engine/text/added_tokens.h"

#include <algorithm>

#include "engine/text/split_pattern.h"
#include "engine/text/utf8.h"

namespace smartkv {
namespace {

// Unicode's White_Space.
bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t start_of_last(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

// Unicode's word characters.
bool is_word(std::string_view character) {
  static const SplitPattern word(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])");
  return word.matches_in(character);
}

bool inside_word(std::string_view text, size_t begin, size_t end) {
  const std::string_view before = text.substr(0, begin), behind = text.substr(end);
  return (!before.empty() && is_word(before.substr(start_of_last(before)))) ||
         (!behind.empty() && is_word(behind.substr(0, utf8_length(behind))));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  for (const AddedToken& token : tokens_) by_first_[static_cast<unsigned char>(token.content[0])].push_back(&token);
}

const AddedToken* AddedTokens::longest_at(std::string_view text, size_t at) const {
  for (const AddedToken* token : by_first_[static_cast<unsigned char>(text[at])]) {
    if (text.compare(at, token->content.size(), token->content) == 0) return token;
  }
  return nullptr;
}

void AddedTokens::split(std::string_view text, bool with_special, std::vector<Piece>* pieces) const {
  size_t done = 0;
  for (size_t at = tokens_.empty() ? text.size() : 0; at < text.size();) {
    const AddedToken* token = longest_at(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    const bool allowed = (with_special || !token->special) &&
                         (!token->single_word || !inside_word(text, at, at + token->content.size()));
    if (!allowed) {
      at += token->content.size();
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    while (token->lstrip && begin > done) {
      const size_t last = done + start_of_last(text.substr(done, begin - done));
      if (!is_space(utf8_decode(text.substr(last, begin - last)))) break;
      begin = last;
    }
    while (token->rstrip && end < text.size()) {
      const size_t length = utf8_length(text.substr(end));
      if (length == 0 || !is_space(utf8_decode(text.substr(end, length)))) break;
      end += length;
    }
    if (begin > done) pieces->push_back({text.substr(done, begin - done), nullptr});
    pieces->push_back({text.substr(begin, end - begin), token});
    done = at = end;
  }
  if (done < text.size()) pieces->push_back({text.substr(done), nullptr});
}

}  // namespace smartkv
