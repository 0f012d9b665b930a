// smartkv health: asks a server whether it is ready, or with --live whether its process works.
#include <cmath>
#include <iostream>
#include <memory>

#include <httplib.h>

#include "server/commands/command.h"
#include "server/commands/common.h"
#include "server/commands/number_flag.h"

namespace smartkv {
namespace {

struct HealthArguments {
  std::unique_ptr<OptionFlags> flags;
  bool live = false;
  double timeout_s = 4;
};

// Returns the host part of a URL at which this machine reaches a server that listens on `host`.
std::string reachable(const std::string& host) {
  if (host == "0.0.0.0" || host.empty()) return "127.0.0.1";
  if (host == "::") return "[::1]";
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

int health(const HealthArguments& arguments) {
  http::HttpOptions options;
  try {
    options = arguments.flags->resolve_without_model().http;
  } catch (const ConfigError& error) {  // a server with these options did not start either
    std::cerr << "smartkv: " << error.what() << '\n';
    return kRuntimeError;
  }
  const std::string address = (options.tls_cert.empty() ? "http://" : "https://") + reachable(options.host) + ":" +
                              std::to_string(options.port);
  httplib::Client client(address);
  // The certificate is for the name that clients use, but this command connects by a local address.
  client.enable_server_certificate_verification(false);
  const auto seconds = static_cast<time_t>(arguments.timeout_s);
  const auto microseconds = static_cast<time_t>(std::fmod(arguments.timeout_s, 1.0) * 1e6);
  client.set_connection_timeout(seconds, microseconds);
  client.set_read_timeout(seconds, microseconds);
  client.set_write_timeout(seconds, microseconds);
  const std::string path = arguments.live ? "/health/live" : "/health/ready";
  const auto answer = client.Get(path);
  if (!answer) {
    std::cerr << "smartkv: " << address << path << ": no answer (" << httplib::to_string(answer.error()) << ")\n";
    return kRuntimeError;
  }
  const auto body = nlohmann::json::parse(answer->body, nullptr, false);
  const bool tells = body.is_object() && body.contains("status") && body["status"].is_string();
  const std::string status = tells ? body["status"].get<std::string>() : "";
  if (answer->status == 200 && tells) {
    std::cout << status << '\n';
    return kOk;
  }
  std::cerr << "smartkv: " << address << path << ": expected status 200, found " << answer->status
            << (tells ? ", \"" + status + '"' : "") << '\n';
  return kRuntimeError;
}

constexpr const char* kHealthExamples = R"(Examples:
  smartkv health
  smartkv health --live --port 8000
  SMARTKV_TLS_CERT=cert.pem SMARTKV_TLS_KEY=key.pem smartkv health

Asks the server that would start with the same options, variables and config file. Certificates are not verified.
Exit codes: 0 if the server is ready (with --live: works), 1 if it is not or its options are wrong, 2 if this command
line is wrong.)";

}  // namespace

std::function<int()> setup_health(CLI::App& app) {
  auto arguments = std::make_shared<HealthArguments>();
  arguments->flags = std::make_unique<OptionFlags>(app, true);
  app.add_flag("--live", arguments->live, "Ask whether the process works (liveness) instead of whether it is ready");
  // No type_name() here: require_finite_numbers() recognizes numbers by the default one.
  add_number_flag(app, "--timeout", arguments->timeout_s, "Seconds to wait for an answer", 0.1, 3600.0);
  app.footer(kHealthExamples);
  return [arguments] { return health(*arguments); };
}

}  // namespace smartkv
