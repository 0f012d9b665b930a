#include "server/http/http_server.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "engine/log.h"
#include "server/http/listener.h"
#include "server/http/worker_pool.h"

namespace smartkv::http {

using openai::ApiError;

namespace {

constexpr int64_t kHeadBytes = 1 << 20;
constexpr size_t kKeepAliveRequests = 1'000'000;

bool matches(const Route& route, const std::string& path) {
  if (!route.path.ends_with("/*")) return route.path == path;
  const std::string_view prefix = std::string_view(route.path).substr(0, route.path.size() - 1);
  return path.size() > prefix.size() && path.starts_with(prefix);
}

// Takes the same time wherever the two differ.
bool equal_secrets(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  }
  return difference == 0;
}

void check_api_key(const httplib::Request& request, const std::string& api_key) {
  static constexpr std::string_view kBearer = "Bearer ";
  const std::string header = request.get_header_value("Authorization");
  if (header.empty()) {
    throw ApiError(401, "invalid_request_error",
                   "You didn't provide an API key: send it in the header Authorization: Bearer KEY", "",
                   "invalid_api_key");
  }
  if (!header.starts_with(kBearer) || !equal_secrets(std::string_view(header).substr(kBearer.size()), api_key)) {
    throw ApiError(401, "invalid_request_error", "Incorrect API key provided", "", "invalid_api_key");
  }
}

bool has_body(const httplib::Request& request) {
  return request.has_header("Transfer-Encoding") ||
         (request.has_header("Content-Length") && request.get_header_value("Content-Length") != "0");
}

ApiError body_too_large(int64_t limit) {
  return ApiError(413, "invalid_request_error",
                  "The request body is larger than the limit of " + std::to_string(limit) +
                      " bytes (option max_body_bytes)",
                  "", "request_too_large");
}

void check_body_head(const httplib::Request& request, int64_t limit) {
  if (!has_body(request)) return;
  if (request.has_header("Content-Length")) {
    const std::string text = request.get_header_value("Content-Length");
    uint64_t length = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
    if (error == std::errc::invalid_argument || end != text.data() + text.size()) {
      throw openai::invalid_request("", "The Content-Length header is not a number");
    }
    if (error != std::errc() || length > static_cast<uint64_t>(limit)) throw body_too_large(limit);
  }
  const std::string type = request.get_header_value("Content-Type");
  if (!type.empty() && type.find("json") == std::string::npos) {
    throw ApiError(415, "invalid_request_error", "Expected Content-Type: application/json, found " + type);
  }
  const std::string encoding = request.get_header_value("Content-Encoding");
  if (!encoding.empty() && encoding != "identity") {
    throw ApiError(415, "invalid_request_error", "Content-Encoding " + encoding + " is not supported");
  }
}

ApiError from_status(int status, int64_t max_body_bytes) {
  switch (status) {
    case 400:
      return openai::invalid_request("", "The HTTP request is malformed or was cut off");
    case 413:
      return body_too_large(max_body_bytes);
    case 414:
      return ApiError(414, "invalid_request_error", "The request's URL is too long");
    default:
      return ApiError(status, status >= 500 ? "server_error" : "invalid_request_error",
                      "HTTP error " + std::to_string(status));
  }
}

}  // namespace

void send_json(httplib::Response& response, const openai::Json& json) {
  response.set_content(openai::dump(json), "application/json");
}

void send_error(httplib::Response& response, const ApiError& error) {
  response.status = error.status;
  if (error.retry_after_s > 0) response.set_header("Retry-After", std::to_string(error.retry_after_s));
  if (error.status == 401) response.set_header("WWW-Authenticate", "Bearer");
  send_json(response, error.body());
}

HttpServer::HttpServer(HttpOptions options, std::vector<Route> routes, RequestCounter* counter)
    : options_(std::move(options)),
      routes_(std::move(routes)),
      counter_(counter),
      listener_(std::make_unique<Listener>(options_.max_body_bytes + kHeadBytes, options_.timeouts)) {
  configure();
}

HttpServer::~HttpServer() { stop(); }

void HttpServer::configure() {
  Listener& listener = *listener_;
  listener.new_task_queue = [this] { return new WorkerPool(static_cast<size_t>(options_.http_threads)); };
  listener.set_tcp_nodelay(true);
  listener.set_keep_alive_max_count(kKeepAliveRequests);
  listener.set_keep_alive_timeout(options_.timeouts.keep_alive_s);
  // httplib's default, SO_REUSEPORT, lets two servers share a port without either noticing.
  listener.set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  listener.set_expect_100_continue_handler(
      [this](const auto& request, auto& response) { return refuse_early(request, response) ? response.status : 100; });
  listener.set_pre_routing_handler([this](const auto& request, auto& response) {
    return refuse_early(request, response) ? httplib::Server::HandlerResponse::Handled
                                           : httplib::Server::HandlerResponse::Unhandled;
  });
  const auto handler = [this](const httplib::Request& request, httplib::Response& response) {
    dispatch(request, response);
  };
  listener.Get(".*", handler);
  listener.Post(".*", handler);
  listener.set_exception_handler([](const auto&, auto& response, const std::exception_ptr&) {
    log_error("a request failed before it reached its route");
    send_error(response, openai::server_error("The request could not be processed"));
  });
  listener.set_error_handler([this](const httplib::Request& request, httplib::Response& response) {
    fill_error(request, response);
  });
  listener.set_post_routing_handler([this](const auto&, auto& response) {
    if (!options_.cors_origin.empty()) response.set_header("Access-Control-Allow-Origin", options_.cors_origin);
  });
  listener.set_logger([this](const httplib::Request& request, const httplib::Response& response) {
    const Route* route = find_route(request.method == "HEAD" ? "GET" : request.method, request.path);
    counter_->add(route == nullptr ? "other" : route->path, response.status);
    if (log_enabled(LogLevel::kDebug)) {
      log_debug(request.remote_addr + ' ' + request.method + ' ' + request.path + ' ' +
                std::to_string(response.status));
    }
  });
}

