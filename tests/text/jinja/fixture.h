// Common parts of the tests of the template interpreter.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "engine/text/chat_template.h"
#include "engine/text/exact_integer.h"
#include "tests/text/template_file.h"

namespace smartkv::jinja_test {

inline std::string read_fixture(const std::string& name) { return test::read_template_fixture(name); }

// Returns the results that tests/fixtures/chat_templates/make.py wrote.
inline const nlohmann::ordered_json& expected() {
  static const nlohmann::ordered_json json = [] {
    nlohmann::ordered_json read = nlohmann::ordered_json::parse(read_fixture("expected.json"));
    // parse() has turned these integers into floats.
    for (const char* digits : {"123456789012345678901234567890", "-98765432109876543210"}) {
      read["context"][*digits == '-' ? "low" : "big"] = exact_integer(digits);
    }
    return read;
  }();
  return json;
}

// Returns the time that make.py gives to strftime_now.
inline std::tm fixed_now() {
  std::tm time{};
  time.tm_year = 126;
  time.tm_mon = 10;
  time.tm_mday = 21;
  time.tm_wday = 6;
  time.tm_yday = 324;
  time.tm_hour = 3;
  time.tm_min = 4;
  time.tm_sec = 5;
  return time;
}

struct Outcome {
  bool failed;
  std::string text;  // the output, or the error
};
// Renders a template. Errors become part of the outcome.
inline Outcome outcome(const std::string& source,
                       const nlohmann::ordered_json& context = nlohmann::ordered_json::object()) {
  try {
    return {false, ChatTemplate(source).render(context, fixed_now)};
  } catch (const ChatTemplateError& error) {
    return {true, error.what()};
  }
}
// Returns the message of the error that rendering ends with, or "no error".
inline std::string error_of(const std::string& source) {
  const Outcome found = outcome(source);
  return found.failed ? found.text : "no error";
}

// Returns "" if the outcome is that of jinja2, otherwise the difference. Messages of errors may differ.
inline std::string difference(const Outcome& found, const nlohmann::ordered_json& item) {
  const bool fails = item.contains("error");
  if (found.failed == fails && (fails || found.text == item["output"].get<std::string>())) return "";
  return "found " + std::string(found.failed ? "error " : "") + found.text + "\nexpected " + item.dump();
}

}  // namespace smartkv::jinja_test
