// POST /v1/responses: OpenAI's Responses API, on top of one chat generation. Nothing is stored, so clients send
// previous turns in `input`.
#pragma once

#include <vector>

#include "server/openai/answer_parser.h"
#include "server/openai/api_request.h"
#include "server/openai/field_names.h"
#include "server/openai/generation_run.h"

namespace smartkv::openai {

struct ResponsesRequest {
  ApiRequest chat;   // the chat request to generate
  Json echoed;       // the members of the response that repeat the request
  FieldNames names;  // maps fields of the chat request to fields of this request, for errors
};

// Throws ApiError, which names fields of the Responses API.
ResponsesRequest parse_responses(std::string_view body, const ServedModel& model);

// Collects a generation into a response. start(), add() and finish() return the events of a stream. The request must
// outlive it.
class ResponsesStream {
 public:
  explicit ResponsesStream(const ResponsesRequest& request);
  std::vector<Json> start();
  std::vector<Json> add(const GenerationEvent& event, const GenerationRun& run);  // throws ApiError if it failed
  std::vector<Json> finish(const RequestUsage& usage);
  const Json& json() const { return response_; }  // the response so far; complete after finish()

 private:
  Json event(const char* type, const Json& members);
  void open_item(Json item, std::vector<Json>* events);
  void close_item(std::vector<Json>* events);
  void add_piece(const AnswerPiece& piece, std::vector<Json>* events);

  const ResponsesRequest& request_;
  AnswerParser parser_;
  Json response_;
  bool open_ = false;  // whether the last item of the output is incomplete
  FinishReason finish_ = FinishReason::kNone;
  int64_t sequence_ = 0;
};

}  // namespace smartkv::openai
