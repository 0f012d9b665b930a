// Reads the fields of a JSON object strictly: every field is checked for type and range, and finish() refuses those
// that nobody asked for. null counts as absent. Errors are 400s that name the field ("messages[2].role").
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
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // `path` names the object in errors: "" for the body, "messages[2]". Throws unless `object` is an object.
  explicit FieldReader(const Json& object, std::string path = "");
  // Of a body with a schema (schemas.h): it reads no field that the schema does not name.
  FieldReader(const Json& body, const Json* schema);

  std::string path(std::string_view key) const;  // "messages[2].role"
  const Json* find(std::string_view key);        // nullptr when absent or null; marks the key as known

  bool boolean(std::string_view key, bool fallback);
  int64_t integer(std::string_view key, int64_t fallback, int64_t min, int64_t max = kNoLimit);
  // Within the limits that the schema gives the field.
  int64_t integer(std::string_view key, int64_t fallback);
  float number(std::string_view key, float fallback);
  // Within [min, max]; with `above_min`, (min, max].
  float number(std::string_view key, float fallback, double min, double max, bool above_min = false);
  std::optional<std::string> string(std::string_view key);
  const Json* array(std::string_view key);
  const Json* object(std::string_view key);
  // Of a field that must be there.
  const Json& required(std::string_view key);
  const Json& required_object(std::string_view key);
  std::string required_string(std::string_view key);

  // A field of OpenAI's that is not supported: null or one of `defaults`, else an error.
  void only_default(std::string_view key, const std::vector<Json>& defaults = {});

  void finish() const;  // throws on a field that was not asked for

 private:
  const Json& object_;
  const Json* properties_ = nullptr;  // of the schema; null: none
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

// "expected a string, found an integer"
ApiError wrong_type(const std::string& path, std::string_view expected, const Json& found);
// Also of a number with nothing behind its point.
int64_t read_integer(const Json& value, const std::string& path, int64_t min, int64_t max);
std::string read_string(const Json& value, const std::string& path);

}  // namespace smartkv::openai
