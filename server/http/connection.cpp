#include "server/http/connection.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <stdexcept>

namespace smartkv::http {

namespace {

using Clock = std::chrono::steady_clock;

// Calls poll() and resumes it after a signal. Returns true if one of `events` has occurred, or an error that reading or
// writing will report; false after `timeout`.
bool wait_for(socket_t socket, short events, std::chrono::milliseconds timeout) {
  pollfd fd{.fd = socket, .events = events, .revents = 0};
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const int ready = ::poll(&fd, 1, static_cast<int>(std::max<int64_t>(0, left)));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

using NameFunction = int (*)(int, sockaddr*, socklen_t*);

void read_name(NameFunction get_name, socket_t socket, std::string& ip, int& port) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> service{};
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (get_name(socket, generic, &length) != 0 ||
      ::getnameinfo(generic, length, host.data(), host.size(), service.data(), service.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return;
  }
  ip = host.data();
  port = std::atoi(service.data());
}

std::string address_of_peer(socket_t socket) {
  std::string ip;
  int port = 0;
  read_name(::getpeername, socket, ip, port);
  return ip;
}

// Carries the connection to httplib's handlers, which see the request only: as its progress callback, which httplib
// does not use in servers.
struct ConnectionLink {
  Connection* connection;
  bool operator()(uint64_t, uint64_t) const { return connection->alive(); }
};

}  // namespace

Connection::Connection(socket_t socket, RequestLimits limits, int write_timeout_s, std::unique_ptr<TlsSession> tls)
    : reader(limits), peer(address_of_peer(socket)), socket_(socket), write_timeout_s_(write_timeout_s), tls_(std::move(tls)) {}

ssize_t Connection::receive(char* data, size_t size) {
  return tls_ == nullptr ? ::recv(socket_, data, size, 0) : tls_->read(data, size);
}

ssize_t Connection::send(const char* data, size_t size) {
  return tls_ == nullptr ? ::send(socket_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT) : tls_->write(data, size);
}

void Connection::end_sending() {
  if (tls_ != nullptr) tls_->close();
  ::shutdown(socket_, SHUT_WR);
}

void Connection::begin_serving() {
  close_after_response = false;
  failed_status = 0;
  served_since = Clock::now();
  read_ = 0;
}

void Connection::charge(int64_t tokens) const {
  if (lease != nullptr) lease->charge(tokens);
}

void Connection::attach(httplib::Request* request) {
  request->progress = ConnectionLink{this};
}

Connection& Connection::of(const httplib::Request& request) {
  const auto* link = request.progress.target<ConnectionLink>();
  if (link == nullptr) throw std::logic_error("the request belongs to no connection");
  return *link->connection;
}

bool Connection::alive() const {
  return !wait_for(socket_, POLLRDHUP, std::chrono::milliseconds(0));
}

ssize_t Connection::read(char* data, size_t size) {
  const size_t taken = reader.text().copy(data, size, read_);
  read_ += taken;
  return static_cast<ssize_t>(taken);
}

ssize_t Connection::write(const char* data, size_t size) {
  for (;;) {
    const ssize_t n = send(data, size);
    if (n >= 0) return n;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return -1;
    if (!wait_for(socket_, POLLOUT, std::chrono::seconds(write_timeout_s_))) return -1;
  }
}

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  read_name(::getpeername, socket_, ip, port);
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  read_name(::getsockname, socket_, ip, port);
}

}  // namespace smartkv::http
