// Splits a template into text and tokens, with Jinja's white space control (trim_blocks and lstrip_blocks are on).
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
  std::string text;  // For kString, the value of the string, without quotes and escapes.
  int line;
};

// Throws ChatTemplateError naming the line. The last token is kEnd.
std::vector<Token> tokenize(std::string_view source);

// Throws ChatTemplateError with the line and the message.
[[noreturn]] void fail_at(int line, const std::string& message);

}  // namespace smartkv::jinja
