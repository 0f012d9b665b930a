// A piece of an answer, as its parsers return it.
#pragma once

#include <cstdint>
#include <string>

namespace smartkv::openai {

// Exactly one of these: text, thinking, the beginning of a call, or more of a call's arguments.
struct AnswerPiece {
  std::string text;
  int64_t call = -1;      // index of the call; -1 for text and thinking
  std::string name;       // name of the function, in the first piece of a call only
  std::string arguments;  // JSON text as the model wrote it
  std::string reasoning;  // thinking
};

}  // namespace smartkv::openai
