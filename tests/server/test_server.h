// Servers on a free port of the loopback interface.
#pragma once

#include <string>
#include <vector>

#include <httplib.h>

#include "server/http/routes.h"
#include "tests/server/fake_engine.h"

namespace smartkv::test {

using Json = nlohmann::ordered_json;

// A server over any engine.
class ServedEngine {
 public:
  ServedEngine(Engine& engine, std::vector<std::string> names, http::HttpOptions options,
               std::unique_ptr<http::ResponseStore> responses = nullptr)
      : service{.engine = engine,
                .model = {.engine = engine, .names = std::move(names), .max_prompts = 8},
                .created = 1,
                .requests = {},
                .draining = [this] { return server.draining(); },
                .responses = std::move(responses)},
        server(prepared(std::move(options)), http::make_routes(service), &service.requests),
        port(server.start()) {}

  httplib::Client client() const {
    httplib::Client client("127.0.0.1", port);
    client.set_read_timeout(60);
    return client;
  }
  httplib::Result post(const std::string& path, const std::string& body) const {
    return client().Post(path, body, "application/json");
  }

  // A streamed response.
  struct Streamed {
    int status = 0;
    std::string body;    // the part that arrived
    bool whole = false;  // the stream ended as it should
  };
  // Posts a body and reads the response as a stream, to its end.
  Streamed stream(const std::string& path, const std::string& body) const {
    Streamed streamed;
    httplib::Request request;
    request.method = "POST";
    request.path = path;
    request.body = body;
    request.set_header("Content-Type", "application/json");
    request.response_handler = [&](const httplib::Response& head) {
      streamed.status = head.status;
      return true;
    };
    request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
      streamed.body.append(data, size);
      return true;
    };
    streamed.whole = static_cast<bool>(client().send(request));
    return streamed;
  }

  http::Service service;
  http::HttpServer server;
  int port;

 private:
  static http::HttpOptions prepared(http::HttpOptions options) {
    options.port = 0;
    if (options.http_threads == 0) options.http_threads = 32;
    return options;
  }
};

struct HeldFakeEngine {
  FakeEngine engine;
};

// A server over a FakeEngine of its own.
class TestServer : public HeldFakeEngine, public ServedEngine {
 public:
  explicit TestServer(http::HttpOptions options = {}, std::unique_ptr<http::ResponseStore> responses = nullptr)
      : ServedEngine(HeldFakeEngine::engine, {"fake", "alias"}, std::move(options), std::move(responses)) {}
};

// A connection of plain bytes, for requests that an HTTP client would not send.
class RawConnection {
 public:
  explicit RawConnection(int port);
  RawConnection(int port, int socket);  // connects `socket` and takes ownership of it
  ~RawConnection() { close(); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  void send(const std::string& bytes);
  std::string read_until(const std::string& mark);  // reads up to `mark`, or to the end
  std::string read_all() { return read_until("\xff never"); }
  void close();
  int socket() const { return socket_; }  // owned by this connection

 private:
  int socket_;
};

std::string post_text(const std::string& path, const std::string& body);  // a whole HTTP/1.1 request
std::vector<std::string> sse_data(const std::string& body);               // the texts after each "data: "

}  // namespace smartkv::test
