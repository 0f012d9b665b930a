// Log probabilities in the two shapes of OpenAI's API.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "server/openai/error.h"

namespace smartkv::openai {

// The token's text; "bytes:\xe2\x82" where its bytes are not whole UTF-8 characters, as OpenAI writes it.
std::string token_text(const Tokenizer& tokenizer, TokenId token);
bool is_utf8(std::string_view text);

// Holds log probabilities back with the text of their tokens, and drops those of a stop string, which is no part of the answer.
// Of one choice.
class ShownLogprobs {
 public:
  ShownLogprobs(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(&tokenizer), skip_special_(skip_special), decoder_(tokenizer, skip_special) {}

  // Returns those of the tokens whose text has come, or begun to, since the last call. Reads every event of the choice.
  std::vector<TokenLogprob> take(const GenerationEvent& event);

 private:
  struct Held {
    TokenLogprob logprob;
    int64_t first;  // bytes of the text before the token's
    bool has_text;
  };

  const Tokenizer* tokenizer_;
  bool skip_special_;
  StreamDecoder decoder_;
  int64_t decoded_ = 0, shown_ = 0;  // bytes of the text: of all tokens, of the events
  std::deque<Held> held_;
};

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
