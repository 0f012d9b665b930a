#include <algorithm>
#include <utility>

#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"

namespace smartkv {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special, std::vector<TokenId> shown)
    : tokenizer_(&tokenizer), skip_special_(skip_special), shown_(std::move(shown)) {}

bool StreamDecoder::shows(TokenId token) const {
  return !(skip_special_ && tokenizer_->is_special(token)) ||
         std::find(shown_.begin(), shown_.end(), token) != shown_.end();
}

std::string StreamDecoder::push(TokenId token) {
  if (shows(token)) held_ += tokenizer_->token_bytes(token);
  // Release everything except an unfinished character at the end.
  size_t keep = 0;
  for (size_t back = 1; back <= 3 && back <= held_.size(); ++back) {
    if (utf8_is_prefix(std::string_view(held_).substr(held_.size() - back))) keep = back;
  }
  std::string text = utf8_repair(std::string_view(held_).substr(0, held_.size() - keep));
  held_.erase(0, held_.size() - keep);
  return text;
}

std::string StreamDecoder::flush() {
  std::string text = utf8_repair(held_);
  held_.clear();
  return text;
}

}  // namespace smartkv
