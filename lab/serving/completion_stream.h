// A streamed response of /v1/completions or /v1/chat/completions as a client sees it: its contents, its timing, and
// whether it is complete.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace smartkv {

// Parses server-sent events (the HTML standard, section 9.2) from bytes that may be cut anywhere. It reads only the
// field "data". The data of an event with several such lines is their text joined by newlines.
class SseParser {
 public:
  using OnData = std::function<void(std::string_view data)>;
  explicit SseParser(OnData on_data) : on_data_(std::move(on_data)) {}

  void feed(std::string_view bytes);

 private:
  void line(std::string_view text);

  OnData on_data_;
  std::string pending_;  // the beginning of an unfinished line
  std::string data_;
  bool has_data_ = false;
};

// The result of one request. Times are in seconds since a moment that the caller of LoadClient chooses.
struct RequestOutcome {
  std::string failure;    // empty if the response is complete and has the requested number of tokens
  std::string text = {};  // of the answer, without its reasoning
  int64_t prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;
  int64_t kv_bytes = 0;  // usage.kv_cache.bytes, what the cache held in the end; 0 if the server does not say
  int64_t retries = 0;   // number of refusals (429) after which it was sent again
  double first_token_s = 0, last_token_s = 0;

  bool completed() const { return failure.empty(); }
  double per_token_s() const;  // mean time between tokens; 0 if there is only one
};

// Collects the events of one response.
class CompletionReader {
 public:
  // Takes the data of an event that arrived at `now_s`.
  void add(std::string_view data, double now_s);
  const std::string& error() const { return outcome_.failure; }  // error that an event reported; empty if there is none
  // Returns the outcome. Its `failure` names what differs from a complete response with these numbers of tokens. The
  // prompt may have any number if `prompt_tokens` is nullopt.
  RequestOutcome finish(std::optional<int64_t> prompt_tokens, int64_t output_tokens) const;

 private:
  void take_choice(const nlohmann::json& choice, double now_s);
  void take_usage(const nlohmann::json& usage);

  RequestOutcome outcome_;
  std::string finish_reason_;
  bool started_ = false, done_ = false, has_usage_ = false;
};

// Returns the message of an error response in OpenAI's format, or the beginning of any other body.
std::string error_message(std::string_view body);

}  // namespace smartkv
