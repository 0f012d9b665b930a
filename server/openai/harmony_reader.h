// Reads answers in OpenAI's Harmony format, which gpt-oss writes: messages with a channel each.
//   <|channel|>analysis<|message|>THINKING<|end|>
//   <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>ARGUMENTS<|call|>
//   <|start|>assistant<|channel|>final<|message|>TEXT<|return|>
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/openai/answer_piece.h"

namespace smartkv::openai {

inline constexpr std::string_view kHarmonyThinking = "<|channel|>analysis<|message|>", kHarmonyEnd = "<|end|>",
                                  kHarmonyAnswer = "<|start|>assistant<|channel|>final<|message|>",
                                  kHarmonyMarks = "<|start|><|channel|><|message|><|constrain|><|end|><|call|>";

class HarmonyReader {
 public:
  // in_text: the prompt contains the beginning of a text. Otherwise it ends with <|start|>assistant. Without `calls`,
  // a call of a function is text.
  HarmonyReader(bool in_text, bool calls) : kind_(in_text ? Kind::kText : Kind::kHeader), may_call_(calls) {}

  // Append the pieces that are certain. flush() is called at the end of the answer; `stopped` says that a token of the
  // model ended it, which may be <|call|>.
  void push(std::string_view text, std::vector<AnswerPiece>* pieces);
  void flush(bool stopped, std::vector<AnswerPiece>* pieces);
  int64_t calls() const { return calls_; }
  bool incomplete() const { return kind_ == Kind::kCall && !ended_; }

 private:
  enum class Kind : uint8_t { kHeader, kThinking, kText, kCall };
  bool read_header(std::vector<AnswerPiece>* pieces);  // false if more text is needed
  bool read_body(std::vector<AnswerPiece>* pieces);
  void add(size_t bytes, std::vector<AnswerPiece>* pieces);

  Kind kind_;
  bool may_call_;
  std::string held_;
  bool empty_ = true;                     // whether the message has no text yet
  bool thought_ = false, wrote_ = false;  // whether there was thinking, and text, in an earlier message
  bool ended_ = false;                    // whether the model has ended the answer
  int64_t calls_ = 0;
};

}  // namespace smartkv::openai