int HttpServer::start() {
  errno = 0;
  const bool any = options_.port == 0;
  const int port = any ? listener_->bind_to_any_port(options_.host) : options_.port;
  if (any ? port <= 0 : !listener_->bind_to_port(options_.host, port)) {
    const std::string reason = errno == 0 ? "unknown host or address" : std::strerror(errno);
    throw std::runtime_error("cannot listen on " + options_.host + ":" + std::to_string(options_.port) + ": " + reason);
  }
  listener_->enlarge_backlog();
  thread_ = std::thread([this] {
    if (!listener_->listen_after_bind()) log_error("the server's listening socket failed");
  });
  while (!listener_->is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return port;
}

void HttpServer::begin_drain() { draining_ = true; }

void HttpServer::wait_until_idle() { listener_->wait_until_idle(); }

void HttpServer::stop() {
  if (!thread_.joinable()) return;
  draining_ = true;
  listener_->close_all();
  thread_.join();
}

const Route* HttpServer::find_route(const std::string& method, const std::string& path) const {
  for (const Route& route : routes_) {
    if (route.method == method && matches(route, path)) return &route;
  }
  return nullptr;
}

std::string HttpServer::allowed_methods(const std::string& path) const {
  std::string allowed;
  for (const Route& route : routes_) {
    if (matches(route, path)) allowed += (allowed.empty() ? "" : ", ") + route.method;
  }
  return allowed;
}

bool HttpServer::answered_early(const httplib::Request& request, httplib::Response& response) const {
  const std::string allowed = allowed_methods(request.path);
  if (allowed.empty()) {
    throw ApiError(404, "invalid_request_error", "Unknown URL: " + request.method + " " + request.path, "",
                   "unknown_url");
  }
  if (request.method == "OPTIONS" && !options_.cors_origin.empty()) {
    response.status = 204;
    response.set_header("Access-Control-Allow-Methods", allowed);
    response.set_header("Access-Control-Allow-Headers", "Authorization, Content-Type");
    response.set_header("Access-Control-Max-Age", "86400");
    return true;
  }
  const Route* route = find_route(request.method == "HEAD" ? "GET" : request.method, request.path);
  if (route == nullptr) {
    response.set_header("Allow", allowed);
    throw ApiError(405, "invalid_request_error",
                   request.method + " is not allowed for " + request.path + ": use " + allowed, "",
                   "method_not_allowed");
  }
  if (!options_.api_key.empty() && !route->open) check_api_key(request, options_.api_key);
  if (draining_ && !route->while_draining) throw openai::draining();
  check_body_head(request, options_.max_body_bytes);
  return false;
}

bool HttpServer::refuse_early(const httplib::Request& request, httplib::Response& response) const {
  try {
    if (!answered_early(request, response)) return false;
  } catch (const ApiError& error) {
    send_error(response, error);
  }
  // The body was not read: what follows on this connection would not be a request.
  if (has_body(request)) Connection::of(request).close_after_response = true;
  return true;
}

void HttpServer::dispatch(const httplib::Request& request, httplib::Response& response) const {
  try {
    find_route(request.method == "HEAD" ? "GET" : request.method, request.path)->handler(request, response);
  } catch (const ApiError& error) {
    if (error.status >= 500) log_error(request.method + ' ' + request.path + ": " + error.what());
    send_error(response, error);
  } catch (const std::exception& error) {
    log_error(request.method + ' ' + request.path + ": " + error.what());
    send_error(response, openai::server_error(std::string("Internal error: ") + error.what()));
  } catch (...) {
    log_error(request.method + ' ' + request.path + ": unknown exception");
    send_error(response, openai::server_error("Internal error"));
  }
}

// Errors that httplib itself found come without a body.
void HttpServer::fill_error(const httplib::Request& request, httplib::Response& response) const {
  if (!response.body.empty()) return;
  const bool attached = request.progress != nullptr;
  const bool too_large = attached && Connection::of(request).request_too_large();
  send_error(response, from_status(too_large ? 413 : response.status, options_.max_body_bytes));
  if (attached) Connection::of(request).close_after_response = true;
}

}  // namespace smartkv::http
