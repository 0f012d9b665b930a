// Answers a request that generates text. The status is decided before anything is sent, because the request has been
// parsed, checked and queued by then. While it runs, the handler checks the socket between events, at least every 20
// ms, also when the response is sent as a whole. If the client has disconnected, the handler ends, and its
// GenerationRun cancels the request when it goes out of scope.
#include <chrono>

#include "engine/log.h"
#include "server/anthropic/error.h"
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

void observe(const GenerationEvent& event, StreamHealth* health) {
  const FinishReason finish = event.finish;
  if (finish == FinishReason::kStop || finish == FinishReason::kLength) health->succeeded();
  if (finish == FinishReason::kError || finish == FinishReason::kOutOfMemory || finish == FinishReason::kLost)
    health->failed();
}

// Queues the generations of a request, and charges the API key for their prompts. Throws ApiError.
GenerationRun begin(Service& service, const ApiRequest& request, ResponseWriter& response) {
  KeyAccount* const account = response.lease == nullptr ? nullptr : &response.lease->account();
  GenerationRun run(
      service.engine, request, [&response] { return response.client_left(); },
      account == nullptr ? "" : account->name(), account == nullptr ? 0 : account->kv_bytes());
  for (const GenerationRequest& one : request.generations) response.charge(static_cast<int64_t>(one.prompt.size()));
  response.id = request.id;
  return run;
}

// Reads all events and hands each to `take`. Calls `wait` after each event, and at least every 20 ms. Returns false as
// soon as one of them does, because the client has disconnected.
template <typename Take, typename Wait>
bool read_all(Service& service, GenerationRun& run, const ResponseWriter& response, const Take& take,
              const Wait& wait) {
  GenerationEvent event;
  for (;;) {
    const GenerationRun::Status status = run.next(&event);
    if (status == GenerationRun::Status::kEnd) return true;
    if (status == GenerationRun::Status::kEvent) {
      observe(event, &service.streams);
      response.charge(static_cast<int64_t>(event.tokens.size()));
      if (!take(event)) return false;
    }
    if (!wait()) return false;
  }
}

// Adds all events to `whole`, a WholeResponse, ResponsesStream or MessagesStream. Throws ApiError.
template <typename Whole>
void collect(Service& service, GenerationRun& run, const ResponseWriter& response, Whole& whole) {
  const auto add = [&](const GenerationEvent& event) {
    whole.add(event, run);
    return true;
  };
  if (read_all(service, run, response, add, [&] { return !response.client_left(); })) return;
  throw ApiError(kClientClosedRequest, "invalid_request_error", "The client has disconnected");
}

// What differs between the streams of the APIs.
struct StreamStyle {
  const char* ping = ": ping\n\n";  // written after a long silence
  const char* end = "";             // written behind the last event
  std::function<Json(const ApiError&)> error_event = [](const ApiError& error) { return error.body(); };
};

// Writes server-sent events. It writes a ping after a long silence, because proxies cut a silent connection.
class EventWriter {
 public:
  // Sends the head of the response. `silence` is the longest silence; 0 for no limit.
  EventWriter(ResponseWriter& response, std::chrono::seconds silence, const char* ping)
      : response_(response), silence_(silence), ping_(ping) {
    response.content_type = "text/event-stream; charset=utf-8";
    response.add_header("Cache-Control", "no-cache");
    response.add_header("X-Accel-Buffering", "no");
    response.begin_stream();
  }

  // Writes the chunks. A chunk with a member "type" carries it as the event's name, too. Returns false if the client
  // has disconnected.
  bool send(const std::vector<Json>& chunks) {
    for (const Json& chunk : chunks) {
      const std::string name = chunk.contains("type") ? "event: " + chunk["type"].get<std::string>() + '\n' : "";
      if (!write(name + "data: " + openai::dump(chunk) + "\n\n")) return false;
    }
    return true;
  }
  bool send_text(const char* text) { return *text == '\0' || write(text); }

