// API keys: who may use the server, and how much each key may use at once and per minute.
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

// Limits of one key. 0 means that there is no limit.
struct KeyLimits {
  int64_t concurrent_requests = 0;
  int64_t tokens_per_minute = 0;  // tokens of prompts and outputs together
  int64_t kv_bytes = 0;           // of stored prefixes in memory
};

// An entry of a key file.
struct NamedKey {
  std::string name;
  std::string key;
  KeyLimits limits;
};

// A key file that cannot be used. The message names the file, the place and what was expected. It never contains a key.
class KeyFileError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Parses {"NAME": {"key": KEY, "concurrent_requests": N, "tokens_per_minute": N, "kv_bytes": N}, ...}. Comments are
// allowed.
//  - A limit that is not given does not apply.
//  - A name has 1 to 64 characters: letters, digits, and . _ -
//  - A key has 16 to 512 visible ASCII characters, and no two names share one.
// Error messages begin with `file`. Throws KeyFileError.
std::vector<NamedKey> parse_api_keys(std::string_view text, const std::string& file);
// Reads and parses `file`, which must be a regular file. Throws KeyFileError.
std::vector<NamedKey> read_api_keys(const std::filesystem::path& file);

// Counts what one key uses. Thread-safe.
//
// Tokens are limited by a token bucket that holds tokens_per_minute and fills at that rate. A request is charged while
// it runs, so the bucket may be overdrawn; requests are refused until the debt is filled up. In any t minutes a key
// gets at most tokens_per_minute * (1 + t) tokens, plus the tokens of requests that are running when the bucket becomes
// empty.
class KeyAccount {
 public:
  using Clock = std::chrono::steady_clock;
  using Headers = std::vector<std::pair<std::string, std::string>>;

  KeyAccount(std::string name, KeyLimits limits, Clock::time_point now);

  const std::string& name() const { return name_; }
  int64_t kv_bytes();  // the limit of stored prefixes; 0 for none
  // Replaces the limits. Tokens used so far stay used.
  void set_limits(KeyLimits limits, Clock::time_point now);

  // Counts one more running request, until end() is called. Throws openai::ApiError (429, with the seconds to wait) if
  // a limit is reached; end() must not be called then.
  void begin(Clock::time_point now);
  void end();
  // Takes tokens out of the bucket, which may become negative.
  void charge(int64_t tokens, Clock::time_point now);

  // Returns x-ratelimit-{limit,remaining}-{requests,tokens} and x-ratelimit-reset-tokens, as OpenAI's API names them. A
  // limit that is not set has no headers. The headers for requests count concurrent requests.
  Headers headers(Clock::time_point now);

 private:
  void fill(Clock::time_point now);  // REQUIRES: mutex_ is held
  double tokens_per_second() const { return static_cast<double>(limits_.tokens_per_minute) / 60; }

  const std::string name_;
  std::mutex mutex_;
  KeyLimits limits_;
  int64_t running_ = 0;
  double tokens_;  // tokens in the bucket; negative if it is overdrawn
  Clock::time_point filled_;
};

// Counts one request in its key's account for as long as the object lives.
class KeyLease {
 public:
  explicit KeyLease(std::shared_ptr<KeyAccount> account);  // throws like KeyAccount::begin
  ~KeyLease() { account_->end(); }
  KeyLease(const KeyLease&) = delete;
  KeyLease& operator=(const KeyLease&) = delete;

  void charge(int64_t tokens) { account_->charge(tokens, KeyAccount::Clock::now()); }
  KeyAccount& account() const { return *account_; }

 private:
  std::shared_ptr<KeyAccount> account_;
};

// The keys of a server. Holds digests, not keys. Thread-safe.
class ApiKeys {
 public:
  // `single` is a key without limits, named "api_key". `file` is a key file. Either may be empty if there is none.
  // Throws KeyFileError.
  ApiKeys(std::string_view single, std::filesystem::path file);

  bool required() const;  // whether requests need a key
  // Returns the account of a key, or null if the key is unknown. The time that this takes depends neither on how much
  // of the key is correct nor on which key it matches.
  std::shared_ptr<KeyAccount> find(std::string_view key) const;
  // Reads the file again. A name that is still in the file keeps its account. If it throws KeyFileError, nothing
  // changes.
  void reload();

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Entry {
    Digest digest;
    std::shared_ptr<KeyAccount> account;
  };

  void set_keys(const std::vector<NamedKey>& keys);

  std::filesystem::path file_;
  std::vector<Entry> single_;  // at most one
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // keys of the file
};

}  // namespace smartkv::http
