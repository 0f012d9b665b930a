// One client connection: the byte stream under cpp-httplib, with what 0.11.4 does not offer its handlers: whether the
// client is still there while a whole response is being made, and closing after a response whose request was not read.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <httplib.h>

namespace smartkv::http {

struct ConnectionTimeouts {
  int read_s = 30;        // for the next bytes of a request that has begun
  int write_s = 30;       // for a client that does not read
  int keep_alive_s = 30;  // between two requests
};

class Connection final : public httplib::Stream {
 public:
  // `socket` stays the caller's.
  // Of a request that is longer than `max_request_bytes`, head and body, reading the rest fails.
  Connection(socket_t socket, int64_t max_request_bytes, ConnectionTimeouts timeouts);

  bool wait_for_request();  // false: nothing came in time
  void begin_request();
  bool alive() const;  // the client has not closed its end, not even for writing
  void linger();            // reads what the client still sends, so that it gets to read the response

  // Attached to every request of this connection, for handlers to find it.
  void attach(httplib::Request* request);
  static Connection& of(const httplib::Request& request);

  bool request_too_large() const { return request_bytes_ > max_request_bytes_; }
  bool request_seen = false;          // the head of the current request was understood
  bool close_after_response = false;

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  socket_t socket_;
  int64_t max_request_bytes_;
  ConnectionTimeouts timeouts_;
  int64_t request_bytes_ = 0;
  std::array<char, 16384> buffer_;  // httplib reads heads byte by byte
  size_t begin_ = 0, end_ = 0;
};

}  // namespace smartkv::http
