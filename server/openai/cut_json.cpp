#include "server/openai/cut_json.h"

#include <string_view>

namespace smartkv::openai {

std::vector<std::string> completed_json(const std::string& text) {
  std::string open, open_at_end;  // open brackets here and at `end`, outermost first
  size_t end = 0;                 // end of the last complete member
  size_t escape = text.npos;      // start of an escape sequence that the end of the text cuts
  bool in_string = false;
  for (size_t i = text.find_first_not_of(" \t\r\n"); i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '"') in_string = false;
      if (c != '\\') continue;
      const size_t length = i + 1 < text.size() && text[i + 1] == 'u' ? 6 : 2;
      if (i + length > text.size()) escape = i;
      i += length - 1;
      continue;
    }
    if (open.empty() && c != '{') return {};
    if (c == '"') in_string = true;
    if (c == '}' || c == ']') open.pop_back();
    if (c == '{' || c == '[') open += c;
    if (open.empty()) return {};
    if (std::string_view("{[,]}").find(c) == std::string_view::npos) continue;
    end = i + (c == ',' ? 0 : 1);
    open_at_end = open;
  }
  const auto closed = [](std::string begin, const std::string& brackets) {
    for (size_t i = brackets.size(); i-- > 0;) begin += brackets[i] == '{' ? '}' : ']';
    return begin;
  };
  if (open.empty()) return {};
  return {closed(text.substr(0, escape) + (in_string ? "\"" : ""), open), closed(text.substr(0, end), open_at_end)};
}

}  // namespace smartkv::openai
