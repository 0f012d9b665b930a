// POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API, on top of one chat generation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/anthropic/thinking_signature.h"
#include "server/openai/answer_parser.h"
#include "server/openai/api_request.h"
#include "server/openai/field_names.h"
#include "server/openai/generation_run.h"

namespace smartkv::anthropic {

using openai::Json;

struct MessagesRequest {
  openai::ApiRequest chat;       // the chat request to generate
  openai::FieldNames names;      // maps fields of the chat request to fields of this request, for errors
  ThinkingSigner signer;         // of the thinking blocks in the answer
  bool omits_thinking = false;   // the text of thinking blocks is left out of the answer
  int64_t ignored_thinking = 0;  // thinking blocks of the history that this server did not sign
  std::string cache_ttl = {};    // the longest time to live of a cache_control, "5m" or "1h"; empty if there is none
};

// Both throw ApiError, which names fields of the Messages API.
MessagesRequest parse_messages(std::string_view body, const openai::ServedModel& model);
// Returns {"input_tokens": N}, the tokens of the prompt, which may be longer than the context.
Json count_tokens(std::string_view body, const openai::ServedModel& model);

// Collects a generation into a message. start(), add() and finish() return the events of a stream. The request must
// outlive it.
class MessagesStream {
 public:
  explicit MessagesStream(const MessagesRequest& request);
  // Returns no event: message_start tells the tokens found in the cache, which are known with the first token.
  std::vector<Json> start() { return {}; }
  std::vector<Json> add(const GenerationEvent& event,
                        const openai::GenerationRun& run);  // throws ApiError if it failed
  // `usage` is for message_start, the first event.
  std::vector<Json> add(const std::vector<openai::AnswerPiece>& pieces, const RequestUsage& usage);
  std::vector<Json> finish(const RequestUsage& usage);
  const Json& json() const { return message_; }  // the message so far; complete after finish()

 private:
  void begin(const RequestUsage& usage, std::vector<Json>* events);
  void add_piece(const openai::AnswerPiece& piece, std::vector<Json>* events);
  // Adds text to the last block, which is a new one unless it is open and of this type.
  void add_text(const char* type, const std::string& text, std::vector<Json>* events);
  void open_block(Json block, std::vector<Json>* events);
  void close_block(std::vector<Json>* events);
  void add_delta(Json delta, std::vector<Json>* events);
  std::string stop_reason(const RequestUsage& usage) const;
  Json usage_members(const RequestUsage& usage) const;

  const MessagesRequest& request_;
  openai::AnswerParser parser_;
  Json message_;
  bool begun_ = false;
  bool open_ = false;      // whether the last block is incomplete
  std::string arguments_;  // JSON text of the open tool_use block
  std::string thinking_;   // text of the open thinking block
  FinishReason finish_ = FinishReason::kNone;
  std::optional<std::string> stop_string_;
};

}  // namespace smartkv::anthropic
