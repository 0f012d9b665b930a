// Reads tests/fixtures/chat_templates.
#pragma once

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace smartkv::test {

inline std::string read_template_fixture(const std::string& name) {
  std::stringstream text;
  text << std::ifstream(SMARTKV_FIXTURES "/chat_templates/" + name, std::ios::binary).rdbuf();
  if (text.str().empty()) throw std::runtime_error("no fixture: chat_templates/" + name);
  return text.str();
}

// Returns a template as its model's authors published it.
inline std::string published_template(const std::string& name) {
  return read_template_fixture("published/" + name + ".jinja");
}

}  // namespace smartkv::test
