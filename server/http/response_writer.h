// Responses: their parts, their text in HTTP/1.1, and the writer with which a handler answers.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/api_keys.h"
#include "server/http/connection.h"

namespace smartkv::http {

struct Response {
  int status = 200;
  std::string content_type;                                 // empty if there is no body
  std::string id;                                           // X-Request-Id; empty if there is none
  std::vector<std::pair<std::string, std::string>> fields;  // other header fields, apart from framing and connection
  std::string body;

  void add_header(std::string name, std::string value) { fields.emplace_back(std::move(name), std::move(value)); }

  // Returns the status line and the header fields that have a value, and adds `framing`: lines about the body's length.
  // `keep_alive_s` tells the client for how many seconds the connection stays open afterwards; 0 if it is closed.
  std::string head(std::string_view framing, int keep_alive_s) const;
  // Returns the whole response, without the body if it answers HEAD.
  std::string text(bool answers_head, int keep_alive_s) const;
};

// The response to the request of a connection. A handler either fills in the parts of the response, which is sent when
// the handler has returned, or begins a stream and writes the body piece by piece. Used by one thread.
class ResponseWriter : public Response {
 public:
  // REQUIRES: the connection has a whole request and outlives the writer. `keep_alive_s` is the time for which a client
  // may keep the connection.
  ResponseWriter(Connection& connection, int keep_alive_s);

  std::unique_ptr<KeyLease> lease;    // held until the answer is complete if the request counts against an API key
  void charge(int64_t tokens) const;  // charges that key, if there is one
  bool client_left() const { return !connection_.alive(); }
  const std::string& key_name() const { return connection_.key_name; }  // of the request's API key, or empty

  // Sends the head. Afterwards only a change of `status` has an effect: any other value than 200 cuts the stream.
  void begin_stream();
  // Sends a piece of a stream's body, which must not be empty. Returns false if the client has disconnected.
  bool write(std::string_view piece);

  // Sends a whole response, or ends the stream. A stream that is cut lacks its last chunk, so that no client takes it
  // for a complete answer. Returns whether the connection can serve another request.
  bool finish();

 private:
  Connection& connection_;
  int keep_alive_s_;
  bool streaming_ = false;
  bool chunked_ = false;  // false for HTTP/1.0, which has no chunks: the stream ends with the connection
};

}  // namespace smartkv::http
