// The HTTP side of the server: connections, routing, API key, limits, CORS, draining. What the routes do is not its
// business: see routes.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <httplib.h>

#include "server/http/connection.h"
#include "server/http/metrics.h"
#include "server/openai/error.h"

namespace smartkv::http {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                      // 0: any free one
  std::string api_key = "";             // empty: none is asked for
  int64_t max_body_bytes = 16 << 20;
  std::string cors_origin = "";         // empty: no CORS; "*" or one origin
  int64_t http_threads = 0;             // connections served at once; 0: the command chooses
  ConnectionTimeouts timeouts = {};
};

struct Route {
  std::string method;
  std::string path;             // exact, or a prefix when it ends in "/*"
  // May throw openai::ApiError; any other exception is a 500.
  std::function<void(const httplib::Request&, httplib::Response&)> handler;
  bool open = false;            // needs no API key
  bool while_draining = false;  // still served while the server drains
};

class HttpServer {
 public:
  HttpServer(HttpOptions options, std::vector<Route> routes, RequestCounter* counter);
  ~HttpServer();

  int start();           // binds and begins to serve; returns the port; throws std::runtime_error
  void begin_drain();    // from now on new requests get 503
  bool draining() const { return draining_; }
  void wait_until_idle();  // until no request is in flight
  void stop();             // closes every connection; returns when all threads have ended

 private:
  class Listener;

  void configure();
  const Route* find_route(const std::string& method, const std::string& path) const;
  std::string allowed_methods(const std::string& path) const;
  // What can be refused before the body is read; throws ApiError. True: answered already (CORS preflight).
  bool answered_early(const httplib::Request& request, httplib::Response& response) const;
  bool refuse_early(const httplib::Request& request, httplib::Response& response) const;
  void dispatch(const httplib::Request& request, httplib::Response& response) const;
  void fill_error(const httplib::Request& request, httplib::Response& response) const;

  HttpOptions options_;
  std::vector<Route> routes_;
  RequestCounter* counter_;
  std::unique_ptr<Listener> listener_;
  std::thread thread_;
  std::atomic<bool> draining_ = false;
};

void send_json(httplib::Response& response, const openai::Json& json);
void send_error(httplib::Response& response, const openai::ApiError& error);

}  // namespace smartkv::http
