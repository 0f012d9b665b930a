// The cases of `smartkv bench --serving` and the prompts of their requests, as token ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"

namespace smartkv {

// One case. All its requests arrive at once, except in a fairness case. Lengths are in tokens unless they say
// otherwise.
struct ServingCase {
  std::string name, what;  // its name, such as "a", and a short description
  int64_t requests = 0;
  int64_t prompt_tokens = 0;  // length of a prompt; 0 if prompt_words is used instead
  int64_t prompt_words = 0;   // length of a prompt in words of text
  int64_t output_tokens = 0;
  int64_t shared_texts = 0;   // prompts begin with one of so many texts, in turn; 0 if no two prompts begin alike
  int64_t shared_tokens = 0;  // length of such a text, which is part of prompt_tokens
  // In a fairness case, each request is sent alone, then behind a prompt of so many tokens. 0 in other cases.
  int64_t ahead_tokens = 0;
  int64_t kv_cache_bytes = 0;  // cache memory of the server; 0 for its default

  bool fairness() const { return ahead_tokens > 0; }
  int64_t context() const { return prompt_tokens + output_tokens; }  // for policies that keep a share of it
};

const std::vector<ServingCase>& serving_cases();  // the cases a to g

// Returns the cases of a comma-separated list of names. Throws std::invalid_argument naming an unknown one.
std::vector<ServingCase> parse_serving_cases(std::string_view names);

struct ServingRequest {
  std::vector<TokenId> prompt;
  int64_t output_tokens = 0;
};

// Cuts prompts out of a text, each from another place. The same text gives the same prompts.
class PromptSource {
 public:
  PromptSource(std::string text, const Tokenizer& tokenizer);

  // Returns the requests of a case. Each repetition has different ones, so that a server with a prefix cache gains
  // nothing from earlier repetitions. Throws std::invalid_argument if the text is too short.
  std::vector<ServingRequest> requests(const ServingCase& one, int repetition) const;
  // Returns the prompts of ahead_tokens tokens of a fairness case, one for each request.
  std::vector<ServingRequest> ahead(const ServingCase& one, int repetition) const;
  ServingRequest warm_up() const;
  // Returns the largest number of tokens, prompt and output together, of a request of the case in the first
  // `repetitions` repetitions. Throws like requests().
  int64_t longest(const ServingCase& one, int repetitions) const;

 private:
  std::vector<TokenId> tokens(int64_t n, int64_t index) const;
  std::vector<TokenId> words(int64_t n, int64_t index) const;

  std::string text_;
  const Tokenizer& tokenizer_;
  std::vector<TokenId> tokens_;
  std::vector<std::string_view> words_;  // views of text_
};

}  // namespace smartkv
