#include "engine/text/added_tokens.h"

#include <algorithm>

#include "engine/text/pattern.h"
#include "engine/text/unicode_text.h"
#include "engine/text/utf8.h"

namespace smartkv {
namespace {

// Returns whether a character belongs to a word (Unicode's word characters).
bool is_word(std::string_view character) {
  static const Pattern word(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])");
  return word.matches_in(character);
}

bool inside_word(std::string_view text, size_t begin, size_t end) {
  const std::string_view before = text.substr(0, begin), behind = text.substr(end);
  return (!before.empty() && is_word(before.substr(utf8_last_start(before)))) ||
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
    if (token->lstrip) begin = done + strip_white_space(text.substr(done, begin - done), false, true).size();
    if (token->rstrip) end = text.size() - strip_white_space(text.substr(end), true, false).size();
    if (begin > done) pieces->push_back({text.substr(done, begin - done), nullptr});
    pieces->push_back({text.substr(begin, end - begin), token});
    done = at = end;
  }
  if (done < text.size()) pieces->push_back({text.substr(done), nullptr});
}

}  // namespace smartkv
