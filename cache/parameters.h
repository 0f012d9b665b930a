// Reads a policy's parameters out of JSON: every key must be known, every error names it.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace smartkv {

// Each getter throws CacheError "kv_cache.KEY: expected ..., found ...".
class Parameters {
 public:
  // `path`: what goes before the keys in messages.
  Parameters(std::string policy, const nlohmann::json& json, std::string path = "kv_cache")
      : policy_(std::move(policy)), json_(json), path_(std::move(path)) {}

  bool has(const std::string& key) const { return json_.contains(key); }
  int64_t integer(const std::string& key, int64_t fallback, int64_t least, int64_t most);
  double number(const std::string& key, double fallback, double least, double most);
  bool boolean(const std::string& key, bool fallback);
  std::string text(const std::string& key, const std::string& fallback);
  std::string choice(const std::string& key, const std::string& fallback, const std::vector<std::string>& choices);
  // An object's parameters, as path.KEY, or null: the key is missing or has a value of another kind.
  const nlohmann::json* object(const std::string& key);
  void done() const;  // throws if a key was not asked for

 private:
  const nlohmann::json* find(const std::string& key);
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const;

  std::string policy_;
  const nlohmann::json& json_;
  std::string path_;
  std::set<std::string> known_;
};

}  // namespace smartkv
