// Reads the parameters of a policy, or of a drafting method, out of JSON: every key must be known, every error names it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cache/sequence_cache.h"

namespace smartkv {

// "FIELD: what is wrong with it".
class ParameterError : public CacheError {
 public:
  ParameterError(const std::string& field, const std::string& what) : CacheError(field + ": " + what), field_(field) {}
  const std::string& field() const { return field_; }  // "kv_cache.window"

 private:
  std::string field_;
};

// Each getter throws ParameterError "kv_cache.KEY: expected ..., found ...". What is null is missing.
class Parameters {
 public:
  // `name`, `kind`: whose parameters they are; `path`: what goes before the keys in messages.
  Parameters(std::string name, const nlohmann::json& json, std::string path = "kv_cache", std::string kind = "policy")
      : name_(std::move(name)), kind_(std::move(kind)), json_(json), path_(std::move(path)) {}

  bool has(const std::string& key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  int64_t integer(const std::string& key, int64_t fallback, int64_t least, int64_t most);
  double number(const std::string& key, double fallback, double least, double most);
  bool boolean(const std::string& key, bool fallback);
  std::string text(const std::string& key, const std::string& fallback);
  std::string choice(const std::string& key, const std::string& fallback, const std::vector<std::string>& choices);
  // One of `choices`, as a number or as text.
  int64_t integer_choice(const std::string& key, int64_t fallback, const std::vector<int64_t>& choices);
  // An object's parameters, as path.KEY, or null: the key is missing or has a value of another kind.
  const nlohmann::json* object(const std::string& key);
  nlohmann::json value(const std::string& key);  // whatever it is; null: missing
  // Throws for the first of `keys` that is there: "needs WHAT", without which it has no effect.
  void refuse(std::initializer_list<const char*> keys, const std::string& what) const;
  void done() const;  // throws if a key was not asked for

 private:
  const nlohmann::json* find(const std::string& key);
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const;

  std::string name_, kind_;
  const nlohmann::json& json_;
  std::string path_;
  std::set<std::string> known_;
};

}  // namespace smartkv
