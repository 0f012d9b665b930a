#include "engine/text/added_tokens.h"

#include <algorithm>

#include "engine/text/utf8.h"

namespace smartkv {
namespace {

// Unicode's White_Space.
bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t start_of_last(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

// A letter, digit or underscore; characters beyond ASCII count as letters.
bool is_word(unsigned char byte) {
  return byte >= 0x80 || byte == '_' || (byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z');
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  for (const AddedToken& token : tokens_) by_first_[static_cast<unsigned char>(token.content[0])].push_back(&token);
}

const AddedToken* AddedTokens::match(std::string_view text, size_t at, bool with_special) const {
  for (const AddedToken* token : by_first_[static_cast<unsigned char>(text[at])]) {
    if (token->special && !with_special) continue;
    if (text.compare(at, token->content.size(), token->content) != 0) continue;
    const size_t end = at + token->content.size();
    const bool inside_word = (at > 0 && is_word(static_cast<unsigned char>(text[at - 1]))) ||
                             (end < text.size() && is_word(static_cast<unsigned char>(text[end])));
    if (!token->single_word || !inside_word) return token;
  }
  return nullptr;
}

void AddedTokens::split(std::string_view text, bool with_special, std::vector<Piece>* pieces) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = tokens_.empty() ? nullptr : match(text, at, with_special);
    if (token == nullptr) {
      ++at;
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
