// Finds the end of an HTTP/1.1 request in a stream of bytes (RFC 9112), before any handler sees it. It refuses a
// request if clients and proxies could disagree about where it ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace smartkv::http {

std::string lower(std::string_view text);  // returns `text` with its ASCII letters in lower case

struct RequestLimits {
  int64_t head_bytes = 64 << 10;  // request line and header fields together; a larger head is a 431
  int64_t line_bytes = 8000;      // one of these lines (httplib takes up to 8,192); a longer one is a 414 or a 431
  int64_t fields = 128;           // number of header fields; more are a 431
  int64_t body_bytes = 16 << 20;  // body after decoding of chunks; a larger one is a 413
};

// The request line and header fields of a request.
struct RequestHead {
  std::string method;
  std::string target;   // path and query, as sent but without scheme and host
  std::string path;     // the target's path, percent-decoded, without the query
  std::string version;  // "HTTP/1.1" or "HTTP/1.0"
  std::vector<std::pair<std::string, std::string>> fields;  // names in lower case, in the order of arrival
  std::optional<int64_t> content_length;
  bool chunked = false;
  bool keep_alive = true;
  bool expects_continue = false;

  bool has_body() const { return chunked || content_length.value_or(0) > 0; }
  std::string field(std::string_view lower_case_name) const;  // value of the first field of that name, or ""
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
  const RequestHead& head() const { return head_; }

  // Returns the request as httplib shall read it, complete once done(). It has a Content-Length and a Connection field,
  // but no other fields about the connection, compression or ranges.
  const std::string& text() const { return text_; }
  int64_t bytes() const { return static_cast<int64_t>(text_.capacity()); }  // bytes of memory that text() holds
  void forget_head();  // frees the strings of head() except the method; text() contains them
  void reset();        // prepares for the next request and frees the memory of this one

 private:
  enum class Stage : uint8_t { kHead, kBody, kDone };
  enum class Chunk : uint8_t { kSize, kExtension, kSizeEnd, kData, kDataEnd, kDataEnd2, kTrailerStart, kTrailer,
                               kTrailerEnd, kEnd };

  size_t read_head(std::string_view bytes);
  size_t read_body(std::string_view bytes);
  size_t read_chunks(std::string_view bytes);
  void take_chunk_byte(char byte);  // takes a byte of the framing around the data of chunks
  void parse_head();
  void parse_request_line(std::string_view line);
  void parse_field(std::string_view line);
  void frame();       // decides from the fields how long the body is and whether the connection stays open
  void write_head();  // sets text_ to the head that httplib will read
  void finish_chunks();

  RequestLimits limits_;
  Stage stage_ = Stage::kHead;
  bool begun_ = false;
  // While the head is read: its bytes so far. Then the contents of text(). The length of a chunked body is filled in
  // when the body ends.
  std::string text_;
  size_t line_start_ = 0;
  RequestHead head_;
  size_t body_start_ = 0;  // offset of the body in text_
  int64_t left_ = 0;       // bytes of the body, or of the current chunk, that have not arrived
  Chunk chunk_ = Chunk::kSize;
  int chunk_digits_ = 0;
  int64_t chunk_overhead_ = 0;  // bytes of chunk extensions and trailers so far
};

}  // namespace smartkv::http
