#include "server/http/listener.h"

#include <sys/socket.h>
#include <unistd.h>

#include <exception>
#include <string>

#include "engine/log.h"

namespace smartkv::http {

HttpServer::Listener::Listener(int64_t max_request_bytes, ConnectionTimeouts timeouts)
    : max_request_bytes_(max_request_bytes), timeouts_(timeouts) {}

void HttpServer::Listener::enlarge_backlog() {
  if (::listen(svr_sock_, SOMAXCONN) != 0) log_warning("the queue of connections to accept stays short");
}

void HttpServer::Listener::close_all() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const socket_t socket : sockets_) ::shutdown(socket, SHUT_RDWR);
  }
  stop();
}

bool HttpServer::Listener::add_socket(socket_t socket) {
  const std::lock_guard lock(mutex_);
  if (!stopping_) sockets_.insert(socket);
  return !stopping_;
}

void HttpServer::Listener::wait_until_idle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return in_flight_ == 0; });
}

bool HttpServer::Listener::process_and_close_socket(socket_t socket) {
  if (add_socket(socket)) {
    try {
      Connection connection(socket, max_request_bytes_, timeouts_);
      serve(connection);
    } catch (const std::exception& error) {
      log_error(std::string("connection closed: ") + error.what());
    }
    const std::lock_guard lock(mutex_);
    sockets_.erase(socket);
  }
  ::shutdown(socket, SHUT_RDWR);
  ::close(socket);
  return true;
}

void HttpServer::Listener::serve(Connection& connection) {
  while (connection.wait_for_request()) {
    connection.begin_request();
    bool client_closes = false;
    const auto setup = [&](httplib::Request& request) {
      connection.attach(&request);
      // Compression would take the CPU from the model; ranges of an answer make no sense.
      request.headers.erase("Accept-Encoding");
      request.ranges.clear();
      const std::lock_guard lock(mutex_);
      ++in_flight_;
    };
    bool written = false;
    try {
      written = process_request(connection, false, client_closes, setup);
    } catch (...) {
      if (connection.request_seen) request_done();
      throw;
    }
    if (connection.request_seen) request_done();
    if (!written || client_closes) return;
    if (connection.close_after_response || !connection.request_seen) {
      connection.linger();
      return;
    }
  }
}

void HttpServer::Listener::request_done() {
  const std::lock_guard lock(mutex_);
  if (--in_flight_ == 0) idle_.notify_all();
}

}  // namespace smartkv::http
