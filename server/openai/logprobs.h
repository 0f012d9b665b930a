// Log probabilities in the two formats of OpenAI's API.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/openai/error.h"

namespace smartkv::openai {

// Returns the token's text. If its bytes are not whole UTF-8 characters, returns "bytes:\xe2\x82", as OpenAI writes
// them.
std::string token_text(const Tokenizer& tokenizer, TokenId token);

// Holds back the log probabilities of one choice until the text of their tokens is shown. It drops those of a stop
// string, which is not part of the answer.
class ShownLogprobs {
 public:
  // The parameters are those of StreamDecoder.
  ShownLogprobs(const Tokenizer& tokenizer, bool skip_special, std::vector<TokenId> shown = {})
      : decoder_(tokenizer, skip_special, std::move(shown)) {}

  // Returns the log probabilities of the tokens whose text was shown, at least in part, since the last call. REQUIRES:
  // it is called with every event of the choice.
  std::vector<TokenLogprob> take(const GenerationEvent& event);

 private:
  struct Held {
    TokenLogprob logprob;
    int64_t first;  // bytes of the answer's text before the token
    bool has_text;  // false for a special token that is not shown
  };

  StreamDecoder decoder_;
  int64_t decoded_ = 0, shown_ = 0;  // bytes of text: of all tokens so far, and of all events so far
  std::deque<Held> held_;
};

// Returns the format of chat: [{token, logprob, bytes, top_logprobs: [{token, logprob, bytes}]}], with at most `top_k`
// entries in top_logprobs.
Json chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenLogprob> logprobs, int32_t top_k);

// Builds the format of completions, {tokens, token_logprobs, top_logprobs, text_offset}, token by token.
class LegacyLogprobs {
 public:
  // `offset` is the number of Unicode characters in the choice's text before the first token.
  LegacyLogprobs(const Tokenizer& tokenizer, bool skip_special, int64_t offset)
      : tokenizer_(tokenizer), skip_special_(skip_special), offset_(offset) {}

  void add(const TokenLogprob& logprob);
  void add_unscored(TokenId token);  // adds the first token of a prompt, which has no log probability
  Json take();                       // returns the tokens added since the last take(), or null if there are none
  int64_t offset() const { return offset_; }

 private:
  void add_token(TokenId token, Json logprob, Json top);

  const Tokenizer& tokenizer_;
  bool skip_special_;
  int64_t offset_;
  Json tokens_ = Json::array(), logprobs_ = Json::array(), tops_ = Json::array(), offsets_ = Json::array();
};

}  // namespace smartkv::openai
