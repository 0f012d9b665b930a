// POST /v1/responses: OpenAI's Responses API over one chat generation. Nothing is stored: previous turns come in `input`.
#pragma once

#include <string>
#include <vector>

#include "server/openai/api_request.h"
#include "server/openai/field_names.h"
#include "server/openai/generation_run.h"
#include "server/openai/tool_call_parser.h"

namespace smartkv::openai {

struct ResponsesRequest {
  ApiRequest chat;   // what is generated
  Json echoed;       // the members of the response that repeat the request
  FieldNames names;  // of the chat request's fields in this one, for errors
};

// Throws ApiError that names the field of this API.
ResponsesRequest parse_responses(std::string_view body, const ServedModel& model);

// Gathers a generation into a response, and says what a stream tells on the way.
class ResponsesStream {
 public:
  explicit ResponsesStream(const ResponsesRequest& request);
  std::vector<Json> start();
  std::vector<Json> add(const GenerationEvent& event, const GenerationRun& run);  // throws ApiError
  std::vector<Json> finish(const RequestUsage& usage);
  Json json() const;  // the response; whole after finish()

 private:
  Json event(const char* type, Json members);
  void open_item(Json item, std::vector<Json>* events);
  void close_item(std::vector<Json>* events);
  void add_piece(const AnswerPiece& piece, std::vector<Json>* events);

  const ResponsesRequest& request_;
  ToolCallParser parser_;
  Json response_;
  bool open_ = false;  // the last item of the output still grows
  FinishReason finish_ = FinishReason::kNone;
  int64_t sequence_ = 0;
};

}  // namespace smartkv::openai
