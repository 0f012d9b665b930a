// Answers a generation. The status is decided before anything is sent: the request was parsed, checked and queued by
// then. While it runs, the socket is looked at between events (every 20 ms at the latest), for whole responses too:
// a client that is gone ends the handler, whose GenerationRun cancels the request as it goes out of scope.
#include <functional>
#include <memory>

#include "engine/log.h"
#include "server/http/routes.h"
#include "server/openai/response.h"
#include "server/openai/responses.h"

namespace smartkv::http {

using openai::ApiError;
using openai::ApiRequest;
using openai::GenerationRun;
using openai::Json;
using openai::kClientClosedRequest;

namespace {

constexpr const char* kEvents = "text/event-stream; charset=utf-8";

void observe(const GenerationEvent& event, StreamHealth* health) {
  const FinishReason finish = event.finish;
  if (finish == FinishReason::kStop || finish == FinishReason::kLength) health->succeeded();
  if (finish == FinishReason::kError || finish == FinishReason::kOutOfMemory || finish == FinishReason::kLost) health->failed();
}

// Reads all events; false: the client is gone.
template <typename Take>
bool read_all(GenerationRun& run, const Connection& connection, StreamHealth* health, const Take& take) {
  GenerationEvent event;
  for (;;) {
    const GenerationRun::Status status = run.next(&event);
    if (status == GenerationRun::Status::kEnd) return true;
    if (status == GenerationRun::Status::kEvent) {
      observe(event, health);
      connection.charge(static_cast<int64_t>(event.tokens.size()));
      take(event);
    }
    if (!connection.alive()) return false;
  }
}

// Events with a type of their own carry it as the event's name, too.
bool send_data(httplib::DataSink& sink, const std::string& data, const std::string& name = "") {
  const std::string message = (name.empty() ? "" : "event: " + name + "\n") + "data: " + data + "\n\n";
  return sink.is_writable() && sink.write(message.data(), message.size());
}

bool send_chunks(httplib::DataSink& sink, const std::vector<Json>& chunks) {
  for (const Json& chunk : chunks) {
    if (!send_data(sink, openai::dump(chunk), chunk.contains("type") ? chunk["type"].get<std::string>() : "")) return false;
  }
  return true;
}

// False: the client is gone. Stream: StreamResponse or ResponsesStream.
template <typename Stream>
bool send_events(const std::string& id, Stream stream, GenerationRun& run, const Connection& connection, StreamHealth* health,
                 httplib::DataSink& sink) {
  try {
    if (!send_chunks(sink, stream.start())) return false;
    GenerationEvent event;
    for (;;) {
      const GenerationRun::Status status = run.next(&event);
      if (status == GenerationRun::Status::kEnd) break;
      if (status == GenerationRun::Status::kEvent) {
        observe(event, health);
        connection.charge(static_cast<int64_t>(event.tokens.size()));
        if (!send_chunks(sink, stream.add(event, run))) return false;
      }
      if (status == GenerationRun::Status::kTimeout && !sink.is_writable()) return false;
    }
    return send_chunks(sink, stream.finish(run.usage()));
  } catch (const ApiError& error) {
    log_error(id + ": " + error.what());
    return send_data(sink, openai::dump(error.body()));
  } catch (const std::exception& error) {
    log_error(id + ": " + error.what());
    return send_data(sink, openai::dump(openai::internal_error(error).body()));
  }
}

// `send` fills the stream; it owns what it needs.
void stream(const httplib::Request& http, httplib::Response& response, const std::function<bool(httplib::DataSink&)>& send) {
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");
  const auto provider = [send](size_t, httplib::DataSink& sink) {
    const bool sent = send(sink);
    sink.done();
    return sent;
  };
  if (http.version == "HTTP/1.0") {  // knows no chunks: the end of the connection is the end of the stream
    Connection::of(http).close_after_response = true;
    response.set_content_provider(kEvents, provider);
  } else {
    response.set_chunked_content_provider(kEvents, provider);
  }
}

// Queues what was asked for; its prompts count for the API key from now on.
std::shared_ptr<GenerationRun> begin(Service& service, const ApiRequest& request, const Connection& connection) {
  auto run = std::make_shared<GenerationRun>(service.engine, request, [&connection] { return !connection.alive(); });
  for (const GenerationRequest& one : request.generations) connection.charge(static_cast<int64_t>(one.prompt.size()));
  return run;
}

}  // namespace

void generate(Service& service, ApiRequest request, const httplib::Request& http, httplib::Response& response) {
  const Tokenizer& tokenizer = service.engine.tokenizer();
  auto shared_request = std::make_shared<const ApiRequest>(std::move(request));
  Connection& connection = Connection::of(http);
  auto run = begin(service, *shared_request, connection);
  response.set_header("X-Request-Id", shared_request->id);
  if (shared_request->stream) {
    stream(http, response, [&tokenizer, &connection, health = &service.streams, shared_request, run](httplib::DataSink& sink) {
      const openai::StreamResponse events(*shared_request, tokenizer);
      return send_events(shared_request->id, events, *run, connection, health, sink) && send_data(sink, "[DONE]");
    });
    return;
  }
  openai::WholeResponse whole(*shared_request, tokenizer);
  if (read_all(*run, connection, &service.streams, [&](const GenerationEvent& event) { whole.add(event, *run); })) {
    send_json(response, whole.json(run->usage()));
  } else {
    response.status = kClientClosedRequest;
  }
}

void respond(Service& service, openai::ResponsesRequest request, const httplib::Request& http, httplib::Response& response) {
  auto shared_request = std::make_shared<const openai::ResponsesRequest>(std::move(request));
  Connection& connection = Connection::of(http);
  std::shared_ptr<GenerationRun> run;
  try {
    run = begin(service, shared_request->chat, connection);
  } catch (const ApiError& error) {
    throw shared_request->names.outer(error);
  }
  response.set_header("X-Request-Id", shared_request->chat.id);
  if (shared_request->chat.stream) {
    stream(http, response, [&connection, health = &service.streams, shared_request, run](httplib::DataSink& sink) {
      return send_events(shared_request->chat.id, openai::ResponsesStream(*shared_request), *run, connection, health, sink);
    });
    return;
  }
  openai::ResponsesStream whole(*shared_request);
  if (read_all(*run, connection, &service.streams, [&](const GenerationEvent& event) { whole.add(event, *run); })) {
    whole.finish(run->usage());
    send_json(response, whole.json());
  } else {
    response.status = kClientClosedRequest;
  }
}

}  // namespace smartkv::http
