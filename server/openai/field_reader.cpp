#include "server/openai/field_reader.h"

#include <cmath>
#include <sstream>

namespace smartkv::openai {

namespace {

std::string type_of(const Json& value) {
  if (value.is_number_integer()) return "an integer";
  if (value.is_number()) return "a number";
  if (value.is_boolean()) return "a boolean";
  if (value.is_string()) return "a string";
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  return "null";
}

std::string shown(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

// Shortens a long value, which would hide the rest of the message.
std::string shown(const Json& value) {
  std::string text = dump(value);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::string integer_range(int64_t min, int64_t max) {
  const std::string low = std::to_string(min);
  return max == FieldReader::kNoLimit ? "of at least " + low : "from " + low + " to " + std::to_string(max);
}

}  // namespace

ApiError wrong_type(const std::string& path, std::string_view expected, const Json& found) {
  const std::string what = path.empty() ? "The request body" : "'" + path + "'";
  return invalid_request(path, what + ": expected " + std::string(expected) + ", found " + type_of(found));
}

int64_t read_integer(const Json& value, const std::string& path, int64_t min, int64_t max) {
  if (value.is_number_float() && std::abs(value.get<double>()) < 0x1p53 &&
      std::floor(value.get<double>()) == value.get<double>()) {
    return read_integer(static_cast<int64_t>(value.get<double>()), path, min, max);
  }
  if (!value.is_number_integer()) throw wrong_type(path, "an integer", value);
  const bool too_big = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX};
  const int64_t number = too_big ? INT64_MAX : value.get<int64_t>();
  if (too_big || number < min || number > max) {
    throw invalid_request(path,
                          "'" + path + "': expected an integer " + integer_range(min, max) + ", found " + shown(value));
  }
  return number;
}

std::string read_string(const Json& value, const std::string& path) {
  if (!value.is_string()) throw wrong_type(path, "a string", value);
  return value.get<std::string>();
}

FieldReader::FieldReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) throw wrong_type(path_, "an object", object);
}

FieldReader::FieldReader(const Json& body, const Json* schema) : FieldReader(body) {
  properties_ = &schema->at("properties");
}

std::string FieldReader::path(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

const Json& FieldReader::schema(std::string_view key) const { return properties_->at(std::string(key)); }

const Json* FieldReader::find(std::string_view key) {
  if (properties_ != nullptr && !properties_->contains(key)) {
    throw std::logic_error("field \"" + std::string(key) + "\" is read, but its schema does not name it");
  }
  known_.emplace(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool FieldReader::boolean(std::string_view key, bool fallback) {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) throw wrong_type(path(key), "a boolean", *value);
  return value->get<bool>();
}

int64_t FieldReader::integer(std::string_view key, int64_t fallback, int64_t min, int64_t max) {
  const Json* value = find(key);
  return value == nullptr ? fallback : read_integer(*value, path(key), min, max);
}

int64_t FieldReader::integer(std::string_view key, int64_t fallback) {
  return integer(key, fallback, schema(key).at("minimum"), schema(key).value("maximum", kNoLimit));
}

float FieldReader::number(std::string_view key, float fallback) {
  const Json& limits = schema(key);
  const bool above_min = limits.contains("exclusiveMinimum");
  return number(key, fallback, limits.at(above_min ? "exclusiveMinimum" : "minimum"), limits.at("maximum"), above_min);
}

float FieldReader::number(std::string_view key, float fallback, double min, double max, bool above_min) {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number()) throw wrong_type(path(key), "a number", *value);
  const double number = value->get<double>();
  const auto rounded = static_cast<float>(number);  // a number above the minimum may round to it
  if (!(number >= min && number <= max) || (above_min && rounded <= min)) {
    throw invalid_request(path(key), "'" + path(key) + "': expected a number " + (above_min ? "above " : "from ") +
                                         shown(min) + " to " + shown(max) + ", found " + shown(*value));
  }
  return rounded;
}

std::optional<std::string> FieldReader::string(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return read_string(*value, path(key));
}

const Json* FieldReader::array(std::string_view key) {
  const Json* value = find(key);
  if (value != nullptr && !value->is_array()) throw wrong_type(path(key), "an array", *value);
  return value;
}

const Json* FieldReader::object(std::string_view key) {
  const Json* value = find(key);
  if (value != nullptr && !value->is_object()) throw wrong_type(path(key), "an object", *value);
  return value;
}

const Json& FieldReader::required(std::string_view key) {
  if (const Json* value = find(key)) return *value;
  throw invalid_request(path(key), "'" + path(key) + "' is required");
}

const Json& FieldReader::required_object(std::string_view key) {
  required(key);
  return *object(key);
}

std::string FieldReader::required_string(std::string_view key) { return read_string(required(key), path(key)); }

void FieldReader::only_default(std::string_view key, const std::vector<Json>& defaults) {
  const Json* value = find(key);
  if (value == nullptr) return;
  for (const Json& accepted : defaults) {
    if (*value == accepted) return;
  }
  const std::string only = defaults.empty() ? "null" : dump(defaults.front());
  throw invalid_request(path(key), "'" + path(key) + "' is not supported by this server: expected " + only +
                                       " or an absent field, found " + shown(*value));
}

void FieldReader::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (!known_.contains(key)) {
      throw invalid_request(path(key), "Unrecognized request argument supplied: " + path(key));
    }
  }
}

}  // namespace smartkv::openai
