// Typed access to a JSON object of a configuration that notes which keys were read, so that none is ignored silently.
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

// A key that has no say in what is computed, if its value is `only`; empty: whatever its value.
struct HarmlessKey {
  std::string_view name;
  std::string_view only = "";  // JSON
};

class ConfigFields {
 public:
  // `object` outlives this. `file` and `prefix` stand before the key's name in errors.
  ConfigFields(const nlohmann::json& object, std::string file, std::string prefix = "");

  bool has(std::string_view key) const;      // null counts as absent
  bool is_null(std::string_view key) const;  // there, and null
  const nlohmann::json& operator[](std::string_view key) const;
  // Each throws ModelError when the key is absent and there is nothing to take otherwise, or has another type.
  int64_t integer(std::string_view key, std::optional<int64_t> otherwise = std::nullopt) const;
  double number(std::string_view key, std::optional<double> otherwise = std::nullopt) const;
  bool boolean(std::string_view key, bool otherwise) const;
  std::string string(std::string_view key) const;
  std::vector<float> numbers(std::string_view key) const;     // an array, all positive
  std::vector<int64_t> integers(std::string_view key) const;  // an array, or one number

  [[noreturn]] void fail(std::string_view key, const std::string& expected) const;
  // Throws ModelError naming the first key that is not null, was not read and is not harmless. Keys that begin with "_"
  // are bookkeeping.
  void refuse_unread(std::span<const HarmlessKey> harmless) const;

 private:
  const nlohmann::json& object_;
  std::string file_, prefix_;
  mutable std::set<std::string, std::less<>> read_;
};

}  // namespace smartkv
