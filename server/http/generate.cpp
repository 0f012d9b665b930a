// Answers a generation. The status is decided before anything is sent: the request was parsed, checked and queued by
// then. While it runs, the socket is looked at between events (every 20 ms at the latest), for whole responses too:
// a client that is gone ends the handler, whose GenerationRun cancels the request as it goes out of scope.
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

// Writes server-sent events, and comments where nothing else comes for too long: proxies cut a silent connection.
class EventWriter {
 public:
  // `ping`: the longest silence; 0: any.
  EventWriter(httplib::DataSink& sink, std::chrono::seconds ping) : sink_(sink), ping_(ping) {}

  // Events with a type of their own carry it as the event's name, too. Returns false when the client is gone.
  bool send(const std::vector<Json>& chunks) {
    for (const Json& chunk : chunks) {
      const std::string name = chunk.contains("type") ? "event: " + chunk["type"].get<std::string>() + '\n' : "";
      if (!write(name + "data: " + openai::dump(chunk) + "\n\n")) return false;
    }
    return true;
  }
  bool send_done() { return write("data: [DONE]\n\n"); }

  // Called a few times a second while nothing is sent. Returns false when the client is gone.
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

// Stream: StreamResponse or ResponsesStream. Returns the status that the answer deserves: 200 for a whole one. An error is the last
// event of a stream that it ends.
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

// `send` fills the stream, and returns the status that it deserves; it owns what it needs. A stream that fails stays without its end:
// the connection is closed before the last chunk, so that no client takes it for a whole answer.
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
  if (http.version == "HTTP/1.0") {  // knows no chunks: the end of the connection is the end of the stream
    connection.close_after_response = true;
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
