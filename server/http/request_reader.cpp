#include "server/http/request_reader.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>

#include "engine/text/percent_encoding.h"
#include "server/openai/error.h"

namespace smartkv::http {

using openai::ApiError;

namespace {

constexpr std::string_view kInvalid = "invalid_request_error";
constexpr int kMaxChunkSizeDigits = 15;  // hexadecimal digits; such a number fits an int64

ApiError malformed(const std::string& what) {
  return openai::invalid_request("", "The HTTP request is malformed: " + what);
}

ApiError refused(int status, const std::string& message) { return ApiError(status, std::string(kInvalid), message); }

ApiError body_too_large(int64_t limit) {
  return ApiError(
      413, std::string(kInvalid),
      "The request body is larger than the limit of " + std::to_string(limit) + " bytes (option max_body_bytes)", "",
      "request_too_large");
}

// Returns whether `text` is a token: RFC 9110, section 5.6.2.
bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || (c != 0 && std::strchr("!#$%&'*+-.^_`|~", c) != nullptr);
  });
}

// Returns whether a comma-separated list of tokens, as in the Connection field, contains `token` (in lower case).
bool lists(std::string_view value, std::string_view token) {
  while (!value.empty()) {
    const size_t comma = std::min(value.find(','), value.size());
    if (lower(trimmed(value.substr(0, comma))) == token) return true;
    value.remove_prefix(std::min(comma + 1, value.size()));
  }
  return false;
}

// Returns the path and query of an absolute-form target, "http://host/path?query" (RFC 9112, section 3.2.2). Returns
// any other target unchanged.
std::string origin_form(std::string_view target) {
  const size_t scheme = target.find("://");
  const std::string name = lower(target.substr(0, std::min(scheme, target.size())));
  if (name != "http" && name != "https") return std::string(target);
  const size_t path = target.find_first_of("/?#", scheme + 3);
  const std::string_view rest = path == target.npos ? "" : target.substr(path);
  std::string form(rest.starts_with('/') ? "" : "/");
  return form.append(rest);
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

std::string Request::field(std::string_view lower_case_name) const {
  for (const auto& [name, value] : fields) {
    if (name == lower_case_name) return value;
  }
  return "";
}

std::vector<std::pair<std::string, std::string>> Request::parameters() const {
  std::vector<std::pair<std::string, std::string>> found;
  for (std::string_view rest = query; !rest.empty();) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(pair.size() + 1, rest.size()));
    const size_t equals = pair.find('=');
    const std::string_view name = pair.substr(0, equals), value = equals == pair.npos ? "" : pair.substr(equals + 1);
    if (!name.empty()) found.emplace_back(percent_decoded(name), percent_decoded(value));
  }
  return found;
}

int64_t RequestReader::bytes() const {
  return static_cast<int64_t>(head_.capacity() + request_.body.capacity()) + head_bytes_;
}

// Swaps, because assigning to a string may keep its buffer.
void RequestReader::reset() {
  RequestReader fresh(limits_);
  std::swap(*this, fresh);
}

size_t RequestReader::read(std::string_view bytes) {
  if (stage_ == Stage::kHead) return read_head(bytes);
  return stage_ == Stage::kBody ? read_body(bytes) : 0;
}

size_t RequestReader::read_head(std::string_view bytes) {
  size_t taken = 0;
  while (taken < bytes.size()) {
    const char byte = bytes[taken++];
    const bool ends_line = byte == '\n';
    if (!begun_ && (byte == '\r' || ends_line)) continue;  // skips empty lines before a request: RFC 9112, section 2.2
    begun_ = true;
    const bool after_cr = !head_.empty() && head_.back() == '\r';
    if (ends_line != after_cr) throw malformed("its lines do not end with CR LF");
    if ((static_cast<unsigned char>(byte) < 0x20 && byte != '\t' && byte != '\r' && !ends_line) || byte == 0x7f) {
      throw malformed("control characters in its head");
    }
    head_ += byte;
    if (static_cast<int64_t>(head_.size()) > limits_.head_bytes) {
      throw refused(
          431, "The request's headers are larger than the limit of " + std::to_string(limits_.head_bytes) + " bytes");
    }
    if (static_cast<int64_t>(head_.size() - line_start_) > limits_.line_bytes) {
      if (line_start_ == 0) throw refused(414, "The request's URL is too long");
      throw refused(
          431, "A header of the request is longer than the limit of " + std::to_string(limits_.line_bytes) + " bytes");
    }
    if (!ends_line) continue;
    if (head_.size() - line_start_ == 2) {  // an empty line
      parse_head();
      return taken;
    }
    line_start_ = head_.size();
  }
  return taken;
}

