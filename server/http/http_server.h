// The HTTP side of the server: connections, routing, API keys, limits, CORS, draining. What the routes do is not its
// business: see routes.h.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <httplib.h>

#include "server/http/api_keys.h"
#include "server/http/connection_front.h"
#include "server/http/metrics.h"
#include "server/http/trusted_proxies.h"
#include "server/openai/error.h"

namespace smartkv::http {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                      // 0: any free one
  std::string api_key = "";             // one without limits; empty: none
  std::filesystem::path api_keys_file = {};  // several, with limits (api_keys.h); empty: none
  std::filesystem::path tls_cert = {}, tls_key = {};  // PEM files; empty: plain HTTP. Both or none
  int64_t max_body_bytes = 16 << 20;
  std::string cors_origin = "";         // empty: no CORS; "*" or one origin
  int64_t http_threads = 0;             // requests served at once; 0: the command chooses
  // 10,000 clients that keep their connections take about 10 MB. Fewer, where the limit of open files says so.
  int64_t max_connections = 10'000;
  int64_t max_buffered_bytes = 256 << 20;  // of all requests that arrive or run
  ConnectionTimeouts timeouts = {};
  int sse_ping_s = 15;                  // longest silence of a stream, which then gets a comment; 0: any
  std::string access_log = "on";        // on | off: a line for each request
  std::vector<std::string> trusted_proxies = {};  // addresses and networks whose X-Forwarded-For is believed
  int shutdown_delay_s = 0;             // the command's: requests are taken for so long after the signal to end
};

// The checks of the files and addresses that the options name: a server of the same options takes them if none throws KeyFileError,
// TlsError or ProxyError.
std::vector<std::function<void()>> file_checks(const HttpOptions& options);

struct Route {
  std::string method;
  // Exact, or a prefix when it ends in "/*". Requests may leave "/v1" out, and may have a slash at the end.
  std::string path;
  // May throw openai::ApiError; any other exception is a 500.
  std::function<void(const httplib::Request&, httplib::Response&)> handler;
  bool open = false;            // needs no API key
  bool while_draining = false;  // still served while the server drains
};

class HttpServer {
 public:
  // Throws KeyFileError, TlsError or ProxyError.
  HttpServer(HttpOptions options, std::vector<Route> routes, RequestCounter* counter);
  ~HttpServer();

  int start();           // binds and begins to serve; returns the port; throws std::runtime_error
  void begin_drain();    // from now on new requests get 503
  bool draining() const { return draining_; }
  // Reads the files that the options name again. What cannot be used is logged, and what was read before stays.
  void reload();
  void wait_until_idle();  // until no request is being served
  void stop();             // closes every connection; returns when all threads have ended

 private:
  // httplib's part: from a whole request to its handler and the response.
  class Dispatcher : public httplib::Server {
   public:
    Dispatcher() { svr_sock_ = 0; }  // without a listening socket httplib takes itself for stopped, and ends streams
    using httplib::Server::process_request;
  };

  void configure();
  FrontOptions front_options() const;
  const Route* find_route(const std::string& method, const std::string& path) const;
  std::string allowed_methods(const std::string& path) const;
  // What the head alone decides. True: answered (CORS preflight, or refused).
  bool answer_early(Connection& connection, httplib::Response& response) const;
  bool check_head(Connection& connection, httplib::Response& response) const;  // the same; throws ApiError to refuse
  bool serve(Connection& connection);
  void dispatch(const httplib::Request& request, httplib::Response& response) const;
  // The account of the key that came with a request; throws ApiError.
  std::shared_ptr<KeyAccount> account_of(const std::string& authorization, const std::string& plain) const;
  void limit(const httplib::Request& request, httplib::Response& response) const;  // by its key; throws ApiError
  void fill_error(const httplib::Request& request, httplib::Response& response) const;
  void add_cors(httplib::Response& response) const;
  // Counts an answer, and writes its line of the access log. `duration_ms`: from the whole request to the whole answer.
  void record(const Connection& connection, const std::string& method, const std::string& path, const httplib::Response& response,
              double duration_ms) const;

  HttpOptions options_;
  ApiKeys keys_;
  TrustedProxies proxies_;
  std::shared_ptr<TlsContext> tls_;  // null: none
  std::vector<Route> routes_;
  RequestCounter* counter_;
  Dispatcher dispatcher_;
  std::atomic<bool> draining_ = false;
  std::unique_ptr<ConnectionFront> front_;
};

void send_json(httplib::Response& response, const openai::Json& json);
void send_error(httplib::Response& response, const openai::ApiError& error);

}  // namespace smartkv::http
