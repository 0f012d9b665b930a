#include "server/openai/loose_calls.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include <nlohmann/json.hpp>

#include "server/openai/python_calls.h"

namespace smartkv::openai {

namespace {

using Json = nlohmann::ordered_json;
using Result = LooseCallReader::Result;

constexpr std::string_view kFence = "```", kFunctools = "functools[";
constexpr size_t kMostLanguage = 16, kMostDepth = 64;
constexpr std::array<std::string_view, 6> kFirstKeys = {"name", "arguments", "parameters", "type", "id", "function"};

size_t skip_space(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(kBlanks, at), text.size());
}

// Returns whether `rest` begins with `expected`, or ends before the two differ.
bool agree(std::string_view rest, std::string_view expected) {
  const size_t n = std::min(rest.size(), expected.size());
  return rest.substr(0, n) == expected.substr(0, n);
}

// Returns the offset of the first character in the fenced block that `text` opens: after the opening line and white
// space. Returns npos if no such line begins the text, and text.size() if more text has to decide.
size_t behind_fence(std::string_view text) {
  if (!agree(text, kFence)) return text.npos;
  size_t at = std::min(kFence.size(), text.size());
  const size_t language = at;
  while (at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) || text[at] == '_' || text[at] == '-'))
    ++at;
  if (at - language > kMostLanguage) return text.npos;
  at = std::min(text.find_first_not_of(" \t\r", at), text.size());
  if (at < text.size() && text[at] != '\n') return text.npos;
  return skip_space(text, at);
}

// Returns the text of a member's value in the text of a valid JSON object; empty if the object has no such member.
std::string_view member_text(std::string_view object, std::string_view key) {
  size_t depth = 0, start = 0;
  std::string_view name;
  bool is_value = false;
  for (size_t i = 0; i < object.size(); ++i) {
    const char c = object[i];
    const size_t first = i;
    if (c == '"') {
      for (++i; object[i] != '"'; ++i) i += object[i] == '\\';
      if (depth == 1 && !is_value) name = object.substr(first + 1, i - first - 1);
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == ':' && depth == 1) {
      is_value = true;
      start = skip_space(object, i + 1);
    }
    const bool closes = c == '}' || c == ']';
    if (closes) --depth;
    if ((c == ',' && depth == 1) || depth == 0) {
      if (is_value && name == key) return object.substr(start, object.find_last_not_of(kBlanks, i - 1) + 1 - start);
      is_value = false;
    }
  }
  return {};
}

}  // namespace

// Tells by its first member whether an object may be a call. kCalls means that it may.
Result LooseCallReader::could_be_call(std::string_view text) const {
  size_t at = skip_space(text, 1);
  if (at == text.size()) return Result::kMore;
  if (text[at++] != '"') return Result::kText;
  const std::string_view rest = text.substr(at);
  const auto key = std::find_if(kFirstKeys.begin(), kFirstKeys.end(),
                                [&](std::string_view one) { return agree(rest, std::string(one) + '"'); });
  if (key == kFirstKeys.end()) return Result::kText;
  if (rest.size() <= key->size()) return Result::kMore;
  if (*key != "name" && *key != "type") return Result::kCalls;
  for (const char expected : {':', '"'}) {
    at = skip_space(text, expected == ':' ? at + key->size() + 1 : at + 1);
    if (at == text.size()) return Result::kMore;
    if (text[at] != expected) return Result::kText;
  }
  const std::string_view value = text.substr(at + 1);
  return (*key == "name" ? begins_name(value) : agree(value, "function\"")) ? Result::kCalls : Result::kText;
}

bool LooseCallReader::begins_name(std::string_view text) const {
  return std::any_of(names_.begin(), names_.end(), [&](const std::string& name) { return agree(text, name + '"'); });
}

