// One client connection, as the thread that serves a request sees it:
//  - the whole request in memory,
//  - the socket to answer on, with or without TLS,
//  - whether the client is still there.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/http/request_reader.h"
#include "server/http/tls.h"

namespace smartkv::http {

class Connection {
 public:
  // `socket` must be non-blocking; the caller keeps its ownership. Writing fails if the client reads nothing for
  // `write_timeout_s` seconds. `tls` is null for plain HTTP.
  Connection(int socket, RequestLimits limits, int write_timeout_s, std::unique_ptr<TlsSession> tls);

  // Used by the front's thread while bytes arrive, and by the serving thread once the request is complete.
  RequestReader reader;
  const std::string peer;  // numeric address of the other end
  // For the log: the client's address, according to trusted proxies, and the name of the request's API key, or empty.
  std::string client, key_name;

  // Like recv(), send() and shutdown(SHUT_WR) on the socket, but through TLS if there is a session. They never wait.
  ssize_t receive(char* data, size_t size);  // REQUIRES: size >= TlsSession::kMostRead
  ssize_t send(std::string_view bytes);
  void end_sending();

  bool write(std::string_view bytes);  // sends all bytes, and waits for room; false if that fails
  bool alive() const;                  // false once the client has closed its end, even if only for writing
  int socket() const { return socket_; }

 private:
  int socket_;
  int write_timeout_s_;
  std::unique_ptr<TlsSession> tls_;
};

}  // namespace smartkv::http
