// Cuts a template into text and tokens, with Jinja's white space control (trim_blocks and lstrip_blocks on).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace smartkv::jinja {

struct Token {
  enum class Kind : uint8_t {
    kText,
    kBeginPrint,
    kEndPrint,
    kBeginBlock,
    kEndBlock,
    kName,
    kInteger,
    kFloat,
    kString,
    kOperator,
    kEnd
  };
  Kind kind;
  std::string text;  // of kString: unescaped
  int line;
};

// Throws ChatTemplateError naming the line.
std::vector<Token> tokenize(std::string_view source);

[[noreturn]] void fail_at(int line, const std::string& message);

}  // namespace smartkv::jinja
