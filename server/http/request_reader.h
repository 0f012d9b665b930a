// Finds where an HTTP/1.1 request ends in a stream of bytes (RFC 9112), before anybody works on it. Strict where
// clients and proxies could disagree on that: such requests are refused, not guessed at.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace smartkv::http {

std::string lower(std::string_view text);  // ASCII letters in lower case

struct RequestLimits {
  int64_t head_bytes = 64 << 10;  // request line and header fields together; more is a 431
  int64_t line_bytes = 8000;      // one of them: httplib takes lines of up to 8,192 bytes; more is a 414 or a 431
  int64_t fields = 128;           // header fields; more is a 431
  int64_t body_bytes = 16 << 20;  // decoded; more is a 413
};

struct RequestHead {
  std::string method;
  std::string target;  // path and query, as sent
  std::string path;    // of the target, percent-decoded, without the query
  std::string version;  // "HTTP/1.1" or "HTTP/1.0"
  std::vector<std::pair<std::string, std::string>> fields;  // names in lower case, in the order in which they came
  std::optional<int64_t> content_length;
  bool chunked = false;
  bool keep_alive = true;
  bool expects_continue = false;

  bool has_body() const { return chunked || content_length.value_or(0) > 0; }
  std::string field(std::string_view lower_case_name) const;  // the first of that name; "": none
};

// One request at a time. read() may be called with pieces of any size.
class RequestReader {
 public:
  explicit RequestReader(RequestLimits limits) : limits_(limits) {}

  // Takes bytes up to the end of the head, then up to the end of the body; returns how many. Throws openai::ApiError
  // (400, 413, 414, 417, 431, 501); the reader is of no use then.
  size_t read(std::string_view bytes);

  bool begun() const { return begun_; }          // a byte of a request has come
  bool has_head() const { return stage_ != Stage::kHead; }
  bool done() const { return stage_ == Stage::kDone; }
  const RequestHead& head() const { return head_; }

  // The request as one text with a Content-Length, without fields that steer the connection, compression or ranges.
  const std::string& text() const { return text_; }
  int64_t bytes() const { return static_cast<int64_t>(text_.capacity()); }  // held
  void forget_head();  // the texts of head() but its method: text() has them
  void reset();  // for the next request; gives its memory back

 private:
  enum class Stage : uint8_t { kHead, kBody, kDone };
  enum class Chunk : uint8_t { kSize, kExtension, kSizeEnd, kData, kDataEnd, kDataEnd2, kTrailerStart, kTrailer,
                               kTrailerEnd, kEnd };

  size_t read_head(std::string_view bytes);
  size_t read_body(std::string_view bytes);
  size_t read_chunks(std::string_view bytes);
  void take_chunk_byte(char byte);  // of what stands around the data
  void parse_head();
  void parse_request_line(std::string_view line);
  void parse_field(std::string_view line);
  void frame();        // how long the body is, from the fields
  void write_head();   // text_ becomes the head that is passed on
  void finish_chunks();

  RequestLimits limits_;
  Stage stage_ = Stage::kHead;
  bool begun_ = false;
  std::string text_;  // kHead: the head so far; then what text() says, but for a chunked body's length until its end
  size_t line_start_ = 0;
  RequestHead head_;
  size_t body_start_ = 0;  // in text_
  int64_t left_ = 0;       // bytes of the body, or of the chunk, to come
  Chunk chunk_ = Chunk::kSize;
  int chunk_digits_ = 0;
  int64_t chunk_overhead_ = 0;  // bytes of extensions and trailers
};

}  // namespace smartkv::http
