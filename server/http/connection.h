// One client connection, as the thread that serves a request sees it: the whole request in memory, the socket to answer
// on, with TLS or without, and whether the client is still there, which httplib does not tell the handlers of a whole response.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <httplib.h>

#include "server/http/api_keys.h"
#include "server/http/request_reader.h"
#include "server/http/tls.h"

namespace smartkv::http {

class Connection final : public httplib::Stream {
 public:
  // `socket`, not blocking, stays the caller's. Writing fails when the client takes nothing for `write_timeout_s`. `tls`:
  // null: none.
  Connection(socket_t socket, RequestLimits limits, int write_timeout_s, std::unique_ptr<TlsSession> tls);

  RequestReader reader;  // the front's while bytes arrive, the serving thread's once it is done
  const std::string peer;  // numeric address of the other end
  // What the log tells of the request: whose it is, as trusted proxies say; the name of its API key, or empty; when serving began.
  std::string client, key_name;
  std::chrono::steady_clock::time_point served_since = {};
  int failed_status = 0;  // of the error that cut a stream behind its head; 0: none did
  bool close_after_response = false;
  std::unique_ptr<KeyLease> lease;  // of the request's API key, while it is served; null: none was asked for

  // As recv(), send() and shutdown(SHUT_WR) on the socket, but for TLS, and without waiting.
  ssize_t receive(char* data, size_t size);  // `size`: TlsSession::kMostRead at least
  ssize_t send(const char* data, size_t size);
  void end_sending();

  void begin_serving();
  void charge(int64_t tokens) const;  // to the request's API key
  bool alive() const;  // the client has not closed its end, not even for writing

  // Attached to the request that is being served, for handlers to find the connection.
  void attach(httplib::Request* request);
  static Connection& of(const httplib::Request& request);

  bool is_readable() const override { return read_ < reader.text().size(); }
  bool is_writable() const override { return alive(); }  // room in the socket's buffer is write()'s to wait for
  ssize_t read(char* data, size_t size) override;        // of the request; 0: its end
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  socket_t socket_;
  int write_timeout_s_;
  std::unique_ptr<TlsSession> tls_;
  size_t read_ = 0;
};

}  // namespace smartkv::http