bool LooseCallReader::add_calls(std::string_view json, std::vector<LooseCall>* calls) const {
  const Json value = Json::parse(json.begin(), json.end(), nullptr, false);
  if (value.is_array()) {
    std::vector<LooseCall> some;
    for (size_t at = json.find('{'); at != json.npos; at = json.find('{', at)) {  // one object after the other
      LooseCallReader one(names_);
      size_t end = 0;
      if (one.read_value(json, at, &some, &end) != Result::kCalls) return false;
      at = end;
    }
    if (some.size() != value.size() || some.empty()) return false;
    calls->insert(calls->end(), some.begin(), some.end());
    return true;
  }
  if (!value.is_object()) return false;
  if (value.contains("function")) {
    const std::string_view inner = member_text(json, "function");
    return value.size() <= 3 && value["function"].is_object() && !value["function"].contains("function") &&
           add_calls(inner, calls);
  }
  const std::string key = value.contains("arguments") ? "arguments" : "parameters";
  const size_t others = value.contains("type") + value.contains("id");
  if (value.size() != 2 + others || !value.contains("name") || !value["name"].is_string() || !value.contains(key) ||
      !value[key].is_object())
    return false;
  const std::string name = value["name"];
  if (std::find(names_.begin(), names_.end(), name) == names_.end()) return false;
  calls->push_back({name, std::string(member_text(json, key))});
  return true;
}

Result LooseCallReader::read_value(std::string_view text, size_t start, std::vector<LooseCall>* calls, size_t* end) {
  const size_t object = text[start] == '[' ? skip_space(text, start + 1) : start;
  if (object == text.size()) return Result::kMore;
  if (text[object] != '{') return Result::kText;
  if (const Result shape = could_be_call(text.substr(object)); shape != Result::kCalls) return shape;
  if (scan_.start != start || scan_.at <= start) scan_ = {.start = start, .at = start};
  for (; scan_.at < text.size(); ++scan_.at) {
    const char c = text[scan_.at];
    if (scan_.in_string) {
      if (c == '"' && !scan_.escaped) scan_.in_string = false;
      scan_.escaped = c == '\\' && !scan_.escaped;
    } else if (c == '"') {
      scan_.in_string = true;
    } else if (c == '{' || c == '[') {
      if (++scan_.depth <= kMostDepth) continue;
      scan_ = {};
      return Result::kText;
    } else if ((c == '}' || c == ']') && --scan_.depth == 0) {
      *end = scan_.at + 1;
      scan_ = {};
      return add_calls(text.substr(start, *end - start), calls) ? Result::kCalls : Result::kText;
    }
  }
  return Result::kMore;
}

// Reads Python calls at `start`. Only the end of a bracket can complete them, so other text is not read again.
Result LooseCallReader::read_python(std::string_view text, size_t start, std::vector<LooseCall>* calls, size_t* end) {
  if (python_seen_ > start && text.find_first_of(")]", python_seen_) == text.npos) return Result::kMore;
  const PythonCalls result = read_python_calls(text.substr(start), names_, calls, end);
  python_seen_ = 0;
  if (result == PythonCalls::kText) return Result::kText;
  if (result == PythonCalls::kMore) {
    if (text.find('(', start) != text.npos) python_seen_ = text.size();
    return Result::kMore;
  }
  *end += start;
  return Result::kCalls;
}

Result LooseCallReader::read(std::string_view text, std::vector<LooseCall>* calls, size_t* end) {
  const bool fenced = text.starts_with('`');
  size_t at = fenced ? behind_fence(text) : 0;
  if (text.starts_with('f')) at = agree(text, kFunctools) ? std::min(kFunctools.size() - 1, text.size()) : text.npos;
  if (at == text.npos) return Result::kText;
  const bool code = text.starts_with("```tool_code");
  for (;;) {
    if (at == text.size()) return Result::kMore;
    Result value = Result::kText;
    if (text[at] == '{' || text[at] == '[') value = read_value(text, at, calls, end);
    if (value == Result::kText && (code || (!fenced && text[at] == '['))) value = read_python(text, at, calls, end);
    if (value == Result::kMore) return value;
    if (value == Result::kText) break;
    if (!fenced) return Result::kCalls;
    at = skip_space(text, *end);
    const std::string_view rest = text.substr(at);
    if (rest.size() < kFence.size() && agree(rest, kFence)) return Result::kMore;
    if (rest.starts_with(kFence)) {
      *end = at + kFence.size();
      return Result::kCalls;
    }
  }
  calls->clear();
  return Result::kText;
}

}  // namespace smartkv::openai
