#include "server/openai/python_calls.h"

#include <algorithm>
#include <cctype>

#include "server/openai/field_reader.h"
#include "server/openai/partial_mark.h"

namespace smartkv::openai {

namespace {

constexpr size_t kMostPythonDepth = 64;

// A recursive-descent parser. Each function returns false at the first character that does not fit; ended() then says
// whether that was the end of the text.
class PythonReader {
 public:
  PythonReader(std::string_view text, const std::vector<std::string>& names) : text_(text), names_(names) {}

  bool list(std::vector<LooseCall>* calls) {
    if (!take('[')) return false;
    do {
      if (!call(calls)) return false;
    } while (take(','));
    return take(']');
  }
  bool call(std::vector<LooseCall>* calls) {
    skip();
    const std::string_view rest = text_.substr(at_);
    const auto name = std::find_if(names_.begin(), names_.end(),
                                   [&](const std::string& one) { return may_begin_with(rest, one + "("); });
    if (name == names_.end()) return false;
    if (rest.size() <= name->size()) return cut();
    at_ += name->size() + 1;
    std::string arguments = "{";
    for (bool first = true; !take(')'); first = false) {
      if (!first && !take(',')) return false;
      if (!first && take(')')) break;
      std::string key;
      if (!word(&key) || !take('=')) return false;
      arguments += (first ? "" : ", ") + dump(Json(key)) + ": ";
      if (!value(&arguments, 0)) return false;
    }
    calls->push_back({*name, arguments + "}"});
    return true;
  }
  bool ended() const { return ended_; }
  size_t at() const { return at_; }

 private:
  bool cut() {
    ended_ = true;
    return false;
  }
  void skip() { at_ = std::min(text_.find_first_not_of(kBlanks, at_), text_.size()); }
  bool take(char c) {
    skip();
    if (at_ == text_.size()) return cut();
    if (text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool word(std::string* out) {
    skip();
    const size_t first = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    *out = text_.substr(first, at_ - first);
    return at_ == text_.size() ? cut() : at_ > first;
  }

  bool value(std::string* json, size_t depth) {
    skip();
    if (at_ == text_.size()) return cut();
    if (depth > kMostPythonDepth) return false;
    const char c = text_[at_];
    if (c == '"' || c == '\'') return string(json);
    if (c == '[' || c == '(') return sequence(c == '[' ? ']' : ')', json, depth);
    if (c == '{') return dictionary(json, depth);
    const size_t end = std::min(text_.find_first_of(",)]} \t\r\n", at_), text_.size());
    if (end == text_.size()) return cut();
    std::string_view literal = text_.substr(at_, end - at_);
    if (literal == "True") literal = "true";
    if (literal == "False") literal = "false";
    if (literal == "None") literal = "null";
    if (!Json::accept(literal)) return false;
    *json += literal;
    at_ = end;
    return true;
  }

  bool sequence(char close, std::string* json, size_t depth) {
    ++at_;
    *json += '[';
    for (bool first = true; !take(close); first = false) {
      if (ended_ || (!first && !take(','))) return false;
      if (!first && take(close)) break;
      if (!first) *json += ", ";
      if (ended_ || !value(json, depth + 1)) return false;
    }
    *json += ']';
    return true;
  }

  bool dictionary(std::string* json, size_t depth) {
    ++at_;
    *json += '{';
    for (bool first = true; !take('}'); first = false) {
      if (ended_ || (!first && !take(','))) return false;
      if (!first && take('}')) break;
      if (!first) *json += ", ";
      skip();
      if (at_ == text_.size()) return cut();
      if ((text_[at_] != '"' && text_[at_] != '\'') || !string(json) || !take(':')) return false;
      *json += ": ";
      if (!value(json, depth + 1)) return false;
    }
    *json += '}';
    return true;
  }

  bool string(std::string* json) {
    const char quote = text_[at_++];
    std::string content;
    for (; at_ < text_.size(); ++at_) {
      char c = text_[at_];
      if (c == quote) {
        ++at_;
        *json += dump(Json(content));
        return true;
      }
      if (c != '\\') {
        content += c;
        continue;
      }
      if (++at_ == text_.size()) break;
      c = text_[at_];
      if (c == 'u') {
        if (at_ + 5 > text_.size()) return cut();
        const Json unit = Json::parse("\"\\" + std::string(text_.substr(at_, 5)) + "\"", nullptr, false);
        if (unit.is_discarded()) return false;
        content += unit.get<std::string>();
        at_ += 4;
      } else if (c != '\n') {  // a line that goes on
        content += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
      }
    }
    return cut();
  }

  std::string_view text_;
  const std::vector<std::string>& names_;
  size_t at_ = 0;
  bool ended_ = false;
};

}  // namespace

PythonCalls read_python_calls(std::string_view text, const std::vector<std::string>& names,
                              std::vector<LooseCall>* calls, size_t* end) {
  PythonReader reader(text, names);
  std::vector<LooseCall> found;
  const bool read = text.starts_with('[') ? reader.list(&found) : reader.call(&found);
  if (!read) return reader.ended() ? PythonCalls::kMore : PythonCalls::kText;
  *end = reader.at();
  calls->insert(calls->end(), found.begin(), found.end());
  return PythonCalls::kCalls;
}

}  // namespace smartkv::openai
