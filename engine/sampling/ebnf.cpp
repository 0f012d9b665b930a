#include "engine/sampling/ebnf.h"

#include <algorithm>
#include <cstdio>

namespace smartkv {
namespace {

std::string escaped(uint32_t code_point) {
  char text[12];
  std::snprintf(text, sizeof(text), "\\U%08X", code_point);
  return text;
}

bool is_plain(uint32_t c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::string in_class(uint32_t code_point) {
  return is_plain(code_point) ? std::string(1, static_cast<char>(code_point)) : escaped(code_point);
}

// Returns the set sorted, with overlapping and adjacent ranges joined.
CodePoints normalized(CodePoints set) {
  std::sort(set.begin(), set.end());
  CodePoints result;
  for (const auto& [first, last] : set) {
    if (!result.empty() && first <= result.back().second + 1) {
      result.back().second = std::max(result.back().second, last);
    } else {
      result.emplace_back(first, last);
    }
  }
  return result;
}

}  // namespace

std::string EbnfGrammar::add(const std::string& body) {
  return recursive([&](const std::string&) { return body; });
}

std::string EbnfGrammar::recursive(const std::function<std::string(const std::string& name)>& body) {
  const auto [known, is_new] = by_body_.try_emplace(body("self"));
  if (is_new) {
    known->second = reserve();
    define(known->second, body(known->second));
  }
  return known->second;
}

std::string EbnfGrammar::reserve() { return 'r' + std::to_string(next_++); }

void EbnfGrammar::define(const std::string& name, const std::string& body) {
  bytes_ += name.size() + body.size();
  if (bytes_ > kMostBytes) {
    throw TooLargeError("", "the grammar is larger than " + std::to_string(kMostBytes) + " bytes");
  }
  rules_.emplace_back(name, body);
}

void EbnfGrammar::spend(int64_t steps) {
  steps_ += steps;
  if (steps_ > kMostSteps)
    throw TooLargeError("", "takes more than " + std::to_string(kMostSteps) + " steps to convert into a grammar");
}

std::string EbnfGrammar::text(const std::string& root) const {
  std::string result = "root ::= " + root + "\n";
  for (const auto& [name, body] : rules_) result += name + " ::= " + body + "\n";
  return result;
}

std::string ebnf_literal(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += std::string("\\") + c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      result += escaped(static_cast<unsigned char>(c));
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string ebnf_either(const std::vector<std::string>& expressions) {
  std::string result;
  for (const std::string& one : expressions) result += (result.empty() ? "" : " | ") + one;
  return "(" + result + ")";
}

std::string ebnf_choice(const std::vector<std::string>& texts) {
  std::vector<std::string> literals;
  for (const std::string& text : texts) literals.push_back(ebnf_literal(text));
  return ebnf_either(literals);
}

CodePoints complement(CodePoints set) {
  CodePoints result;
  uint32_t next = 0;
  for (const auto& [first, last] : normalized(std::move(set))) {
    if (first > next) result.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastCodePoint) result.emplace_back(next, kLastCodePoint);
  return result;
}

CodePoints without(const CodePoints& set, CodePoints removed) {
  CodePoints either = complement(set);
  either.insert(either.end(), removed.begin(), removed.end());
  return complement(std::move(either));
}

std::string ebnf_class(const CodePoints& set) {
  std::string result = "[";
  for (const auto& [first, last] : normalized(set)) {
    result += in_class(first);
    if (last > first) result.append("-").append(in_class(last));
  }
  return result + "]";
}

}  // namespace smartkv
