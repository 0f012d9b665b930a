#include "server/http/response_writer.h"

#include <charconv>

namespace smartkv::http {

namespace {

constexpr int kKeepAliveRequests = 1'000'000;  // told to clients; the server does not count them

const char* reason_of(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Payload Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 529: return "Overloaded";
    default: return "Error";
  }
}

}  // namespace

std::string Response::head(std::string_view framing, int keep_alive_s) const {
  std::string text = "HTTP/1.1 " + std::to_string(status) + ' ' + reason_of(status) + "\r\n";
  const auto add = [&text](std::string_view name, std::string_view value) {
    if (!value.empty()) text.append(name).append(": ").append(value).append("\r\n");
  };
  for (const auto& [name, value] : fields) add(name, value);
  add("X-Request-Id", id);
  add("Content-Type", content_type);
  text += framing;
  add("Connection", keep_alive_s > 0 ? "keep-alive" : "close");
  if (keep_alive_s > 0) {
    add("Keep-Alive", "timeout=" + std::to_string(keep_alive_s) + ", max=" + std::to_string(kKeepAliveRequests));
  }
  return text + "\r\n";
}

std::string Response::text(bool answers_head, int keep_alive_s) const {
  const std::string length = "Content-Length: " + std::to_string(body.size()) + "\r\n";
  std::string text = head(status == 204 ? "" : length, keep_alive_s);
  return answers_head ? text : text + body;
}

ResponseWriter::ResponseWriter(Connection& connection, int keep_alive_s)
    : connection_(connection), keep_alive_s_(connection.reader.request().keep_alive ? keep_alive_s : 0) {}

void ResponseWriter::charge(int64_t tokens) const {
  if (lease != nullptr) lease->charge(tokens);
}

void ResponseWriter::begin_stream() {
  chunked_ = connection_.reader.request().version == "HTTP/1.1";
  if (!chunked_) keep_alive_s_ = 0;
  const std::string text = head(chunked_ ? "Transfer-Encoding: chunked\r\n" : "", keep_alive_s_);
  streaming_ = true;
  connection_.write(text);
}

bool ResponseWriter::write(std::string_view piece) {
  if (client_left()) return false;
  if (!chunked_) return connection_.write(piece);
  std::array<char, 16> size;
  std::string chunk(size.data(), std::to_chars(size.data(), size.data() + size.size(), piece.size(), 16).ptr);
  return connection_.write(chunk.append("\r\n").append(piece).append("\r\n"));
}

bool ResponseWriter::finish() {
  if (streaming_) return status == 200 && (!chunked_ || connection_.write("0\r\n\r\n")) && keep_alive_s_ > 0;
  lease = nullptr;  // before the answer is sent, because its client may send the next request at once
  return connection_.write(text(connection_.reader.request().method == "HEAD", keep_alive_s_)) && keep_alive_s_ > 0;
}

}  // namespace smartkv::http