void RequestReader::parse_head() {
  std::string_view rest(head_);
  const auto next_line = [&rest] {
    const std::string_view line = rest.substr(0, rest.find("\r\n"));
    rest.remove_prefix(line.size() + 2);
    return line;
  };
  parse_request_line(next_line());
  for (std::string_view line = next_line(); !line.empty(); line = next_line()) parse_field(line);
  frame();
  head_bytes_ = static_cast<int64_t>(head_.size() + request_.fields.capacity() * sizeof(request_.fields.front()));
  std::string().swap(head_);
  stage_ = request_.chunked || left_ > 0 ? Stage::kBody : Stage::kDone;
}

void RequestReader::parse_request_line(std::string_view line) {
  const size_t first = line.find(' '), last = line.rfind(' ');
  const std::string_view version = last == line.npos ? "" : line.substr(last + 1);
  if (first == last || (version != "HTTP/1.1" && version != "HTTP/1.0")) {
    throw malformed("expected METHOD TARGET HTTP/1.1");
  }
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (!is_token(line.substr(0, first)) || target.empty() || target.find_first_of(" \t") != target.npos) {
    throw malformed("expected METHOD TARGET HTTP/1.1");
  }
  request_.method = line.substr(0, first);
  const std::string origin = origin_form(target);
  const std::string_view path_and_query = std::string_view(origin).substr(0, origin.find('#'));
  const size_t path_size = std::min(path_and_query.find('?'), path_and_query.size());
  request_.path = percent_decoded(path_and_query.substr(0, path_size));
  request_.query = path_and_query.substr(std::min(path_size + 1, path_and_query.size()));
  request_.version = version;
  request_.keep_alive = version == "HTTP/1.1";
}

void RequestReader::parse_field(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == line.npos || !is_token(line.substr(0, colon))) throw malformed("expected headers NAME: VALUE");
  if (static_cast<int64_t>(request_.fields.size()) >= limits_.fields) {
    throw refused(431, "The request has more than " + std::to_string(limits_.fields) + " headers");
  }
  request_.fields.emplace_back(lower(line.substr(0, colon)), trimmed(line.substr(colon + 1)));
}

void RequestReader::frame() {
  bool has_host = false, has_encoding = false, closes = false, keeps = false;
  for (const auto& [name, value] : request_.fields) {
    if (name == "content-length") {
      if (value.empty() || value.find_first_not_of("0123456789") != value.npos) {
        throw openai::invalid_request("", "The Content-Length header is not a number");
      }
      int64_t length = 0;
      const bool fits = std::from_chars(value.data(), value.data() + value.size(), length).ec == std::errc();
      if (!fits || length > limits_.body_bytes) throw body_too_large(limits_.body_bytes);
      if (request_.content_length.value_or(length) != length) {
        throw malformed("it has two Content-Length headers that differ");
      }
      request_.content_length = length;
    } else if (name == "transfer-encoding") {
      if (std::exchange(has_encoding, true)) throw malformed("it has two Transfer-Encoding headers");
      if (lower(value) != "chunked") throw refused(501, "Transfer-Encoding " + value + " is not supported");
      request_.chunked = true;
    } else if (name == "host") {
      if (std::exchange(has_host, true)) throw malformed("it has two Host headers");
    } else if (name == "connection") {
      closes = closes || lists(value, "close");
      keeps = keeps || lists(value, "keep-alive");
    } else if (name == "expect") {
      if (lower(value) != "100-continue") throw refused(417, "Expect: " + value + " is not supported");
      request_.expects_continue = request_.version == "HTTP/1.1";
    }
  }
  if (request_.chunked && request_.content_length) throw malformed("it has both Content-Length and Transfer-Encoding");
  if (request_.chunked && request_.version == "HTTP/1.0") throw malformed("Transfer-Encoding is not part of HTTP/1.0");
  request_.keep_alive = !closes && (request_.keep_alive || keeps);
  left_ = request_.content_length.value_or(0);
}

