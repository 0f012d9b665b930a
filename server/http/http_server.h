// The HTTP side of the server: connections, routing, API keys, limits, CORS, draining. routes.h has the routes.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/http/api_keys.h"
#include "server/http/connection_front.h"
#include "server/http/metrics.h"
#include "server/http/trusted_proxies.h"
#include "server/openai/error.h"

namespace smartkv::http {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                                    // 0 takes any free port
  std::string api_key = "";                           // a key without limits; empty if there is none
  std::filesystem::path api_keys_file = {};           // several keys with limits (api_keys.h); empty if there is none
  std::filesystem::path tls_cert = {}, tls_key = {};  // PEM files, both or neither; empty for plain HTTP
  int64_t max_body_bytes = 16 << 20;
  std::string cors_origin = "";  // "*" or one origin; empty turns CORS off
  int64_t http_threads = 0;      // number of requests served at once; 0 lets the serve command choose
  // 10,000 clients that keep their connections take about 10 MB. The limit of open files may lower the number.
  int64_t max_connections = 10'000;
  int64_t max_buffered_bytes = 256 << 20;  // bytes of all requests that are arriving or running
  ConnectionTimeouts timeouts = {};
  int sse_ping_s = 15;                 // a stream that is silent for so long gets a comment; 0 turns this off
  int64_t stored_responses_bytes = 0;  // of /v1/responses; 0 stores none
  std::filesystem::path stored_responses_dir = {};  // keeps them in files; empty for memory
  std::string access_log = "on";                    // "on" or "off": a log line for each request
  std::vector<std::string> trusted_proxies = {};    // addresses and networks whose X-Forwarded-For is believed
  // Used by the serve command: requests are accepted for so long after the signal to end.
  int shutdown_delay_s = 0;
};

// Returns checks of the files and addresses in the options. They throw KeyFileError, TlsError or ProxyError. If none
// throws, a server with the same options accepts them. REQUIRES: `options` outlives the result.
std::vector<std::function<void()>> file_checks(const HttpOptions& options);

// One route and its handler, which runs on a worker thread.
struct Route {
  std::string method;
  // An exact path, or one with a "*", which stands for one or more characters: any ones at the end, and one part of the
  // path before the end. Requests may leave out "/v1", and may end in a slash. If several paths
  // match a request, the first one counts, with the methods of its routes.
  std::string path;
  // May throw openai::ApiError. Other exceptions become a 400 (TokenizerError), 503 (std::bad_alloc) or 500.
  std::function<void(const Request&, ResponseWriter&)> handler;
  bool open = false;            // needs no API key
  bool while_draining = false;  // still served while the server drains
  bool unlimited = false;       // does not count against the limits of an API key
};

class HttpServer {
 public:
  // `counter` must outlive the server. Throws KeyFileError, TlsError or ProxyError.
  HttpServer(HttpOptions options, std::vector<Route> routes, RequestCounter* counter);
  ~HttpServer();

  int start();                              // binds and begins to serve; returns the port; throws std::runtime_error
  void begin_drain() { draining_ = true; }  // from now on new requests are answered with 503
  bool draining() const { return draining_; }
  // Reads the key file, certificate and TLS key again. A file that cannot be used is logged, and its old contents stay
  // in use.
  void reload();
  void wait_until_idle();  // returns when no request is being served
  void stop();             // closes every connection; returns when all threads have ended

 private:
  FrontOptions front_options() const;
  std::vector<const Route*> routes_of(const std::string& path) const;  // in their order; all have the same path
  const Route* find_route(const std::string& method, const std::string& path) const;
  std::string allowed_methods(const std::string& path) const;
  // Returns true if the head alone decides the answer (a CORS preflight, or a refusal) and `response` holds it.
  bool answer_early(Connection& connection, Response& response) const;
  // Returns true if `response` holds the answer to a CORS preflight. Throws ApiError to refuse the request.
  bool check_head(Connection& connection, Response& response) const;
  bool serve(Connection& connection) const;
  void dispatch(const Request& request, ResponseWriter& response) const;
  // Returns the account of the request's key. Throws ApiError (401).
  std::shared_ptr<KeyAccount> account_of(const Request& request) const;
  // Takes a lease of the request's key, and adds the headers of its limits. Throws ApiError.
  void limit(const Request& request, ResponseWriter& response) const;
  void add_cors(Response& response) const;
  // Counts an answer and writes its line in the access log. `duration_ms` is the time from the complete request to the
  // complete answer.
  void record(const Connection& connection, const std::string& method, const std::string& path,
              const Response& response, double duration_ms) const;

  HttpOptions options_;
  ApiKeys keys_;
  TrustedProxies proxies_;
  std::shared_ptr<TlsContext> tls_;  // null for plain HTTP
  std::vector<Route> routes_;
  RequestCounter* counter_;
  std::atomic<bool> draining_ = false;
  std::unique_ptr<ConnectionFront> front_;
};

// Set the response's body to `json`, or its status, headers and body to those of `error`. An error has the shape of the
// API that the request is for.
void send_json(Response& response, const openai::Json& json);
void send_error(const Request& request, Response& response, const openai::ApiError& error);

// Returns whether a request is for Anthropic's API: by its path, or because it names a version of that API.
bool speaks_anthropic(const Request& request);

}  // namespace smartkv::http
