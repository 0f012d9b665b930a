#include "server/openai/json_body.h"

#include <set>
#include <vector>

namespace smartkv::openai {

using Json = nlohmann::ordered_json;

Json parse_json(std::string_view text, bool comments, bool repeated_keys) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open, outermost first
  int values = 0;
  const auto check = [&keys, &values, repeated_keys](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxJsonDepth) {
      throw JsonSyntaxError("nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    }
    using Event = Json::parse_event_t;
    if (event == Event::value || event == Event::object_start || event == Event::array_start) {
      if (++values > kMaxJsonValues) {
        throw JsonSyntaxError("more than " + std::to_string(kMaxJsonValues) + " values");
      }
    }
    if (event == Event::object_start) {
      keys.emplace_back();
    } else if (event == Event::object_end) {
      keys.pop_back();
    } else if (event == Event::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second && !repeated_keys) throw JsonSyntaxError("duplicate key \"" + key + "\"");
      if (keys.back().size() > kMaxJsonKeys) {
        throw JsonSyntaxError("an object of more than " + std::to_string(kMaxJsonKeys) + " keys");
      }
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), check, true, comments);
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 9: ...": the part before the space is not news.
    const std::string_view what = error.what();
    throw JsonSyntaxError(std::string(what.substr(what.find("] ") == what.npos ? 0 : what.find("] ") + 2)));
  }
}

}  // namespace smartkv::openai
