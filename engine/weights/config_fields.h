// Typed access to a JSON object of a configuration. It records which keys were read, so that no key is ignored
// silently.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace smartkv {

// A key that does not affect the computation if it has a certain value.
struct FixedKey {
  std::string_view name, value;  // The value as JSON.
};

class ConfigFields {
 public:
  // `object` must outlive this object. `file` and `prefix` precede the name of the key in errors.
  ConfigFields(const nlohmann::json& object, std::string file, std::string prefix = "");

  bool has(std::string_view key) const;                          // A key whose value is null counts as absent.
  bool is_null(std::string_view key) const;                      // The key is present, and its value is null.
  const nlohmann::json& operator[](std::string_view key) const;  // REQUIRES: the object has the key.
  // Return the value of the key, or `otherwise` if the key is absent. Throw ModelError if the value has another type,
  // or if the key is absent and there is no `otherwise`.
  int64_t integer(std::string_view key, std::optional<int64_t> otherwise = std::nullopt) const;
  double number(std::string_view key, std::optional<double> otherwise = std::nullopt) const;
  bool boolean(std::string_view key, bool otherwise) const;
  std::string string(std::string_view key) const;
  std::vector<float> numbers(std::string_view key) const;  // An array of positive numbers.
  // An array of integers from `least` to `most`, or one integer. REQUIRES: the object has the key.
  std::vector<int64_t> integers(std::string_view key, int64_t least, int64_t most) const;
  // One token id or an array of them. -1 stands for no token. REQUIRES: the object has the key.
  std::vector<int32_t> token_ids(std::string_view key) const;

  // Throws ModelError with the key, `expected` and the value that was found.
  [[noreturn]] void fail(std::string_view key, const std::string& expected) const;
  // Throws ModelError naming the first key that was not read, is not null, is not harmless and does not have its fixed
  // value. Keys that begin with "_" are bookkeeping and always harmless.
  void refuse_unread(std::span<const std::string_view> harmless, std::span<const FixedKey> fixed = {}) const;

 private:
  const nlohmann::json& object_;
  std::string file_, prefix_;
  mutable std::set<std::string, std::less<>> read_;
};

}  // namespace smartkv
