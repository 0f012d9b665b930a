// cpp-httplib's server, with connections of our own under it.
#pragma once

#include <condition_variable>
#include <mutex>
#include <set>

#include "server/http/connection.h"
#include "server/http/http_server.h"

namespace smartkv::http {

class HttpServer::Listener final : public httplib::Server {
 public:
  Listener(int64_t max_request_bytes, ConnectionTimeouts timeouts);

  // httplib's queue of connections to accept holds 5: a burst of clients would wait a second for TCP to try again.
  void enlarge_backlog();
  void close_all();  // stops listening and cuts every connection
  void wait_until_idle();

 private:
  bool process_and_close_socket(socket_t socket) override;
  bool add_socket(socket_t socket);  // false: the server stops
  void serve(Connection& connection);
  void request_done();

  int64_t max_request_bytes_;
  ConnectionTimeouts timeouts_;
  std::mutex mutex_;  // guards what follows
  bool stopping_ = false;
  std::set<socket_t> sockets_;
  std::condition_variable idle_;
  int64_t in_flight_ = 0;
};

}  // namespace smartkv::http
