// Tools of a chat request: the functions that a model may call, how the prompt shows them, and the grammar of calls.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/sampling/ebnf.h"
#include "server/openai/field_reader.h"
#include "server/openai/tool_forms.h"

namespace smartkv::openai {

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
  bool constrained = true;                               // whether a grammar constrains calls
  std::vector<std::pair<std::string, TokenId>> special;  // special tokens among the marks of the form, with their text

  // Sets the form, and decides whether a grammar constrains calls. The models of some forms write calls as the whole
  // answer, after a mark. If such a model may choose whether to call, a grammar applies only if a function is strict,
  // because it would keep text and calls apart.
  void settle(ToolForm template_form);
};

// Returns whether the arguments of a function can only be {}.
bool takes_nothing(const ToolFunction& function);

// Throws ApiError unless the field "type" of a tool, a call or a choice is "function".
void require_function_type(FieldReader& fields);

// Reads tools, tool_choice and parallel_tool_calls. Returns nullopt if the answer is to have no calls. The form is not
// set yet: see ToolUse::settle(). Throws ApiError.
std::optional<ToolUse> read_tool_use(FieldReader& fields);

// Converts the messages for kGeneric: calls and results become plain turns, and a system text shows the functions of
// `tools`. `tools` may be null if there are none.
Json plain_tool_messages(const Json& messages, const ToolUse* tools);

// Writes the calls in the messages as text of the form, for a template that does not show them.
void write_calls(ToolForm form, Json* messages);

// Adds the system text that explains the functions, and how the form of `tools` calls them, to the messages.
void explain_tools(const ToolUse& tools, Json* messages);

// Returns the text to append to the prompt so that the answer is a call, or "" if the grammar ensures that.
std::string call_opening(const ToolUse& tools);

// Adds the rules of an answer with calls, and returns the expression for it. `otherwise` is the expression for an
// answer without calls, "" for any text. Throws ApiError for a strict function with an unsupported schema. For other
// functions, keywords that no grammar can express are left out.
std::string add_tool_rules(const ToolUse& tools, const std::string& otherwise, EbnfGrammar* grammar);

}  // namespace smartkv::openai
