// Who may use the server: API keys by name, and what each of them may use at once and per minute.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace smartkv::http {

// 0: no limit.
struct KeyLimits {
  int64_t concurrent_requests = 0;
  int64_t tokens_per_minute = 0;  // of prompts and outputs together
};

struct NamedKey {
  std::string name;
  std::string key;
  KeyLimits limits;
};

// A file of keys that cannot be used; the message names the file, the place, what was expected, and never holds a key.
class KeyFileError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// {"NAME": {"key": KEY, "concurrent_requests": N, "tokens_per_minute": N}, ...}, comments allowed; a limit that is not
// given is none. A name is 1 to 64 letters, digits, and . _ -; a key 16 to 512 visible ASCII characters. `file` begins
// the messages. Throws KeyFileError.
std::vector<NamedKey> parse_api_keys(std::string_view text, const std::string& file);
std::vector<NamedKey> read_api_keys(const std::filesystem::path& file);

// What one key uses. Thread-safe.
//
// Tokens are a bucket that holds those of a minute and fills at that rate. They are taken as they are computed, so it may
// be overdrawn; until the debt is filled up, requests are refused. Over any time t a key gets at most
// tokens_per_minute (1 + t / min), and what those requests use that run when the bucket runs empty.
class KeyAccount {
 public:
  using Clock = std::chrono::steady_clock;
  using Headers = std::vector<std::pair<std::string, std::string>>;

  KeyAccount(std::string name, KeyLimits limits, Clock::time_point now);

  const std::string& name() const { return name_; }
  void set_limits(KeyLimits limits, Clock::time_point now);  // what was used stays used

  // Takes a place for one request, until end(). Throws openai::ApiError (429, with the seconds to wait).
  void begin(Clock::time_point now);
  void end();
  void charge(int64_t tokens, Clock::time_point now);

  // x-ratelimit-{limit,remaining}-{requests,tokens} and x-ratelimit-reset-tokens, as OpenAI's API names them, of the
  // limits that there are; requests are those at once.
  Headers headers(Clock::time_point now);

 private:
  void fill(Clock::time_point now);  // mutex_ held
  double tokens_per_second() const { return static_cast<double>(limits_.tokens_per_minute) / 60; }

  const std::string name_;
  std::mutex mutex_;
  KeyLimits limits_;
  int64_t running_ = 0;
  double tokens_;  // in the bucket; negative: overdrawn
  Clock::time_point filled_;
};

// A request's place in its key's account.
class KeyLease {
 public:
  explicit KeyLease(std::shared_ptr<KeyAccount> account);  // throws as KeyAccount::begin
  ~KeyLease() { account_->end(); }
  KeyLease(const KeyLease&) = delete;
  KeyLease& operator=(const KeyLease&) = delete;

  void charge(int64_t tokens) { account_->charge(tokens, KeyAccount::Clock::now()); }

 private:
  std::shared_ptr<KeyAccount> account_;
};

// The keys of a server. Holds digests, not keys. Thread-safe.
class ApiKeys {
 public:
  // `single`: a key without limits, named "api_key"; empty: none. `file`: empty: none. Throws KeyFileError.
  ApiKeys(std::string_view single, std::filesystem::path file);

  bool required() const;  // a request needs one of them
  // Null: not one of them. How long it takes depends neither on how much of a key is right nor on which one it is.
  std::shared_ptr<KeyAccount> find(std::string_view key) const;
  // Reads the file again; a name keeps its account. Throws KeyFileError, and all stays as it was.
  void reload();

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Entry {
    Digest digest;
    std::shared_ptr<KeyAccount> account;
  };

  void set_keys(const std::vector<NamedKey>& keys);

  std::filesystem::path file_;
  std::vector<Entry> single_;  // none or one
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // of the file
};

}  // namespace smartkv::http
