// Answers a request that generates text. The status is decided before anything is sent, because the request has been
// parsed, checked and queued by then. While it runs, the handler checks the socket between events, at least every 20
// ms, also when the response is sent as a whole. If the client has disconnected, the handler ends, and its
// GenerationRun cancels the request when it goes out of scope.
#include <chrono>
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

// Reads all events and hands each to `take`. Returns false if the client has disconnected.
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

// Writes server-sent events. It writes a comment after a long silence, because proxies cut a silent connection.
class EventWriter {
 public:
  // `ping` is the longest silence; 0 for no limit.
  EventWriter(httplib::DataSink& sink, std::chrono::seconds ping) : sink_(sink), ping_(ping) {}

  // Writes the chunks. A chunk with a member "type" carries it as the event's name, too. Returns false if the client
  // has disconnected.
  bool send(const std::vector<Json>& chunks) {
    for (const Json& chunk : chunks) {
      const std::string name = chunk.contains("type") ? "event: " + chunk["type"].get<std::string>() + '\n' : "";
      if (!write(name + "data: " + openai::dump(chunk) + "\n\n")) return false;
    }
    return true;
  }
  bool send_done() { return write("data: [DONE]\n\n"); }

  // Writes a comment if one is due. Called at least every 20 ms. Returns false if the client has disconnected.
  bool wait() {
    if (ping_.count() > 0 && Clock::now() - written_ >= ping_) return write(": ping\n\n");
    return sink_.is_writable();
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool write(const std::string& message) {
    written_ = Clock::now();
    return sink_.is_writable() && sink_.write(message.data(), message.size());
  }

  httplib::DataSink& sink_;
  std::chrono::seconds ping_;
  Clock::time_point written_ = Clock::now();
};

// Sends the events of a generation. `Stream` is StreamResponse or ResponsesStream. Returns the status to be counted:
// 200 if the answer is complete, 499 if the client has disconnected, else the status of the error that ended it. Such
// an error is the last event of the stream.
template <typename Stream>
int send_events(const std::string& id, Stream stream, GenerationRun& run, const Connection& connection, StreamHealth* health,
                EventWriter& writer) {
  const auto fail = [&](const ApiError& error) {
    log_error(id + ": " + error.what());
    writer.send({error.body()});
    return error.status;
  };
  try {
    if (!writer.send(stream.start())) return kClientClosedRequest;
    GenerationEvent event;
    for (;;) {
      const GenerationRun::Status status = run.next(&event);
      if (status == GenerationRun::Status::kEnd) break;
      if (status == GenerationRun::Status::kEvent) {
        observe(event, health);
        connection.charge(static_cast<int64_t>(event.tokens.size()));
        if (!writer.send(stream.add(event, run))) return kClientClosedRequest;
      }
      if (!writer.wait()) return kClientClosedRequest;
    }
    return writer.send(stream.finish(run.usage())) ? 200 : kClientClosedRequest;
  } catch (const ApiError& error) {
    return fail(error);
  } catch (const std::exception& error) {
    return fail(openai::internal_error(error));
  }
}

// Lets httplib stream the answer after the handler has returned. `send` writes the events and returns the status to be
// counted, so it must own everything that it uses. If that is not 200, the connection is closed before the last chunk,
// so that no client takes the stream for a complete answer.
void stream(const Service& service, const httplib::Request& http, httplib::Response& response,
            const std::function<int(EventWriter&)>& send) {
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");
  Connection& connection = Connection::of(http);
  const auto provider = [&connection, send, ping = service.sse_ping](size_t, httplib::DataSink& sink) {
    EventWriter writer(sink, ping);
    if (const int status = send(writer); status != 200) {
      connection.failed_status = status;
      return false;
    }
    sink.done();
    return true;
  };
  if (http.version == "HTTP/1.0") {  // it has no chunks: the stream ends with the connection
    connection.close_after_response = true;
    response.set_content_provider(kEvents, provider);
  } else {
    response.set_chunked_content_provider(kEvents, provider);
  }
}

// Queues the generations of a request, and charges the API key for their prompts. Throws ApiError.
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
    stream(service, http, response, [&tokenizer, &connection, health = &service.streams, shared_request, run](EventWriter& writer) {
      const openai::StreamResponse events(*shared_request, tokenizer);
      const int status = send_events(shared_request->id, events, *run, connection, health, writer);
      return status == 200 && !writer.send_done() ? kClientClosedRequest : status;
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
    stream(service, http, response, [&connection, health = &service.streams, shared_request, run](EventWriter& writer) {
      return send_events(shared_request->chat.id, openai::ResponsesStream(*shared_request), *run, connection, health, writer);
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
