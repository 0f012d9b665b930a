// Parses an HTTP/1.1 request from a stream of bytes (RFC 9112). It refuses a request if clients and proxies could
// disagree about where it ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace smartkv::http {

std::string lower(std::string_view text);         // returns `text` with its ASCII letters in lower case
std::string_view trimmed(std::string_view text);  // returns `text` without the spaces and tabs around it

struct RequestLimits {
  int64_t head_bytes = 64 << 10;  // request line and header fields together; a larger head is a 431
  int64_t line_bytes = 8000;      // one of these lines; a longer one is a 414 or a 431
  int64_t fields = 128;           // number of header fields; more are a 431
  int64_t body_bytes = 16 << 20;  // body after decoding of chunks; a larger one is a 413
};

struct Request {
  std::string method;
  std::string path;                                         // percent-decoded, without scheme, host and query
  std::string query;                                        // as sent, without the "?"
  std::string version;                                      // "HTTP/1.1" or "HTTP/1.0"
  std::vector<std::pair<std::string, std::string>> fields;  // names in lower case, in the order of arrival
  std::optional<int64_t> content_length;
  bool chunked = false;
  bool keep_alive = true;
  bool expects_continue = false;
  std::string body;  // without the framing of chunks

  bool has_body() const { return chunked || content_length.value_or(0) > 0; }
  std::string field(std::string_view lower_case_name) const;  // value of the first field of that name, or ""
  // Returns the percent-decoded names and values of the query, "a=1&b=2".
  std::vector<std::pair<std::string, std::string>> parameters() const;
};

// Reads one request at a time. read() may be called with pieces of any size.
class RequestReader {
 public:
  explicit RequestReader(RequestLimits limits) : limits_(limits) {}

  // Takes bytes up to the end of the head, and in later calls up to the end of the body. Returns the number of bytes
  // taken. If it throws openai::ApiError (400, 413, 414, 417, 431, 501), the reader can only be reset.
  size_t read(std::string_view bytes);

  bool begun() const { return begun_; }  // whether a byte of a request has arrived
  bool has_head() const { return stage_ != Stage::kHead; }
  bool done() const { return stage_ == Stage::kDone; }
  const Request& request() const { return request_; }  // complete once done(); all but the body once has_head()
  int64_t bytes() const;                               // memory that the request holds
  void reset();                                        // prepares for the next request and frees the memory of this one

 private:
  enum class Stage : uint8_t { kHead, kBody, kDone };
  enum class Chunk : uint8_t {
    kSize,
    kExtension,
    kSizeEnd,
    kData,
    kDataEnd,
    kDataEnd2,
    kTrailerStart,
    kTrailer,
    kTrailerEnd,
    kEnd
  };

  size_t read_head(std::string_view bytes);
  size_t read_body(std::string_view bytes);
  size_t read_chunks(std::string_view bytes);
  void take_chunk_byte(char byte);  // takes a byte of the framing around the data of chunks
  void parse_head();
  void parse_request_line(std::string_view line);
  void parse_field(std::string_view line);
  void frame();  // decides from the fields how long the body is and whether the connection stays open

  RequestLimits limits_;
  Stage stage_ = Stage::kHead;
  bool begun_ = false;
  std::string head_;  // bytes of the head so far; empty once it is parsed
  size_t line_start_ = 0;
  Request request_;
  int64_t head_bytes_ = 0;  // memory of the parsed head
  int64_t left_ = 0;        // bytes of the body, or of the current chunk, that have not arrived
  Chunk chunk_ = Chunk::kSize;
  int chunk_digits_ = 0;
  int64_t chunk_overhead_ = 0;  // bytes of chunk extensions and trailers so far
};

}  // namespace smartkv::http
