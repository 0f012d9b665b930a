// Responses of /v1/completions and /v1/chat/completions, whole and as chunks of a stream.
#pragma once

#include <string>
#include <vector>

#include "server/openai/answer_parser.h"
#include "server/openai/api_request.h"
#include "server/openai/draft_text.h"
#include "server/openai/generation_run.h"
#include "server/openai/logprobs.h"

namespace smartkv::openai {

// Returns "stop" or "length". Other reasons do not come here: they end in an error (throw_if_failed()).
std::string_view finish_reason(FinishReason reason);
int64_t unix_time();  // in seconds
// Returns an id for a call of the answer, which begins with `prefix` unless the model's templates require another form.
std::string new_call_id(const ApiRequest& request, const char* prefix);
// Throws ApiError if the choice ended in an error.
void throw_if_failed(const GenerationEvent& event);

// Collects the events of a request into one response. The request and the tokenizer must outlive it.
class WholeResponse {
 public:
  WholeResponse(const ApiRequest& request, const Tokenizer& tokenizer);
  void add(const GenerationEvent& event, const GenerationRun& run);  // throws ApiError if the choice failed
  Json json(const RequestUsage& usage);

 private:
  struct Choice {
    std::string text, reasoning;
    std::vector<TokenLogprob> chat_logprobs;
    LegacyLogprobs legacy_logprobs;
    ShownLogprobs shown;
    FinishReason finish = FinishReason::kNone;
    bool started = false;
    std::optional<AnswerParser> parser;  // set for chat
    Json tool_calls = Json::array();
  };
  void add_text(const GenerationEvent& event, Choice* choice);
  Json message_json(const Choice& choice) const;
  Json choice_json(size_t index);

  const ApiRequest& request_;
  const Tokenizer& tokenizer_;
  int64_t created_;
  std::vector<Choice> choices_;
};

// Turns events into the chunks of a stream (the JSON after "data: "). The request and the tokenizer must outlive it.
class StreamResponse {
 public:
  StreamResponse(const ApiRequest& request, const Tokenizer& tokenizer);
  // Returns, for chat, a chunk with the role for every choice.
  std::vector<Json> start();
  // Throws ApiError if the choice failed.
  std::vector<Json> add(const GenerationEvent& event, const GenerationRun& run);
  // Returns a chunk with the usage, if the request has include_usage.
  std::vector<Json> finish(const RequestUsage& usage);

 private:
  Json chunk(Json choice) const;                   // a null `choice` makes a chunk without choices
  Json take_drafts(const GenerationEvent& event);  // null without include_drafts, or if there is nothing new
  std::vector<Json> add_chat(const GenerationEvent& event);
  std::vector<Json> deltas(const GenerationEvent& event);
  std::vector<Json> add_completion(const GenerationEvent& event, const GenerationRun& run);

  const ApiRequest& request_;
  const Tokenizer& tokenizer_;
  int64_t created_;
  std::vector<LegacyLogprobs> logprobs_;  // per choice
  std::vector<ShownLogprobs> shown_;      // per choice
  std::vector<AnswerParser> parsers_;     // per choice; empty for completions
  std::vector<DraftText> drafts_;         // per choice; empty without include_drafts
  std::vector<bool> started_;             // per choice
  Json usage_;                            // the usage so far, with continuous_usage_stats; else null
};

}  // namespace smartkv::openai