size_t RequestReader::read_body(std::string_view bytes) {
  if (request_.chunked) return read_chunks(bytes);
  const size_t taken = std::min(bytes.size(), static_cast<size_t>(left_));
  request_.body.append(bytes.substr(0, taken));
  left_ -= static_cast<int64_t>(taken);
  if (left_ == 0) stage_ = Stage::kDone;
  return taken;
}

size_t RequestReader::read_chunks(std::string_view bytes) {
  size_t taken = 0;
  while (taken < bytes.size() && stage_ == Stage::kBody) {
    if (chunk_ != Chunk::kData) {
      take_chunk_byte(bytes[taken++]);
      continue;
    }
    const size_t n = std::min(bytes.size() - taken, static_cast<size_t>(left_));
    request_.body.append(bytes.substr(taken, n));
    taken += n;
    left_ -= static_cast<int64_t>(n);
    if (left_ == 0) chunk_ = Chunk::kDataEnd;
  }
  return taken;
}

void RequestReader::take_chunk_byte(char byte) {
  const auto expect = [&](char expected, Chunk next) {
    if (byte != expected) throw malformed("a chunk of its body does not end where it should");
    chunk_ = next;
  };
  const auto skip = [&] {
    if (++chunk_overhead_ > limits_.head_bytes) {
      throw refused(431, "The extensions and trailers of the request's chunks are larger than the limit of " +
                             std::to_string(limits_.head_bytes) + " bytes");
    }
    if (byte == '\n' || byte == '\0') throw malformed("control characters between the chunks of its body");
  };
  switch (chunk_) {
    case Chunk::kSize:
      if (const int digit = hex_digit(byte); digit >= 0 && chunk_digits_ < kMaxChunkSizeDigits) {
        left_ = 16 * left_ + digit;
        ++chunk_digits_;
      } else if (chunk_digits_ == 0 || digit >= 0) {
        throw malformed("expected the size of a chunk");
      } else if (byte == '\r') {
        chunk_ = Chunk::kSizeEnd;
      } else if (byte == ';' || byte == ' ' || byte == '\t') {
        chunk_ = Chunk::kExtension;
      } else {
        throw malformed("expected the size of a chunk");
      }
      return;
    case Chunk::kExtension:
      skip();
      if (byte == '\r') chunk_ = Chunk::kSizeEnd;
      return;
    case Chunk::kSizeEnd:
      expect('\n', left_ == 0 ? Chunk::kTrailerStart : Chunk::kData);
      if (static_cast<int64_t>(request_.body.size()) + left_ > limits_.body_bytes) {
        throw body_too_large(limits_.body_bytes);
      }
      return;
    case Chunk::kDataEnd: return expect('\r', Chunk::kDataEnd2);
    case Chunk::kDataEnd2: chunk_digits_ = 0; return expect('\n', Chunk::kSize);
    case Chunk::kTrailerStart:
      if (byte == '\r') {
        chunk_ = Chunk::kEnd;
        return;
      }
      chunk_ = Chunk::kTrailer;
      [[fallthrough]];
    case Chunk::kTrailer:
      skip();
      if (byte == '\r') chunk_ = Chunk::kTrailerEnd;
      return;
    case Chunk::kTrailerEnd: return expect('\n', Chunk::kTrailerStart);
    case Chunk::kEnd:
      expect('\n', Chunk::kEnd);
      stage_ = Stage::kDone;
      return;
    case Chunk::kData: return;
  }
}

}  // namespace smartkv::http
