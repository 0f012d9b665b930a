#include "server/http/connection.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

namespace smartkv::http {

namespace {

using Clock = std::chrono::steady_clock;

// Calls poll() and resumes it after a signal. Returns true if one of `events` has occurred, or an error that reading or
// writing will report; false after `timeout`.
bool wait_for(int socket, short events, std::chrono::milliseconds timeout) {
  pollfd fd{.fd = socket, .events = events, .revents = 0};
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const int ready = ::poll(&fd, 1, static_cast<int>(std::max<int64_t>(0, left)));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

std::string address_of_peer(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  std::array<char, NI_MAXHOST> host{};
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::getpeername(socket, generic, &length) != 0 ||
      ::getnameinfo(generic, length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return host.data();
}

}  // namespace

Connection::Connection(int socket, RequestLimits limits, int write_timeout_s, std::unique_ptr<TlsSession> tls)
    : reader(limits),
      peer(address_of_peer(socket)),
      socket_(socket),
      write_timeout_s_(write_timeout_s),
      tls_(std::move(tls)) {}

ssize_t Connection::receive(char* data, size_t size) {
  return tls_ == nullptr ? ::recv(socket_, data, size, 0) : tls_->read(data, size);
}

ssize_t Connection::send(std::string_view bytes) {
  return tls_ == nullptr ? ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT)
                         : tls_->write(bytes.data(), bytes.size());
}

void Connection::end_sending() {
  if (tls_ != nullptr) tls_->close();
  ::shutdown(socket_, SHUT_WR);
}

bool Connection::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(bytes);
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(socket_, POLLOUT, std::chrono::seconds(write_timeout_s_))) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool Connection::alive() const { return !wait_for(socket_, POLLRDHUP, std::chrono::milliseconds(0)); }

}  // namespace smartkv::http
