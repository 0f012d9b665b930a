#include <unistd.h>

#include <atomic>
#include <csignal>
#include <future>
#include <iostream>
#include <memory>

#include "engine/log.h"
#include "server/commands/calibrate.h"
#include "server/commands/command.h"
#include "server/commands/common.h"
#include "server/commands/service_manager.h"
#include "server/http/listening_socket.h"
#include "server/http/routes.h"

namespace smartkv {

namespace {

// After a second signal, requests that are cut off get so long to tell their clients.
constexpr auto kStopGrace = std::chrono::seconds(1);

std::string url(const std::string& host, int port, bool tls) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return (tls ? "https://" : "http://") + std::string(ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

// Ends running requests, tells their clients, and closes all connections.
void stop_now(Engine& engine, http::HttpServer& server, const std::future<void>& drained) {
  log_info("stopping");
  engine.stop();
  drained.wait_for(kStopGrace);
  server.stop();
}

// Drains the server after `delay`, once the first signal has arrived. A second signal stops it.
void shut_down(Engine& engine, http::HttpServer& server, http::ResponseStore* responses, Signals& signals,
               std::chrono::seconds delay) {
  notify_service_manager("STOPPING=1\nSTATUS=Draining: running requests finish");
  bool stopping = false;
  if (delay.count() > 0) {
    log_info("shutting down: requests are accepted for " + std::to_string(delay.count()) +
             " s more; a second signal stops at once");
    stopping = signals.poll(delay) != 0;
  }
  log_info("draining: running requests finish, new requests are refused; a second signal stops at once");
  server.begin_drain();
  // If no thread can be started, this thread drains and cannot react to a second signal.
  auto drained = std::async(std::launch::async | std::launch::deferred, [&] {
    engine.drain();
    server.wait_until_idle();
    if (responses != nullptr) responses->wait_until_idle();
  });
  if (stopping) stop_now(engine, server, drained);
  while (drained.wait_for(std::chrono::milliseconds(0)) == std::future_status::timeout) {
    if (!signals.poll(std::chrono::milliseconds(20)) || std::exchange(stopping, true)) continue;
    stop_now(engine, server, drained);
  }
  drained.get();
  server.stop();
  log_info("stopped");
}

// Returns null if no responses are to be stored. Throws std::runtime_error.
std::unique_ptr<http::ResponseStore> make_response_store(const http::HttpOptions& options) {
  if (options.stored_responses_bytes == 0) {
    if (options.stored_responses_dir.empty()) return nullptr;
    throw ConfigError("stored_responses_dir: expected stored_responses_bytes above 0 beside it, found 0");
  }
  return std::make_unique<http::ResponseStore>(
      options.stored_responses_dir.empty()
          ? openai::texts_in_memory(options.stored_responses_bytes)
          : openai::texts_in_folder(options.stored_responses_bytes, options.stored_responses_dir),
      options.max_body_bytes, options.stored_responses_bytes);
}

int serve(ServerOptions options, bool by_answers) {
  options.engine.calibrates = true;  // any client may choose any policy
  // These checks come before the model is loaded, because that takes long.
  for (const auto& check : http::file_checks(options.http)) check();
  std::unique_ptr<http::ResponseStore> responses = make_response_store(options.http);
  http::check_port(options.http.host, options.http.port);
  if (by_answers) calibrate_by_answers(options.engine.model.path, options.engine.model.threads);  // signals end it
  Signals signals({SIGINT, SIGTERM, SIGHUP});
  log_in_background();
  const LogFlush flush;
  const auto engine = load_engine(options, signals);
  http::Service service{.engine = *engine,
                        .model = served_model(*engine, options),
                        .created = std::time(nullptr),
                        .requests = {},
                        .draining = {},
                        .sse_ping = std::chrono::seconds(options.http.sse_ping_s),
                        .responses = std::move(responses)};
  http::HttpServer server(options.http, http::make_routes(service), &service.requests);
  std::atomic<bool> leaving = false;
  service.draining = [&] { return leaving || server.draining(); };
  const int port = server.start();
  const std::string serving = "Serving " + service.model.names.front() + " at " +
                              url(options.http.host, port, !options.http.tls_cert.empty()) + "/v1";
  std::cout << serving << std::endl;
  if (options.http.api_key.empty() && options.http.api_keys_file.empty() && options.http.host != "127.0.0.1" &&
      options.http.host != "localhost") {
    log_warning("no API key is set and the server listens on " + options.http.host +
                ": anyone who can reach it can use it");
  }
  engine->on_lost([] { ::kill(::getpid(), SIGTERM); });  // ends the process, so that a supervisor restarts it
  notify_service_manager("READY=1\nSTATUS=" + serving);
  while (engine->lost().empty() && signals.wait() == SIGHUP) {
    notify_service_manager(reloading_lines());
    server.reload();
    notify_service_manager("READY=1");
  }
  leaving = true;
  shut_down(*engine, server, service.responses.get(), signals,
            std::chrono::seconds(engine->lost().empty() ? options.http.shutdown_delay_s : 0));
  return engine->lost().empty() ? kOk : kRuntimeError;
}

constexpr const char* kServeExamples = R"(Examples:
  smartkv serve --config configs/default.json
  smartkv serve --preset low_memory --model model.gguf
  smartkv serve --model model.gguf --max-sequences 16 --kv-cache-bytes 2GiB
  SMARTKV_API_KEY=secret smartkv serve --model model.gguf --host 0.0.0.0

Then: curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json'
        -d '{"messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]}'
SIGTERM or Ctrl-C lets running requests finish; a second signal stops the server at once. Behind a load balancer, use
--shutdown-delay 10: the server accepts requests until the load balancer has noticed.)";

}  // namespace

std::function<int()> setup_serve(CLI::App& app) {
  struct Arguments {
    std::unique_ptr<OptionFlags> flags;
    bool print_config = false, calibrate = false;
  };
  auto arguments = std::make_shared<Arguments>();
  arguments->flags = std::make_unique<OptionFlags>(app, true);
  app.add_flag("--print-config", arguments->print_config, "Print the effective config (without the API key) and exit");
  app.add_flag("--calibrate", arguments->calibrate,
               "First measure the model as `smartkv calibrate` does, unless that was done. Takes a minute or more");
  app.footer(kServeExamples);
  return [arguments] {
    if (arguments->print_config) {
      std::cout << config_text(arguments->flags->resolve_without_model());
      return kOk;
    }
    return serve(arguments->flags->resolve(), arguments->calibrate);
  };
}

}  // namespace smartkv
