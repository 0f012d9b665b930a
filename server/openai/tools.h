// Tools of a chat request: the functions that a model may call, how its prompt shows them, and the grammar that its calls
// obey.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/sampling/ebnf.h"
#include "server/openai/field_reader.h"

namespace smartkv::openai {

// How a call is written.
enum class ToolForm : uint8_t {
  kHermes,   // <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>, anywhere in a text; Hermes, Qwen
  kLlama3,   // {"name": ..., "parameters": {...}} as the whole answer
  kMistral,  // [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...] as the whole answer
  kGeneric,  // {"name": ..., "arguments": {...}}, or an array of such, as the whole answer; told to the model by a system
             // text of ours, because its template knows no tools
};

struct ToolFunction {
  std::string name;
  Json declaration;  // {"type": "function", "function": {...}}, as templates read it
  Json parameters;   // the schema of its arguments; null: it takes none
  bool strict = false;
  std::string path;  // "tools[0].function", for errors
};

struct ToolUse {
  enum class Choice : uint8_t { kAuto, kRequired };
  std::vector<ToolFunction> functions;  // that may be called
  Choice choice = Choice::kAuto;
  bool parallel = true;  // more than one call in an answer
  ToolForm form = ToolForm::kGeneric;
  bool constrained = true;  // a grammar holds

  // Mistral's models open calls with a special token, which no grammar of text allows: where they may choose, a grammar
  // holds only if a function is strict.
  void settle(ToolForm template_form);
};

// Whether the arguments of a function can only be {}.
bool takes_nothing(const ToolFunction& function);

// That the field "type" of a tool, a call or a choice is "function". Throws ApiError.
void require_function_type(FieldReader& fields);

// Reads tools, tool_choice and parallel_tool_calls; nothing: no calls are wanted. The form is left open. Throws ApiError.
std::optional<ToolUse> read_tool_use(FieldReader& fields);

// The form that the model's chat template writes calls in, found by having it render one; kGeneric where it shows no tools.
ToolForm tool_form(const Engine& engine);

// For kGeneric: the messages with the functions in a system text, and calls and results as plain turns.
Json plain_tool_messages(const Json& messages, const ToolUse* tools);

// What the prompt ends in so that the answer is a call; "" where the grammar says it all.
std::string call_opening(const ToolUse& tools);

// The rules of an answer; `otherwise`: the expression for one without calls, "" for any text. Returns the expression for
// the whole. Throws ApiError for a strict function whose schema is not supported. For others, only the keywords that no grammar
// says are left out.
std::string add_tool_rules(const ToolUse& tools, const std::string& otherwise, EbnfGrammar* grammar);

}  // namespace smartkv::openai
