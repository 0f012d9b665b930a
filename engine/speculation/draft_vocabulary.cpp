#include "engine/speculation/draft_vocabulary.h"

#include <algorithm>

#include "engine/weights/weights.h"

namespace smartkv {
namespace {

// Returns the token's entry. It is empty if the id is padding.
std::string content(const Tokenizer& tokenizer, int64_t token) {
  constexpr std::string_view kPadding = "[PAD", kDecimals = "0123456789";
  if (token >= tokenizer.vocab_size()) return "";
  std::string found = tokenizer.token_content(static_cast<TokenId>(token));
  const size_t end = found.find_first_not_of(kDecimals, kPadding.size());
  const bool padding =
      found.starts_with(kPadding) && end > kPadding.size() && end + 1 == found.size() && found.back() == ']';
  return padding ? "" : found;
}

std::string quoted(const std::string& content) { return content.empty() ? "padding" : '"' + content + '"'; }

}  // namespace

void check_draft_vocabulary(const DraftVocabulary& target, const DraftVocabulary& draft) {
  const auto refuse = [](const std::string& what) {
    throw ModelError("expected the model's own tokenizer, found " + what);
  };
  const int64_t ids = std::max(target.tokenizer->vocab_size(), draft.tokenizer->vocab_size());
  int64_t end = 0;  // id after the last token that is not padding
  for (int64_t token = 0; token < ids; ++token) {
    const std::string expected = content(*target.tokenizer, token), found = content(*draft.tokenizer, token);
    if (found != expected)
      refuse(quoted(found) + " as token " + std::to_string(token) + " instead of " + quoted(expected));
    if (!expected.empty()) end = token + 1;
  }
  const int64_t needed = std::min(end, target.outputs);
  if (draft.outputs < needed) {
    refuse("outputs for " + std::to_string(draft.outputs) + " tokens instead of " + std::to_string(needed));
  }
}

}  // namespace smartkv
