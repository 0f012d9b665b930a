#include "server/openai/json_body.h"

#include <set>
#include <vector>

namespace smartkv::openai {

using Json = nlohmann::ordered_json;

Json parse_json(std::string_view text, bool comments) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open, outermost first
  const auto check = [&keys](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxJsonDepth) {
      throw JsonSyntaxError("nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    }
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) throw JsonSyntaxError("duplicate key \"" + key + "\"");
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
