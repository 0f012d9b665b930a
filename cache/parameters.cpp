#include "cache/parameters.h"

#include <sstream>

#include <nlohmann/json.hpp>

namespace smartkv {
namespace {

template <typename T>
std::string joined(const std::vector<T>& choices) {
  std::string text;
  for (const T& choice : choices) text += (text.empty() ? "" : ", ") + nlohmann::json(choice).dump();
  return text;
}

template <typename T>
std::string range(T least, T most) {
  std::ostringstream text;
  text << "[" << least << ", " << most << "]";
  return text.str();
}

}  // namespace

thread_local std::vector<ListedParameter>* parameter_list = nullptr;

template <typename T>
void Parameters::list(const std::string& key, const T& fallback, const std::string& values,
                      std::string_view help) const {
  parameter_list->push_back({path_ + "." + key, nlohmann::json(fallback).dump(), values, std::string(help)});
}

bool Parameters::has(const std::string& key) const { return json_.contains(key) && !json_.at(key).is_null(); }

const nlohmann::json* Parameters::find(const std::string& key) {
  known_.insert(key);
  const auto it = json_.find(key);
  return it == json_.end() || it->is_null() ? nullptr : &*it;
}

void Parameters::fail(const std::string& key, const std::string& expected) const {
  const std::string found = json_.at(key).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  throw ParameterError(path_ + "." + key, "expected " + expected + ", found " + found);
}

int64_t Parameters::integer(const std::string& key, int64_t fallback, int64_t least, int64_t most,
                            std::string_view help) {
  if (parameter_list != nullptr) list(key, fallback, range(least, most), help);
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  const std::string expected = "an integer in " + range(least, most);
  if (!value->is_number_integer()) fail(key, expected);
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) fail(key, expected);
  const auto number = value->get<int64_t>();
  if (number < least || number > most) fail(key, expected);
  return number;
}

double Parameters::number(const std::string& key, double fallback, double least, double most, std::string_view help) {
  if (parameter_list != nullptr) list(key, fallback, range(least, most), help);
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
    fail(key, "a number in " + range(least, most));
  }
  return value->get<double>();
}

bool Parameters::boolean(const std::string& key, bool fallback, std::string_view help) {
  if (parameter_list != nullptr) list(key, fallback, "true, false", help);
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail(key, "true or false");
  return value->get<bool>();
}

std::string Parameters::text(const std::string& key, const std::string& fallback, std::string_view help) {
  if (parameter_list != nullptr) list(key, fallback, "text", help);
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) fail(key, "a string");
  return value->get<std::string>();
}

std::string Parameters::choice(const std::string& key, const std::string& fallback,
                               const std::vector<std::string>& choices, std::string_view help) {
  if (parameter_list != nullptr) list(key, fallback, joined(choices), help);
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  for (const std::string& name : choices) {
    if (*value == name) return name;
  }
  fail(key, "one of " + joined(choices));
}

int64_t Parameters::integer_choice(const std::string& key, int64_t fallback, const std::vector<int64_t>& choices,
                                   std::string_view help) {
  if (parameter_list != nullptr) list(key, fallback, joined(choices), help);
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  for (const int64_t choice : choices) {
    if (*value == choice || *value == std::to_string(choice)) return choice;
  }
  fail(key, "one of " + joined(choices));
}

const nlohmann::json* Parameters::object(const std::string& key) {
  const nlohmann::json* value = find(key);
  return value == nullptr || !value->is_object() ? nullptr : value;
}

nlohmann::json Parameters::value(const std::string& key) {
  const nlohmann::json* value = find(key);
  return value == nullptr ? nlohmann::json() : *value;
}

void Parameters::refuse(std::initializer_list<const char*> keys, const std::string& what) const {
  for (const char* key : keys) {
    if (has(key)) throw ParameterError(path_ + "." + key, "needs " + what);
  }
}

void Parameters::done() const {
  for (const auto& [key, value] : json_.items()) {
    if (known_.contains(key) || value.is_null()) continue;
    std::string known;
    for (const std::string& name : known_) known += (known.empty() ? "" : ", ") + name;
    throw ParameterError(path_ + "." + key,
                         "the " + kind_ + " \"" + name_ + "\" " +
                             (known.empty() ? "takes no parameters" : "has no such parameter; it takes " + known));
  }
}

}  // namespace smartkv
