// POST /v1/responses: OpenAI's Responses API, on top of one chat generation. If the operator lets the server store
// responses, `previous_response_id` names the turns before `input`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/openai/answer_parser.h"
#include "server/openai/api_request.h"
#include "server/openai/field_names.h"
#include "server/openai/generation_run.h"
#include "server/openai/stored_responses.h"

namespace smartkv::openai {

struct ResponsesRequest {
  ApiRequest chat;          // the chat request to generate
  Json echoed;              // the members of the response that repeat the request
  FieldNames names;         // maps fields of the chat request to fields of this request, for errors
  Json input;               // an array of items: `input` as it is stored, with ids; null if the response is not stored
  bool background = false;  // whether the client reads the response later, with GET
};

// Throws ApiError, which names fields of the Responses API. `stored` is null if nothing is stored. `owner` is the name
// of the request's API key, or empty.
ResponsesRequest parse_responses(std::string_view body, const ServedModel& model, StoredResponses* stored = nullptr,
                                 const std::string& owner = {});

// Collects a generation into a response. start(), add() and finish() return the events of a stream. The request must
// outlive it.
class ResponsesStream {
 public:
  // finish() hands the complete response to `keep`, which may be null, before it returns the last event: a client that
  // has read it may name the response at once. `keep` returns whether the response is stored.
  explicit ResponsesStream(const ResponsesRequest& request, std::function<bool(const Json&)> keep = nullptr);
  std::vector<Json> start();
  std::vector<Json> add(const GenerationEvent& event, const GenerationRun& run);  // throws ApiError if it failed
  std::vector<Json> finish(const RequestUsage& usage);
  // Ends a response that has failed, or that was cancelled if `error` is null. Its output so far stays.
  void abort(const ApiError* error);
  const Json& json() const { return response_; }  // the response so far; complete after finish() or abort()

 private:
  Json event(const char* type, const Json& members);
  void open_item(Json item, std::vector<Json>* events);
  void close_item(std::vector<Json>* events);
  void add_piece(const AnswerPiece& piece, std::vector<Json>* events);
  void store();

  const ResponsesRequest& request_;
  std::function<bool(const Json&)> keep_;
  AnswerParser parser_;
  Json response_;
  bool open_ = false;  // whether the last item of the output is incomplete
  FinishReason finish_ = FinishReason::kNone;
  int64_t sequence_ = 0;
};

}  // namespace smartkv::openai
