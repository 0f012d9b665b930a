// A streamed /v1/completions response as a client sees it: what came, whether it is whole, and when.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace smartkv {

// Server-sent events (the HTML standard, section 9.2) out of bytes that may be cut anywhere. Only the field "data"
// counts; an event of several data lines is their text joined by newlines.
class SseParser {
 public:
  using OnData = std::function<void(std::string_view data)>;
  explicit SseParser(OnData on_data) : on_data_(std::move(on_data)) {}

  void feed(std::string_view bytes);

 private:
  void line(std::string_view text);

  OnData on_data_;
  std::string pending_;  // an unfinished line
  std::string data_;
  bool has_data_ = false;
};

// Times in seconds since the moment at which all requests were sent.
struct RequestOutcome {
  std::string failure;  // empty: the response came whole, with the asked number of tokens
  int64_t prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;
  int64_t retries = 0;  // after refusals
  double first_token_s = 0, last_token_s = 0;

  bool completed() const { return failure.empty(); }
  double per_token_s() const;  // after the first; 0: there is no other
};

// Puts the events of one response together.
class CompletionReader {
 public:
  void add(std::string_view data, double now_s);
  const std::string& error() const { return outcome_.failure; }  // of an event so far; empty: none
  // Says what is missing against what was asked for.
  RequestOutcome finish(int64_t prompt_tokens, int64_t output_tokens) const;

 private:
  RequestOutcome outcome_;
  std::string finish_reason_;
  bool started_ = false, done_ = false, has_usage_ = false;
};

// The message of an error response of OpenAI's form, else the beginning of the body.
std::string error_message(std::string_view body);

}  // namespace smartkv
