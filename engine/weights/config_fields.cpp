#include "engine/weights/config_fields.h"

#include <algorithm>

#include "engine/weights/weights.h"

namespace smartkv {
namespace {

// Returns whether a value is an integer up to 2^62. Larger ones are parsed as unsigned or as a float.
bool is_integer(const nlohmann::json& value) {
  return value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{1} << 62);
}

}  // namespace

ConfigFields::ConfigFields(const nlohmann::json& object, std::string file, std::string prefix)
    : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

bool ConfigFields::has(std::string_view key) const {
  read_.emplace(key);
  return object_.contains(key) && !object_[std::string(key)].is_null();
}

bool ConfigFields::is_null(std::string_view key) const {
  return object_.contains(key) && object_[std::string(key)].is_null();
}

const nlohmann::json& ConfigFields::operator[](std::string_view key) const {
  read_.emplace(key);
  return object_[std::string(key)];
}

void ConfigFields::fail(std::string_view key, const std::string& expected) const {
  throw ModelError(file_ + ": key \"" + prefix_ + std::string(key) + "\": expected " + expected + ", found " +
                   (object_.contains(key) ? object_[std::string(key)].dump().substr(0, 100) : "nothing"));
}

int64_t ConfigFields::integer(std::string_view key, std::optional<int64_t> otherwise) const {
  if (!has(key) && otherwise) return *otherwise;
  if (!has(key) || !is_integer((*this)[key])) fail(key, "an integer");
  return (*this)[key].get<int64_t>();
}

double ConfigFields::number(std::string_view key, std::optional<double> otherwise) const {
  if (!has(key) && otherwise) return *otherwise;
  if (!has(key) || !(*this)[key].is_number()) fail(key, "a number");
  return (*this)[key].get<double>();
}

bool ConfigFields::boolean(std::string_view key, bool otherwise) const {
  if (!has(key)) return otherwise;
  if (!(*this)[key].is_boolean()) fail(key, "true or false");
  return (*this)[key].get<bool>();
}

std::string ConfigFields::string(std::string_view key) const {
  if (!has(key) || !(*this)[key].is_string()) fail(key, "a string");
  return (*this)[key].get<std::string>();
}

std::vector<float> ConfigFields::numbers(std::string_view key) const {
  std::vector<float> values;
  if (!has(key) || !(*this)[key].is_array()) fail(key, "an array of numbers");
  for (const nlohmann::json& value : (*this)[key]) {
    if (!value.is_number() || !(value.get<double>() > 0)) fail(key, "an array of positive numbers");
    values.push_back(value.get<float>());
  }
  return values;
}

std::vector<int64_t> ConfigFields::integers(std::string_view key, int64_t least, int64_t most) const {
  std::vector<int64_t> values;
  const nlohmann::json& found = (*this)[key];
  for (const nlohmann::json& value : found.is_array() ? found : nlohmann::json::array({found})) {
    if (!is_integer(value) || value.get<int64_t>() < least || value.get<int64_t>() > most) {
      fail(key, "an integer from " + std::to_string(least) + " to " + std::to_string(most) + ", or an array of them");
    }
    values.push_back(value.get<int64_t>());
  }
  return values;
}

std::vector<int32_t> ConfigFields::token_ids(std::string_view key) const {
  const std::vector<int64_t> ids = integers(key, -1, INT32_MAX);
  return {ids.begin(), ids.end()};
}

void ConfigFields::refuse_unread(std::span<const std::string_view> harmless, std::span<const FixedKey> fixed) const {
  for (const auto& [key, value] : object_.items()) {
    if (value.is_null() || key.starts_with('_') || read_.contains(key)) continue;
    if (std::ranges::find(harmless, key) != harmless.end()) continue;
    const auto known = std::ranges::find(fixed, key, &FixedKey::name);
    if (known == fixed.end()) fail(key, "no such key: it is neither supported nor known to be harmless");
    if (value != nlohmann::json::parse(known->value)) fail(key, std::string(known->value));
  }
}

}  // namespace smartkv
