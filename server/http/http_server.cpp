#include "server/http/http_server.h"

#include <algorithm>
#include <cmath>
#include <csignal>

#include "engine/log.h"
#include "engine/text/tokenizer.h"
#include "server/anthropic/error.h"
#include "server/http/listening_socket.h"

namespace smartkv::http {

using openai::ApiError;

namespace {

// Descriptors kept for model files, logs and gates, and for surplus connections that are being refused.
constexpr int64_t kOtherFiles = 64 + ConnectionFront::kSurplus;

// Returns whether the route serves `path`. Some clients add a slash at the end; others leave out /v1, because they
// expect it in the server's base URL.
bool matches(const Route& route, std::string_view path) {
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const auto is = [path](std::string_view pattern) {
    const size_t star = pattern.find('*');
    if (star == pattern.npos) return pattern == path;
    const std::string_view before = pattern.substr(0, star), after = pattern.substr(star + 1);
    if (path.size() <= before.size() + after.size() || !path.starts_with(before) || !path.ends_with(after))
      return false;
    const std::string_view rest = path.substr(star, path.size() - star - after.size());
    return after.empty() || rest.find('/') == rest.npos;
  };
  static constexpr std::string_view kVersion = "/v1";
  return is(route.path) || (route.path.starts_with("/v1/") && is(std::string_view(route.path).substr(kVersion.size())));
}

// Returns whether a Content-Type is JSON, "application/json" and similar types.
bool is_json(std::string type) {
  type = lower(type);
  type = type.substr(0, type.find(';'));
  type.erase(type.find_last_not_of(" \t") + 1);
  return (type.starts_with("application/") || type.starts_with("text/")) &&
         (type.ends_with("/json") || type.ends_with("+json"));
}

void check_body(const Request& request) {
  if (!request.has_body()) return;
  const std::string type = request.field("content-type");
  if (!type.empty() && !is_json(type)) {
    throw ApiError(415, "invalid_request_error", "Expected Content-Type: application/json, found " + type);
  }
  const std::string encoding = request.field("content-encoding");
  if (!encoding.empty() && encoding != "identity") {
    throw ApiError(415, "invalid_request_error", "Content-Encoding " + encoding + " is not supported");
  }
}

// Returns null if the options do not ask for TLS. Throws TlsError.
std::shared_ptr<TlsContext> make_tls(const HttpOptions& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    throw TlsError(std::string("tls_cert and tls_key: expected both or none, found ") +
                   (options.tls_cert.empty() ? "tls_key" : "tls_cert") + " alone");
  }
  if (options.tls_cert.empty()) return nullptr;
  return std::make_shared<TlsContext>(options.tls_cert, options.tls_key);
}

}  // namespace

std::vector<std::function<void()>> file_checks(const HttpOptions& options) {
  return {[&options] {
            if (!options.api_keys_file.empty()) read_api_keys(options.api_keys_file);
          },
          [&options] { make_tls(options); }, [&options] { TrustedProxies(options.trusted_proxies); }};
}

void send_json(Response& response, const openai::Json& json) {
  response.body = openai::dump(json);
  response.content_type = "application/json";
}

bool speaks_anthropic(const Request& request) {
  std::string_view path = request.path;
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  return path == "/messages" || path.starts_with("/messages/") || !request.field("anthropic-version").empty();
}

void send_error(const Request& request, Response& response, const ApiError& error) {
  response.status = error.status;
  if (error.retry_after_s > 0) response.add_header("Retry-After", std::to_string(error.retry_after_s));
  if (error.status == 401) response.add_header("WWW-Authenticate", "Bearer");
  if (!speaks_anthropic(request)) return send_json(response, error.body());
  response.status = anthropic::status_of(error);
  const std::string id = anthropic::request_id(response.id);
  if (response.id.empty()) response.id = id;
  response.add_header("request-id", id);
  send_json(response, anthropic::error_json(error, id));
}

HttpServer::HttpServer(HttpOptions options, std::vector<Route> routes, RequestCounter* counter)
    : options_(std::move(options)),
      keys_(options_.api_key, options_.api_keys_file),
      proxies_(options_.trusted_proxies),
      tls_(make_tls(options_)),
      routes_(std::move(routes)),
      counter_(counter) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets without MSG_NOSIGNAL
}

