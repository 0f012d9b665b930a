// The forms in which models write tool calls, and which of them a chat template shows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/engine.h"

namespace smartkv::openai {

enum class ToolForm : uint8_t {
  // The whole call is JSON.
  kHermes,   // <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>, anywhere in a text; Hermes, Qwen
  kLlama3,   // {"name": ..., "parameters": {...}} as the whole answer
  kMistral,  // [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...] as the whole answer
  kGranite,  // <|tool_call|>[{"name": ..., "arguments": {...}}, ...] as the whole answer; Granite 3, Phi-4
  kGeneric,  // {"name": ..., "arguments": {...}}, or an array of such objects, as the whole answer. A built-in system
             // text explains this form to the model, because its template does not show tools.
  kPython,   // [f(a=1, b="x"), g()] as the whole answer; Llama 3.2 and 4
  kHarmony,  // messages with a recipient (harmony_reader.h); gpt-oss
  // The name comes before the arguments (named_form()).
  kQwenXml,
  kSeedXml,
  kMinimax,
  kGlm,
  kMistralArgs,
  kDeepSeek,  // V3, R1
  kDeepSeekV31,
  kGemma4,
};

// How the arguments of a named form are written.
enum class ArgumentStyle : uint8_t {
  kJson,   // an object
  kTags,   // for each argument: `key` NAME `value` VALUE `value_end`. Strings are bare, other values are JSON.
  kGemma,  // {name:<|"|>a string<|"|>,other:3}: JSON with bare names and other quotes
};

// A form in which calls are written as
//   `begin` (`open` NAME `name_end` ARGUMENTS `close` `between`)+ `end`
// in any place of a text. White space in these marks is what models usually write; the parser takes any.
struct NamedForm {
  ToolForm form;
  ArgumentStyle style;
  std::string_view begin, open, name_end, close, between, end;
  std::string_view key = {}, value = {}, value_end = {};  // of kTags
};

const NamedForm* named_form(ToolForm form);  // null for the other forms

// Returns the mark that begins calls in a text; "" for forms without one.
std::string_view call_mark(ToolForm form);
// Returns the text of all marks of a form.
std::string form_marks(ToolForm form);

struct ShownForm {
  ToolForm form = ToolForm::kGeneric;
  bool explained = true;    // whether the template tells the model about its tools
  bool shows_calls = true;  // whether it shows calls of the history
};

// Returns the form in which the model's chat template writes calls. It finds it by rendering a call.
ShownForm tool_form(const Engine& engine);

}  // namespace smartkv::openai
