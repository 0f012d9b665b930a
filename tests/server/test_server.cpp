#include "tests/server/test_server.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <stdexcept>

#include "engine/log.h"

namespace smartkv::test {

namespace {

// A log line for each request of the tests would only be noise.
const bool quiet = [] {
  set_log_level(LogLevel::kWarning);
  return true;
}();

}  // namespace

RawConnection::RawConnection(int port) : RawConnection(port, ::socket(AF_INET, SOCK_STREAM, 0)) {}

RawConnection::RawConnection(int port, int socket) : socket_(socket) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval timeout{.tv_sec = 20, .tv_usec = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error("cannot connect");
  }
}

void RawConnection::send(const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return;  // the server may close early; only its answer counts
    sent += static_cast<size_t>(n);
  }
}

std::string RawConnection::read_until(const std::string& mark) {
  std::string text;
  std::array<char, 4096> buffer;
  while (text.find(mark) == text.npos) {
    const ssize_t n = ::recv(socket_, buffer.data(), buffer.size(), 0);
    if (n <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(n));
  }
  return text;
}

void RawConnection::close() {
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
}

std::string post_text(const std::string& path, const std::string& body) {
  return "POST " + path +
         " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

std::vector<std::string> sse_data(const std::string& body) {
  std::vector<std::string> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    const std::string event = body.substr(at, end - at);
    if (!event.starts_with("data: ") || end == body.npos) throw std::runtime_error("not an event: " + event);
    events.push_back(event.substr(6));
    at = end + 2;
  }
  return events;
}

}  // namespace smartkv::test
