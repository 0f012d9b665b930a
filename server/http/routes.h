// The routes of the server and their handlers.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "server/anthropic/messages.h"
#include "server/http/http_server.h"
#include "server/http/response_store.h"
#include "server/http/stream_health.h"
#include "server/openai/api_request.h"
#include "server/openai/responses.h"

namespace smartkv::http {

// State that the handlers share. It outlives the server.
struct Service {
  Engine& engine;
  openai::ServedModel model;
  int64_t created = 0;  // Unix time at which the model was started, in seconds
  RequestCounter requests;
  std::function<bool()> draining;
  StreamHealth streams = {};
  std::chrono::seconds sse_ping = std::chrono::seconds(0);  // longest silence of a stream; 0 for no limit
  std::unique_ptr<ResponseStore> responses = {};            // null if the server stores none
  std::mutex large_texts = {};  // held while a large text is tokenized outside of a generation
};

std::vector<Route> make_routes(Service& service);  // REQUIRES: `service` outlives the routes

// Answer the endpoints that generate, with one JSON object or with server-sent events. generate.cpp explains how a
// disconnected client is noticed. All throw ApiError if nothing was sent yet.
void generate(Service& service, const openai::ApiRequest& request, ResponseWriter& response);
void respond(Service& service, std::unique_ptr<openai::ResponsesRequest> request, ResponseWriter& response);
void send_message(Service& service, const anthropic::MessagesRequest& request, ResponseWriter& response);

}  // namespace smartkv::http
