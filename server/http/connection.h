// One client connection, as the thread that serves a request sees it:
//  - the whole request in memory,
//  - the socket to answer on, with or without TLS,
//  - whether the client is still there. httplib does not tell this to handlers that return a whole response.
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
  // `socket` must be non-blocking; the caller keeps its ownership. Writing fails if the client reads nothing for
  // `write_timeout_s` seconds. `tls` is null for plain HTTP.
  Connection(socket_t socket, RequestLimits limits, int write_timeout_s, std::unique_ptr<TlsSession> tls);

  // Used by the front's thread while bytes arrive, and by the serving thread once the request is complete.
  RequestReader reader;
  const std::string peer;  // numeric address of the other end
  // For the log: the client's address, according to trusted proxies, and the name of the request's API key, or empty.
  std::string client, key_name;
  std::chrono::steady_clock::time_point served_since = {};  // when a worker began to serve the request
  // Status to report for a stream that was cut after its head was sent: that of the error, or 499 if the client left. 0
  // if no stream was cut.
  int failed_status = 0;
  bool close_after_response = false;
  // Held while the request is served, if it counts against an API key; otherwise null.
  std::unique_ptr<KeyLease> lease;

  // Like recv(), send() and shutdown(SHUT_WR) on the socket, but through TLS if there is a session. They never wait.
  ssize_t receive(char* data, size_t size);  // REQUIRES: size >= TlsSession::kMostRead
  ssize_t send(const char* data, size_t size);
  void end_sending();

  void begin_serving();               // resets the state of the last request; called by the serving thread
  void charge(int64_t tokens) const;  // charges the request's API key, if there is one
  bool alive() const;                 // false once the client has closed its end, even if only for writing

  // Attaches the connection to the request that is being served, so that handlers find it with of(). of() throws
  // std::logic_error for a request without a connection.
  void attach(httplib::Request* request);
  static Connection& of(const httplib::Request& request);

  // httplib::Stream. read() reads from the buffered request and returns 0 at its end; write() waits for room in the
  // socket's buffer, so is_writable() does not have to.
  bool is_readable() const override { return read_ < reader.text().size(); }
  bool is_writable() const override { return alive(); }
  ssize_t read(char* data, size_t size) override;
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
