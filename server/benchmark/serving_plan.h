// What `smartkv bench --serving` sends: its cases, and the prompts of their requests as token ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"

namespace smartkv {

// Requests that all arrive at once. Lengths in tokens unless they say otherwise.
struct ServingCase {
  std::string name, what;       // "a", and the case in a few words
  int64_t requests = 0;
  int64_t prompt_tokens = 0;    // of a request; 0: prompt_words counts instead
  int64_t prompt_words = 0;     // words of text, whatever tokens they are
  int64_t output_tokens = 0;
  int64_t shared_texts = 0;     // a request's prompt begins with one of so many texts, in turn; 0: no two begin alike
  int64_t shared_tokens = 0;    // of such a text, part of prompt_tokens
  int64_t ahead_tokens = 0;     // not all at once: each request alone, then behind a prompt of so many tokens; 0: no
  int64_t kv_cache_bytes = 0;   // of the server; 0: what it takes by default

  bool fairness() const { return ahead_tokens > 0; }
  int64_t context() const { return prompt_tokens + output_tokens; }  // for policies that keep a share of it
};

const std::vector<ServingCase>& serving_cases();  // a to g

// The cases of a comma-separated list of names. Throws std::invalid_argument naming what is unknown.
std::vector<ServingCase> parse_serving_cases(std::string_view names);

struct ServingRequest {
  std::vector<TokenId> prompt;
  int64_t output_tokens = 0;
};

// Cuts prompts out of a text: each begins at a place of its own. The same text gives the same prompts.
class PromptSource {
 public:
  PromptSource(std::string text, const Tokenizer& tokenizer);

  // The requests of a case; each repetition has others, so that a server that remembers prompts gains nothing by it.
  // Throws std::invalid_argument if the text is too short.
  std::vector<ServingRequest> requests(const ServingCase& one, int repetition) const;
  // A case's prompts of ahead_tokens, one for each request.
  std::vector<ServingRequest> ahead(const ServingCase& one, int repetition) const;
  ServingRequest warm_up() const;
  // The most tokens, prompt and output, that a request of the case has in the first `repetitions`. Throws as requests().
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
