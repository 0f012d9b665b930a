// Log probabilities in the two shapes of OpenAI's API.
#pragma once

#include <span>
#include <string>

#include "server/openai/error.h"

namespace smartkv::openai {

// The token's text; "bytes:\xe2\x82" where its bytes are not whole UTF-8 characters, as OpenAI writes it.
std::string token_text(const Tokenizer& tokenizer, TokenId token);
bool is_utf8(std::string_view text);

// Chat: [{token, logprob, bytes, top_logprobs: [{token, logprob, bytes}]}]. At most `top_k` of the top.
Json chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenLogprob> logprobs, int32_t top_k);

// Completions: {tokens, token_logprobs, top_logprobs, text_offset}, built token by token.
class LegacyLogprobs {
 public:
  // `offset`: Unicode characters of the choice's text before the first token.
  LegacyLogprobs(const Tokenizer& tokenizer, bool skip_special, int64_t offset)
      : tokenizer_(tokenizer), skip_special_(skip_special), offset_(offset) {}

  void add(const TokenLogprob& logprob);
  void add_unscored(TokenId token);  // the first token of a prompt
  Json take();                       // what was added since the last take(); null if nothing was
  int64_t offset() const { return offset_; }

 private:
  void add_token(TokenId token, Json logprob, Json top);

  const Tokenizer& tokenizer_;
  bool skip_special_;
  int64_t offset_;
  Json tokens_ = Json::array(), logprobs_ = Json::array(), tops_ = Json::array(), offsets_ = Json::array();
};

}  // namespace smartkv::openai
