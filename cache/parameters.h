// Reads the parameters of a policy, or of a drafting method, from JSON. Unknown keys are errors, and every error names
// its key.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cache/sequence_cache.h"

namespace smartkv {

// The message is "FIELD: " followed by what is wrong with it.
class ParameterError : public CacheError {
 public:
  ParameterError(const std::string& field, const std::string& what) : CacheError(field + ": " + what), field_(field) {}
  const std::string& field() const { return field_; }  // Such as "kv_cache.window".

 private:
  std::string field_;
};

// A parameter as its getter describes it: "kv_cache.block", "64", "[2, 1048576]" and what it does.
struct ListedParameter {
  std::string path, fallback, values, help;
};
// Getters of this thread add the parameters that they are asked for. Null if nobody wants the list.
extern thread_local std::vector<ListedParameter>* parameter_list;

// Each getter returns `fallback` if the key is missing or null, and throws ParameterError "kv_cache.KEY: expected ...,
// found ..." if the value does not fit. A key counts as known once a getter asked for it. `help`
// is what docs/reference/policies.md says about the parameter.
class Parameters {
 public:
  // name, kind: the owner of the parameters, for messages (`policy "full"`). path: prefix of the keys in messages.
  // `json` must outlive this object.
  Parameters(std::string name, const nlohmann::json& json, std::string path = "kv_cache", std::string kind = "policy")
      : name_(std::move(name)), kind_(std::move(kind)), json_(json), path_(std::move(path)) {}

  bool has(const std::string& key) const;
  int64_t integer(const std::string& key, int64_t fallback, int64_t least, int64_t most, std::string_view help = "");
  double number(const std::string& key, double fallback, double least, double most, std::string_view help = "");
  bool boolean(const std::string& key, bool fallback, std::string_view help = "");
  std::string text(const std::string& key, const std::string& fallback, std::string_view help = "");
  std::string choice(const std::string& key, const std::string& fallback, const std::vector<std::string>& choices,
                     std::string_view help = "");
  // The value must be one of `choices`, as a number or as text.
  int64_t integer_choice(const std::string& key, int64_t fallback, const std::vector<int64_t>& choices,
                         std::string_view help = "");
  // Returns the value if it is an object, to be read by Parameters with the path path.KEY. Null if the key is missing
  // or has a value of another kind.
  const nlohmann::json* object(const std::string& key);
  // Returns the value, whatever its kind. Null if it is missing.
  nlohmann::json value(const std::string& key);
  // Throws ParameterError "needs `what`" for the first of `keys` that is given, because it has no effect without
  // `what`.
  void refuse(std::initializer_list<const char*> keys, const std::string& what) const;
  // Throws ParameterError if a key is given that no getter asked for. Call it last.
  void done() const;

 private:
  const nlohmann::json* find(const std::string& key);
  template <typename T>
  void list(const std::string& key, const T& fallback, const std::string& values, std::string_view help) const;
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const;

  std::string name_, kind_;
  const nlohmann::json& json_;
  std::string path_;
  std::set<std::string> known_;
};

}  // namespace smartkv
