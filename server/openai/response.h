// Responses of /v1/completions and /v1/chat/completions, whole and as chunks of a stream.
#pragma once

#include <string>
#include <vector>

#include "server/openai/api_request.h"
#include "server/openai/draft_text.h"
#include "server/openai/generation_run.h"
#include "server/openai/logprobs.h"
#include "server/openai/tool_call_parser.h"

namespace smartkv::openai {

std::string_view finish_reason(FinishReason reason);  // "stop" or "length"; the others end in an error instead
int64_t unix_time();                                  // seconds
// The error that a choice ended in; throws it. Does nothing for other endings.
void throw_if_failed(const GenerationEvent& event);

// Gathers events into one response.
class WholeResponse {
 public:
  WholeResponse(const ApiRequest& request, const Tokenizer& tokenizer);
  void add(const GenerationEvent& event, const GenerationRun& run);  // throws ApiError if the choice failed
  Json json(const RequestUsage& usage);

 private:
  struct Choice {
    std::string text;
    std::vector<TokenLogprob> chat_logprobs;
    LegacyLogprobs legacy_logprobs;
    ShownLogprobs shown;
    FinishReason finish = FinishReason::kNone;
    bool started = false;
    std::optional<ToolCallParser> parser;  // chat with tools
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

// Turns events into the chunks of a stream (the JSON after "data: ").
class StreamResponse {
 public:
  StreamResponse(const ApiRequest& request, const Tokenizer& tokenizer);
  std::vector<Json> start();  // chat: the role of every choice
  std::vector<Json> add(const GenerationEvent& event, const GenerationRun& run);  // throws ApiError
  std::vector<Json> finish(const RequestUsage& usage);                            // with include_usage

 private:
  Json chunk(Json choice) const;  // null: no choice
  Json take_drafts(const GenerationEvent& event);  // with include_drafts; null: nothing new
  std::vector<Json> add_chat(const GenerationEvent& event);
  std::vector<Json> deltas(const GenerationEvent& event);
  std::vector<Json> add_completion(const GenerationEvent& event, const GenerationRun& run);

  const ApiRequest& request_;
  const Tokenizer& tokenizer_;
  int64_t created_;
  std::vector<LegacyLogprobs> logprobs_;  // per choice
  std::vector<ShownLogprobs> shown_;      // per choice
  std::vector<ToolCallParser> parsers_;   // per choice; empty: no tools
  std::vector<DraftText> drafts_;         // per choice; empty: not asked for
  std::vector<bool> started_;
  Json usage_;  // so far, with continuous_usage_stats; else null
};

}  // namespace smartkv::openai
