// What the server answers, route by route.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "server/http/http_server.h"
#include "server/http/stream_health.h"
#include "server/openai/api_request.h"
#include "server/openai/responses.h"

namespace smartkv::http {

// What the handlers share. Outlives the server.
struct Service {
  Engine& engine;
  openai::ServedModel model;
  int64_t created = 0;  // Unix time, of the model's start
  RequestCounter requests;
  std::function<bool()> draining;
  StreamHealth streams = {};
  std::chrono::seconds sse_ping = std::chrono::seconds(0);  // longest silence of a stream; 0: any
};

std::vector<Route> make_routes(Service& service);

// The endpoints that generate: whole or as server-sent events. See generate.cpp for how a client that goes away
// is noticed.
void generate(Service& service, openai::ApiRequest request, const httplib::Request& http, httplib::Response& response);
void respond(Service& service, openai::ResponsesRequest request, const httplib::Request& http, httplib::Response& response);

}  // namespace smartkv::http
