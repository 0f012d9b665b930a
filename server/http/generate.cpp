// Answers a generation. The status is decided before anything is sent: the request was parsed, checked and queued by
// then. While it runs, the socket is looked at between events (every 20 ms at the latest), for whole responses too:
// a client that is gone ends the handler, whose GenerationRun cancels the request as it goes out of scope.
#include <memory>

#include "engine/log.h"
#include "server/http/routes.h"
#include "server/openai/response.h"

namespace smartkv::http {

using openai::ApiError;
using openai::ApiRequest;
using openai::GenerationRun;
using openai::Json;

namespace {

constexpr int kClientClosedRequest = 499;  // nginx's code; only the metrics see it

void send_whole(const Tokenizer& tokenizer, const ApiRequest& request, GenerationRun& run,
                const Connection& connection, httplib::Response& response) {
  openai::WholeResponse whole(request, tokenizer);
  GenerationEvent event;
  for (;;) {
    const GenerationRun::Status status = run.next(&event);
    if (status == GenerationRun::Status::kEnd) break;
    if (status == GenerationRun::Status::kEvent) whole.add(event, run);
    if (!connection.alive()) {
      response.status = kClientClosedRequest;
      return;
    }
  }
  send_json(response, whole.json(run.usage()));
}

bool send_data(httplib::DataSink& sink, const std::string& data) {
  const std::string message = "data: " + data + "\n\n";
  return sink.is_writable() && sink.write(message.data(), message.size());
}

bool send_chunks(httplib::DataSink& sink, const std::vector<Json>& chunks) {
  for (const Json& chunk : chunks) {
    if (!send_data(sink, openai::dump(chunk))) return false;
  }
  return true;
}

// False: the client is gone.
bool send_events(const Tokenizer& tokenizer, const ApiRequest& request, GenerationRun& run, httplib::DataSink& sink) {
  try {
    openai::StreamResponse stream(request, tokenizer);
    if (!send_chunks(sink, stream.start())) return false;
    GenerationEvent event;
    for (;;) {
      const GenerationRun::Status status = run.next(&event);
      if (status == GenerationRun::Status::kEnd) break;
      if (status == GenerationRun::Status::kEvent && !send_chunks(sink, stream.add(event, run))) return false;
      if (status == GenerationRun::Status::kTimeout && !sink.is_writable()) return false;
    }
    if (!send_chunks(sink, stream.finish(run.usage()))) return false;
  } catch (const ApiError& error) {
    log_error(request.id + ": " + error.what());
    if (!send_data(sink, openai::dump(error.body()))) return false;
  } catch (const std::exception& error) {
    log_error(request.id + ": " + error.what());
    const ApiError internal = openai::server_error(std::string("Internal error: ") + error.what());
    if (!send_data(sink, openai::dump(internal.body()))) return false;
  }
  return send_data(sink, "[DONE]");
}

}  // namespace

void generate(Service& service, ApiRequest request, const httplib::Request& http, httplib::Response& response) {
  const Tokenizer& tokenizer = service.engine.tokenizer();
  auto shared_request = std::make_shared<const ApiRequest>(std::move(request));
  auto run = std::make_shared<GenerationRun>(service.engine, *shared_request);
  response.set_header("X-Request-Id", shared_request->id);
  if (!shared_request->stream) {
    send_whole(tokenizer, *shared_request, *run, Connection::of(http), response);
    return;
  }
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");
  const auto provider = [&tokenizer, shared_request, run](size_t, httplib::DataSink& sink) {
    const bool sent = send_events(tokenizer, *shared_request, *run, sink);
    sink.done();
    return sent;
  };
  if (http.version == "HTTP/1.0") {  // knows no chunks: the end of the connection is the end of the stream
    Connection::of(http).close_after_response = true;
    response.set_content_provider("text/event-stream", provider);
  } else {
    response.set_chunked_content_provider("text/event-stream", provider);
  }
}

}  // namespace smartkv::http