HttpServer::~HttpServer() { stop(); }

FrontOptions HttpServer::front_options() const {
  FrontOptions front;
  front.limits.body_bytes = options_.max_body_bytes;
  front.timeouts = options_.timeouts;
  front.max_threads = options_.http_threads;
  front.max_buffered_bytes = options_.max_buffered_bytes;
  front.tls = tls_;
  const int64_t files = raise_open_file_limit();
  front.max_connections = std::max<int64_t>(1, std::min(options_.max_connections, files - kOtherFiles));
  if (front.max_connections < options_.max_connections) {
    log_warning("max_connections: reduced from " + std::to_string(options_.max_connections) + " to " +
                std::to_string(front.max_connections) + ", because the process may open only " + std::to_string(files) +
                " files (ulimit -n)");
  }
  return front;
}

int HttpServer::start() {
  int port = options_.port;
  const int socket = open_listening_socket(options_.host, &port);
  front_ = std::make_unique<ConnectionFront>(
      socket, front_options(),
      ConnectionFront::Handlers{
          .answer_early = [this](Connection& connection, auto& response) { return answer_early(connection, response); },
          .refuse =
              [this](const Connection& connection, const ApiError& error, Response& response) {
                send_error(connection.reader.request(), response, error);
                add_cors(response);
                record(connection, "-", "-", response, 0);
              },
          .serve = [this](Connection& connection) { return serve(connection); }});
  return port;
}

void HttpServer::reload() {
  const auto again = [](const std::string& what, const std::function<void()>& read) {
    try {
      read();
      log_info("reloaded: " + what);
    } catch (const std::exception& error) {
      log_error("not reloaded: " + what + "; the old ones stay in use: " + error.what());
    }
  };
  if (!options_.api_keys_file.empty()) again("API keys", [this] { keys_.reload(); });
  if (tls_ != nullptr) again("TLS certificate and key", [this] { tls_->reload(); });
  if (options_.api_keys_file.empty() && tls_ == nullptr)
    log_info("nothing to reload: neither api_keys_file nor tls_cert is set");
}

void HttpServer::wait_until_idle() {
  if (front_ != nullptr) front_->wait_until_idle();
}

void HttpServer::stop() {
  draining_ = true;
  if (front_ != nullptr) front_->stop();
}

std::vector<const Route*> HttpServer::routes_of(const std::string& path) const {
  std::vector<const Route*> found;
  for (const Route& route : routes_) {
    if (found.empty() ? matches(route, path) : route.path == found.front()->path) found.push_back(&route);
  }
  return found;
}

const Route* HttpServer::find_route(const std::string& method, const std::string& path) const {
  for (const Route* route : routes_of(path)) {
    if (route->method == (method == "HEAD" ? "GET" : method)) return route;
  }
  return nullptr;
}

std::string HttpServer::allowed_methods(const std::string& path) const {
  std::string allowed;
  for (const Route* route : routes_of(path)) allowed += (allowed.empty() ? "" : ", ") + route->method;
  return allowed;
}

bool HttpServer::check_head(Connection& connection, Response& response) const {
  const Request& request = connection.reader.request();
  const std::string allowed = allowed_methods(request.path);
  if (allowed.empty()) throw openai::unknown_url(request.method, request.path);
  if (request.method == "OPTIONS" && !options_.cors_origin.empty()) {
    response.status = 204;
    response.add_header("Access-Control-Allow-Methods", allowed);
    const std::string wanted = request.field("access-control-request-headers");
    response.add_header("Access-Control-Allow-Headers", wanted.empty() ? "Authorization, Content-Type" : wanted);
    response.add_header("Access-Control-Max-Age", "86400");
    return true;
  }
  const Route* route = find_route(request.method, request.path);
  if (route == nullptr) {
    response.add_header("Allow", allowed);
    throw ApiError(405, "invalid_request_error",
                   request.method + " is not allowed for " + request.path + ": use " + allowed, "",
                   "method_not_allowed");
  }
  if (keys_.required() && !route->open) connection.key_name = account_of(request)->name();
  if (draining_ && !route->while_draining) throw openai::draining();
  check_body(request);
  return false;
}