  // Writes a ping if one is due. Called at least every 20 ms. Returns false if the client has disconnected.
  bool wait() {
    if (silence_.count() > 0 && Clock::now() - written_ >= silence_) return write(ping_);
    return !response_.client_left();
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool write(const std::string& message) {
    written_ = Clock::now();
    return response_.write(message);
  }

  ResponseWriter& response_;
  std::chrono::seconds silence_;
  const char* ping_;
  Clock::time_point written_ = Clock::now();
};

// Streams the events of a generation. `events` is a StreamResponse, ResponsesStream or MessagesStream. Sets the status
// that is counted: 200 if the answer is complete, 499 if the client has disconnected, else the status of the error that
// ended it. Such an error is the last event of the stream.
template <typename Events>
void stream(Service& service, GenerationRun& run, ResponseWriter& response, Events& events, const StreamStyle& style) {
  EventWriter writer(response, service.sse_ping, style.ping);
  const auto fail = [&](const ApiError& error) {
    response.status = error.status;
    log_error(response.id + ": " + error.what());
    writer.send({style.error_event(error)});
  };
  try {
    const auto add = [&](const GenerationEvent& event) { return writer.send(events.add(event, run)); };
    const bool sent = writer.send(events.start()) &&
                      read_all(service, run, response, add, [&] { return writer.wait(); }) &&
                      writer.send(events.finish(run.usage())) && writer.send_text(style.end);
    if (!sent) response.status = kClientClosedRequest;
  } catch (const ApiError& error) {
    fail(error);
  } catch (const std::exception& error) {
    fail(openai::internal_error(error));
  }
}

}  // namespace

void generate(Service& service, const ApiRequest& request, ResponseWriter& response) {
  const Tokenizer& tokenizer = service.engine.tokenizer();
  GenerationRun run = begin(service, request, response);
  if (request.stream) {
    openai::StreamResponse events(request, tokenizer);
    return stream(service, run, response, events, {.end = "data: [DONE]\n\n"});
  }
  openai::WholeResponse whole(request, tokenizer);
  collect(service, run, response, whole);
  send_json(response, whole.json(run.usage()));
}

void respond(Service& service, std::unique_ptr<openai::ResponsesRequest> owned, ResponseWriter& response) {
  const openai::ResponsesRequest& request = *owned;
  const auto begin_run = [&] {
    try {
      return begin(service, request.chat, response);
    } catch (const ApiError& error) {
      throw request.names.outer(error);
    }
  };
  if (request.background) {
    // The lease is the job's as soon as the request is queued.
    const auto lease = std::make_shared<decltype(response.lease)>();
    const auto begin_job = [&] {
      GenerationRun run = begin_run();
      *lease = std::move(response.lease);
      return run;
    };
    const auto on_event = [&service, lease](const GenerationEvent& event) {
      observe(event, &service.streams);
      if (*lease != nullptr) (*lease)->charge(static_cast<int64_t>(event.tokens.size()));
    };
    const std::string& owner = response.key_name();
    return send_json(response, service.responses->start(std::move(owned), begin_job, owner, on_event));
  }
  GenerationRun run = begin_run();
  openai::ResponsesStream events(
      request, request.input.is_null() ? nullptr : service.responses->keeper(request, response.key_name()));
  if (request.chat.stream) return stream(service, run, response, events, {});
  collect(service, run, response, events);
  events.finish(run.usage());
  send_json(response, events.json());
}

void send_message(Service& service, const anthropic::MessagesRequest& request, ResponseWriter& response) {
  GenerationRun run = [&] {
    try {
      return begin(service, request.chat, response);
    } catch (const ApiError& error) {
      throw anthropic::overloaded(request.names.outer(error));
    }
  }();
  const std::string id = anthropic::request_id(request.chat.id);
  anthropic::MessagesStream events(request);
  if (request.chat.stream) {
    response.add_header("request-id", id);
    return stream(service, run, response, events,
                  {.ping = "event: ping\ndata: {\"type\": \"ping\"}\n\n",
                   .error_event = [&](const ApiError& error) { return anthropic::error_json(error, id); }});
  }
  collect(service, run, response, events);
  events.finish(run.usage());
  response.add_header("request-id", id);
  send_json(response, events.json());
}

}  // namespace smartkv::http
