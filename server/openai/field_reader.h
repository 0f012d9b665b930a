// Reads the fields of a JSON object strictly. Every field is checked for type and range, and finish() refuses fields
// that were not read. null counts as absent. All functions throw ApiError (400) that names the field
// ("messages[2].role").
#pragma once

#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/error.h"

namespace smartkv::openai {

class FieldReader {
 public:
  // The maximum of an integer that has none.
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // `path` names the object in errors: "messages[2]", or "" for the body. `object` must outlive the reader. Throws if
  // it is not a JSON object.
  explicit FieldReader(const Json& object, std::string path = "");
  // Reads a body with a schema (field_table.h). Reading a field that the schema does not name throws std::logic_error.
  FieldReader(const Json& body, const Json* schema);

  std::string path(std::string_view key) const;  // "messages[2].role"
  const Json* find(std::string_view key);        // null if absent or null; marks the key as known

  // Returns the schema of a field. REQUIRES: the reader has a schema, which names the field.
  const Json& schema(std::string_view key) const;

  // Readers with the default of the field's schema. REQUIRES: it has one.
  bool boolean(std::string_view key) { return boolean(key, schema(key).at("default").get<bool>()); }
  int64_t integer(std::string_view key) { return integer(key, schema(key).at("default").get<int64_t>()); }
  // Readers of one type. They return `fallback`, nullopt or null if the field is absent.
  bool boolean(std::string_view key, bool fallback);
  int64_t integer(std::string_view key, int64_t fallback, int64_t min, int64_t max = kNoLimit);
  // With the limits that the schema gives the field. REQUIRES: the reader has a schema.
  int64_t integer(std::string_view key, int64_t fallback);
  float number(std::string_view key, float fallback);
  // Accepts [min, max], or (min, max] if `above_min`.
  float number(std::string_view key, float fallback, double min, double max, bool above_min = false);
  std::optional<std::string> string(std::string_view key);
  const Json* array(std::string_view key);
  const Json* object(std::string_view key);
  // Readers of a field that must be present.
  const Json& required(std::string_view key);
  const Json& required_object(std::string_view key);
  std::string required_string(std::string_view key);

  // Reads a field that this server does not support. Throws unless it is absent, null or one of `defaults`.
  void only_default(std::string_view key, const std::vector<Json>& defaults = {});

  void finish() const;  // throws if there is a field that was not read

 private:
  const Json& object_;
  const Json* properties_ = nullptr;  // the schema's properties; null without a schema
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

// Returns the error "'path': expected a string, found an integer".
ApiError wrong_type(const std::string& path, std::string_view expected, const Json& found);
// Returns an integer. It also accepts a floating-point number without a fraction, such as 3.0.
int64_t read_integer(const Json& value, const std::string& path, int64_t min, int64_t max);
std::string read_string(const Json& value, const std::string& path);

}  // namespace smartkv::openai