bool HttpServer::answer_early(Connection& connection, Response& response) const {
  const Request& request = connection.reader.request();
  connection.client = proxies_.client_of(connection.peer, request.fields);
  connection.key_name.clear();
  try {
    if (!check_head(connection, response)) return false;
  } catch (const ApiError& error) {
    send_error(request, response, error);
  }
  add_cors(response);
  record(connection, request.method, request.path, response, 0);
  return true;
}

std::shared_ptr<KeyAccount> HttpServer::account_of(const Request& request) const {
  static constexpr std::string_view kBearer = "bearer ";
  const std::string authorization = request.field("authorization"), plain = request.field("x-api-key");
  if (authorization.empty() && plain.empty()) {
    throw ApiError(401, "invalid_request_error",
                   "You didn't provide an API key: send it in the header Authorization: Bearer KEY, or X-Api-Key: KEY",
                   "", "invalid_api_key");
  }
  const bool bearer = lower(authorization.substr(0, kBearer.size())) == kBearer;
  auto account = keys_.find(authorization.empty() ? plain : bearer ? authorization.substr(kBearer.size()) : "");
  if (account == nullptr) {
    throw ApiError(401, "invalid_request_error", "Incorrect API key provided", "", "invalid_api_key");
  }
  return account;
}

void HttpServer::limit(const Request& request, ResponseWriter& response) const {
  const auto account = account_of(request);
  std::optional<ApiError> refused;
  try {
    response.lease = std::make_unique<KeyLease>(account);
  } catch (const ApiError& error) {
    counter_->refuse_for_key();
    refused = error;
  }
  for (const auto& [name, value] : account->headers(KeyAccount::Clock::now())) response.add_header(name, value);
  if (refused) throw ApiError(*refused);
}

bool HttpServer::serve(Connection& connection) const {
  const auto begin = std::chrono::steady_clock::now();
  const Request& request = connection.reader.request();
  ResponseWriter response(connection, options_.timeouts.keep_alive_s);
  add_cors(response);
  dispatch(request, response);
  const bool usable = response.finish();
  const std::chrono::duration<double, std::milli> duration = std::chrono::steady_clock::now() - begin;
  record(connection, request.method, request.path, response, duration.count());
  return usable;
}

void HttpServer::dispatch(const Request& request, ResponseWriter& response) const {
  try {
    const Route* route = find_route(request.method, request.path);
    if (route == nullptr) throw std::logic_error("a request without a route passed the checks of its head");
    if (keys_.required() && !route->open && !route->unlimited && route->method == "POST") limit(request, response);
    route->handler(request, response);
  } catch (const ApiError& error) {
    if (error.status >= 500) log_error(request.method + ' ' + request.path + ": " + error.what());
    send_error(request, response, error);
  } catch (const TokenizerError& error) {  // a part of the text matches no pattern of the tokenizer
    send_error(request, response, openai::invalid_request("", error.what()));
  } catch (const std::exception& error) {
    log_error(request.method + ' ' + request.path + ": " + error.what());
    send_error(request, response, openai::internal_error(error));
  } catch (...) {
    log_error(request.method + ' ' + request.path + ": unknown exception");
    send_error(request, response, openai::server_error("Internal error"));
  }
}

void HttpServer::add_cors(Response& response) const {
  if (!options_.cors_origin.empty()) response.add_header("Access-Control-Allow-Origin", options_.cors_origin);
}

void HttpServer::record(const Connection& connection, const std::string& method, const std::string& path,
                        const Response& response, double duration_ms) const {
  const Route* route = find_route(method, path);
  counter_->add(route == nullptr ? "other" : route->path, response.status);
  // Health probes and metrics scrapers ask every few seconds, so their lines are for debugging only.
  const bool probe = route != nullptr && route->while_draining && response.status < 400;
  const LogLevel level = probe ? LogLevel::kDebug : LogLevel::kInfo;
  if (options_.access_log == "off" || !log_enabled(level)) return;
  const std::string status = std::to_string(response.status), duration = std::to_string(std::llround(duration_ms));
  log(level, "request",
      {{"client", connection.client.empty() ? connection.peer : connection.client},
       {"key", connection.key_name.empty() ? "-" : connection.key_name},
       {"method", method},
       {"path", path},
       {"status", status},
       {"duration_ms", duration},
       {"id", response.id.empty() ? "-" : response.id}});
}

}  // namespace smartkv::http
