#include "server/http/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

#include "server/openai/error.h"
#include "server/openai/json_body.h"

namespace smartkv::http {

using openai::ApiError;
using openai::Json;

namespace {

constexpr size_t kLongestName = 64;
constexpr size_t kShortestKey = 16, kLongestKey = 512;
// Large enough for any key file, and represented exactly by a double.
constexpr int64_t kLargestLimit = 1'000'000'000'000;

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kLongestName && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
}

bool is_key(std::string_view text) {
  return text.size() >= kShortestKey && text.size() <= kLongestKey &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

int64_t limit_value(const Json& value, const std::string& where) {
  const bool integer = value.is_number_integer() && value >= 1 && value <= kLargestLimit;
  if (!integer) {
    throw KeyFileError(where + ": expected an integer from 1 to " + std::to_string(kLargestLimit) + ", found " +
                       (value.is_number() ? value.dump() : std::string(value.type_name())));
  }
  return value.get<int64_t>();
}

NamedKey read_entry(const std::string& name, const Json& entry, const std::string& file) {
  const std::string where = file + ": " + name;
  if (!entry.is_object()) {
    throw KeyFileError(where + ": expected an object with \"key\", found " + std::string(entry.type_name()));
  }
  NamedKey result{.name = name, .key = {}, .limits = {}};
  int n = 0;
  for (const auto& [field, value] : entry.items()) {
    ++n;
    const std::string place = where + "." + field;
    if (field == "key") {
      if (!value.is_string() || !is_key(value.get_ref<const std::string&>())) {
        throw KeyFileError(place + ": expected a string of " + std::to_string(kShortestKey) + " to " +
                           std::to_string(kLongestKey) + " visible ASCII characters");
      }
      result.key = value.get<std::string>();
    } else if (field == "concurrent_requests") {
      result.limits.concurrent_requests = limit_value(value, place);
    } else if (field == "tokens_per_minute") {
      result.limits.tokens_per_minute = limit_value(value, place);
    } else if (field == "kv_bytes") {
      result.limits.kv_bytes = limit_value(value, place);
    } else {
      // The message does not name the field, because its name may be a key in the wrong place.
      throw KeyFileError(where + ": field " + std::to_string(n) +
                         " is unknown; expected key, concurrent_requests, tokens_per_minute or kv_bytes");
    }
  }
  if (result.key.empty()) throw KeyFileError(where + ": expected the field \"key\", found none");
  return result;
}

// Returns the position of a syntax error, "parse error at line 3, column 9". The rest of the error's message may quote
// a key.
std::string position_of(const openai::JsonSyntaxError& error) {
  const std::string_view what = error.what();
  const size_t column = what.find(", column ");
  return std::string(what.substr(0, column == what.npos ? what.npos : what.find(':', column)));
}

std::array<unsigned char, 32> digest_of(std::string_view key) {
  std::array<unsigned char, 32> digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

double seconds_between(KeyAccount::Clock::time_point from, KeyAccount::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

ApiError refusal(const std::string& message, int retry_after_s) {
  return ApiError(429, "rate_limit_error", message + ": try again in " + std::to_string(retry_after_s) + " s", "",
                  "rate_limit_exceeded", retry_after_s);
}

}  // namespace

std::vector<NamedKey> parse_api_keys(std::string_view text, const std::string& file) {
  Json entries;
  try {
    entries = openai::parse_json(text, {.comments = true});
  } catch (const openai::JsonSyntaxError& error) {
    throw KeyFileError(file + ": expected JSON, found: " + position_of(error));
  }
  if (!entries.is_object() || entries.empty()) {
    throw KeyFileError(file + ": expected a JSON object of keys by name, found " +
                       (entries.is_object() ? "an empty one" : std::string(entries.type_name())));
  }
  std::vector<NamedKey> keys;
  std::map<std::string, std::string> name_of;  // by key
  for (const auto& [name, entry] : entries.items()) {
    if (!is_name(name)) {
      throw KeyFileError(file + ": name " + std::to_string(keys.size() + 1) + ": expected 1 to " +
                         std::to_string(kLongestName) + " letters, digits, and . _ -");
    }
    keys.push_back(read_entry(name, entry, file));
    const auto [same, added] = name_of.emplace(keys.back().key, name);
    if (!added) {
      throw KeyFileError(file + ": " + name + ".key: expected a unique key, found the key of " + same->second);
    }
  }
  return keys;
}

std::vector<NamedKey> read_api_keys(const std::filesystem::path& file) {
  // Reading a pipe would block; on a reload, it would block the thread that handles signals.
  if (!std::filesystem::is_regular_file(file)) {
    throw KeyFileError(file.string() + ": expected a file of API keys, found no regular file");
  }
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf()))
    throw KeyFileError(file.string() + ": the file of API keys cannot be read, or is empty");
  return parse_api_keys(text.str(), file.string());
}

KeyAccount::KeyAccount(std::string name, KeyLimits limits, Clock::time_point now)
    : name_(std::move(name)), limits_(limits), tokens_(static_cast<double>(limits.tokens_per_minute)), filled_(now) {}

int64_t KeyAccount::kv_bytes() {
  const std::lock_guard lock(mutex_);
  return limits_.kv_bytes;
}

void KeyAccount::set_limits(KeyLimits limits, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  fill(now);
  tokens_ += static_cast<double>(limits.tokens_per_minute - limits_.tokens_per_minute);
  limits_ = limits;
}

void KeyAccount::fill(Clock::time_point now) {
  tokens_ += seconds_between(filled_, now) * tokens_per_second();
  tokens_ = std::min(tokens_, static_cast<double>(limits_.tokens_per_minute));
  filled_ = now;
}

void KeyAccount::begin(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (limits_.concurrent_requests > 0 && running_ >= limits_.concurrent_requests) {
    throw refusal("The API key " + name_ + " has " + std::to_string(running_) + " requests running, and its limit is " +
                      std::to_string(limits_.concurrent_requests) + " (concurrent_requests)",
                  1);
  }
  if (limits_.tokens_per_minute > 0) {
    fill(now);
    // A bucket with less than one token counts as empty.
    if (tokens_ < 1) {
      throw refusal("The API key " + name_ + " has used its " + std::to_string(limits_.tokens_per_minute) +
                        " tokens per minute (tokens_per_minute)",
                    static_cast<int>(std::min(1e6, std::ceil((1 - tokens_) / tokens_per_second()))));
    }
  }
  ++running_;
}

void KeyAccount::end() {
  const std::lock_guard lock(mutex_);
  --running_;
}

void KeyAccount::charge(int64_t tokens, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (limits_.tokens_per_minute == 0) return;
  fill(now);
  tokens_ -= static_cast<double>(tokens);
}

KeyAccount::Headers KeyAccount::headers(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  Headers headers;
  if (limits_.concurrent_requests > 0) {
    headers.emplace_back("x-ratelimit-limit-requests", std::to_string(limits_.concurrent_requests));
    headers.emplace_back("x-ratelimit-remaining-requests",
                         std::to_string(std::max<int64_t>(0, limits_.concurrent_requests - running_)));
  }
  if (limits_.tokens_per_minute > 0) {
    fill(now);
    const double missing = static_cast<double>(limits_.tokens_per_minute) - tokens_;
    headers.emplace_back("x-ratelimit-limit-tokens", std::to_string(limits_.tokens_per_minute));
    headers.emplace_back("x-ratelimit-remaining-tokens", std::to_string(static_cast<int64_t>(std::max(0.0, tokens_))));
    headers.emplace_back("x-ratelimit-reset-tokens",
                         std::to_string(std::llround(std::ceil(missing / tokens_per_second()))) + "s");
  }
  return headers;
}

KeyLease::KeyLease(std::shared_ptr<KeyAccount> account) : account_(std::move(account)) {
  account_->begin(KeyAccount::Clock::now());
}

ApiKeys::ApiKeys(std::string_view single, std::filesystem::path file) : file_(std::move(file)) {
  if (!single.empty()) {
    single_.push_back(
        {digest_of(single), std::make_shared<KeyAccount>("api_key", KeyLimits{}, KeyAccount::Clock::now())});
  }
  reload();
}

bool ApiKeys::required() const { return !single_.empty() || !file_.empty(); }

std::shared_ptr<KeyAccount> ApiKeys::find(std::string_view key) const {
  const Digest digest = digest_of(key);
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<KeyAccount>* found = nullptr;
  for (const auto* entries : {&single_, &entries_}) {
    for (const Entry& entry : *entries) {
      if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) found = &entry.account;
    }
  }
  return found == nullptr ? nullptr : *found;
}

void ApiKeys::reload() {
  if (!file_.empty()) set_keys(read_api_keys(file_));
}

void ApiKeys::set_keys(const std::vector<NamedKey>& keys) {
  const auto now = KeyAccount::Clock::now();
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::shared_ptr<KeyAccount>> accounts;
  for (const Entry& entry : entries_) accounts.emplace(entry.account->name(), entry.account);
  std::vector<Entry> entries;
  for (const NamedKey& key : keys) {
    std::shared_ptr<KeyAccount>& account = accounts[key.name];
    if (account == nullptr) {
      account = std::make_shared<KeyAccount>(key.name, key.limits, now);
    } else {
      account->set_limits(key.limits, now);
    }
    entries.push_back({digest_of(key.key), account});
  }
  entries_ = std::move(entries);
}

}  // namespace smartkv::http
