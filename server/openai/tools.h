// Tools of a chat request: the functions that a model may call, how the prompt shows them, and the grammar of calls.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/sampling/ebnf.h"
#include "server/openai/field_reader.h"

namespace smartkv::openai {

// The form in which a model writes calls.
enum class ToolForm : uint8_t {
  kHermes,   // <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>, anywhere in a text; Hermes, Qwen
  kLlama3,   // {"name": ..., "parameters": {...}} as the whole answer
  kMistral,  // [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...] as the whole answer
  kGeneric,  // {"name": ..., "arguments": {...}}, or an array of such objects, as the whole answer. A built-in system
             // text explains this form to the model, because its template does not show tools.
};

// A function that the model may call.
struct ToolFunction {
  std::string name;
  Json declaration;  // {"type": "function", "function": {...}}, as templates read it
  Json parameters;   // the schema of its arguments; null if it has none
  bool strict = false;
  std::string path;  // "tools[0].function", for errors
};

// The tools that one answer may call.
struct ToolUse {
  enum class Choice : uint8_t { kAuto, kRequired };
  std::vector<ToolFunction> functions;  // functions that may be called
  Choice choice = Choice::kAuto;
  bool parallel = true;  // whether an answer may hold more than one call
  ToolForm form = ToolForm::kGeneric;
  bool constrained = true;  // whether a grammar constrains calls

  // Sets the form, and decides whether a grammar constrains calls. Mistral's models begin calls with a special token,
  // which no grammar of text allows. If such a model may choose whether to call, a grammar applies only if a function
  // is strict.
  void settle(ToolForm template_form);
};

// Returns whether the arguments of a function can only be {}.
bool takes_nothing(const ToolFunction& function);

// Throws ApiError unless the field "type" of a tool, a call or a choice is "function".
void require_function_type(FieldReader& fields);

// Reads tools, tool_choice and parallel_tool_calls. Returns nullopt if the answer is to have no calls. The form is not
// set yet: see ToolUse::settle(). Throws ApiError.
std::optional<ToolUse> read_tool_use(FieldReader& fields);

// Returns the form in which the model's chat template writes calls. It finds it by rendering a call. Returns kGeneric
// if the template does not show tools.
ToolForm tool_form(const Engine& engine);

// Converts the messages for kGeneric: calls and results become plain turns, and a system text shows the functions of
// `tools`. `tools` may be null if there are none.
Json plain_tool_messages(const Json& messages, const ToolUse* tools);

// Returns the text to append to the prompt so that the answer is a call, or "" if the grammar alone ensures that.
std::string call_opening(const ToolUse& tools);

// Adds the rules of an answer with calls, and returns the expression for it. `otherwise` is the expression for an
// answer without calls, "" for any text. Throws ApiError for a strict function with an unsupported schema. For other
// functions, keywords that no grammar can express are left out.
std::string add_tool_rules(const ToolUse& tools, const std::string& otherwise, EbnfGrammar* grammar);

}  // namespace smartkv::openai
