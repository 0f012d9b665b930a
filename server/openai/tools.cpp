#include "server/openai/tools.h"

#include <algorithm>
#include <cctype>
#include <unordered_map>

#include "engine/sampling/json_schema.h"
#include "engine/sampling/regex_grammar.h"
#include "engine/sampling/schema_merge.h"
#include "server/openai/chat_prompt.h"
#include "server/openai/output_format.h"

namespace smartkv::openai {

namespace {

constexpr size_t kMostTools = 128, kMostNameBytes = 128;

constexpr const char* kInstructions =
    "You can call functions. To call one, answer with nothing but a JSON object of this form: "
    "{\"name\": \"NAME\", \"arguments\": {...}}";
constexpr const char* kSeveral = ", or with an array of such objects to call several";

ToolFunction read_function(const Json& tool, const std::string& path) {
  FieldReader fields(tool, path);
  require_function_type(fields);
  FieldReader inner(fields.required_object("function"), fields.path("function"));
  fields.object("cache_control");  // a hint for other servers' caches
  fields.finish();
  ToolFunction result;
  result.path = fields.path("function");
  result.name = inner.string("name").value_or("");
  const bool valid = !result.name.empty() && result.name.size() <= kMostNameBytes &&
                     std::all_of(result.name.begin(), result.name.end(),
                                 [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.'; });
  if (!valid) {
    throw invalid_request(
        inner.path("name"),
        "'" + inner.path("name") + "': expected 1 to 128 of a-z, A-Z, 0-9, _, - and ., found \"" + result.name + "\"");
  }
  inner.string("description");
  result.strict = inner.boolean("strict", false);
  if (const Json* parameters = inner.object("parameters")) result.parameters = *parameters;
  inner.finish();
  result.declaration = tool;
  result.declaration["function"].erase("strict");
  result.declaration.erase("cache_control");
  if (result.parameters.is_null())
    result.declaration["function"]["parameters"] = {{"type", "object"}, {"properties", Json::object()}};
  return result;
}

std::string named_function(const Json& choice) {
  FieldReader fields(choice, "tool_choice");
  require_function_type(fields);
  FieldReader inner(fields.required_object("function"), fields.path("function"));
  fields.finish();
  std::string name = inner.string("name").value_or("");
  inner.finish();
  return name;
}

// Reads tool_choice; returns false if the model must not call anything. Throws ApiError.
bool read_choice(const Json& choice, ToolUse* tools) {
  if (choice == "none") return false;
  if (choice == "auto") return true;
  tools->choice = ToolUse::Choice::kRequired;
  if (choice == "required") return true;
  if (!choice.is_object()) {
    throw invalid_request("tool_choice",
                          "'tool_choice': expected none, auto, required or {\"type\": \"function\", \"function\": "
                          "{\"name\": ...}}, found " +
                              dump(choice));
  }
  const std::string name = named_function(choice);
  std::erase_if(tools->functions, [&](const ToolFunction& function) { return function.name != name; });
  tools->parallel = false;
  if (!tools->functions.empty()) return true;
  throw invalid_request("tool_choice.function.name",
                        "'tool_choice.function.name': \"" + name + "\" is not the name of a function in 'tools'");
}

const char* arguments_key(ToolForm form) { return form == ToolForm::kLlama3 ? "parameters" : "arguments"; }

std::string arguments_ebnf(const ToolFunction& function, EbnfGrammar* grammar) {
  if (takes_nothing(function)) return "\"{}\"";
  const std::string path = function.path + ".parameters";
  Json schema = function.parameters;
  if (!schema.contains("type")) schema["type"] = "object";
  if (schema["type"] != "object") {
    throw invalid_request(path + ".type", "'" + path + ".type': expected \"object\", found " + dump(schema["type"]));
  }
  return add_schema(schema, path, grammar, function.strict ? Unsupported::kError : Unsupported::kLeftOut);
}

std::string call_ebnf(const ToolUse& tools, EbnfGrammar* grammar) {
  const std::string space = json_space();
  std::string calls;
  for (const ToolFunction& function : tools.functions) {
    const std::string name = ebnf_literal(Json(function.name).dump());
    const std::string key = ebnf_literal(Json(arguments_key(tools.form)).dump() + ":");
    calls += std::string(calls.empty() ? "" : " | ") + "\"{\" " + space + " \"\\\"name\\\":\" " + space + " " + name +
             " \",\" " + space + " " + key + " " + space + " " + arguments_ebnf(function, grammar) + " " + space +
             " \"}\"";
  }
  return grammar->add(calls);
}

std::string any_text() { return characters(complement({}), TextForm::kPlain) + "*"; }

// Returns the expression for a text that cannot be mistaken for a call.
std::string other_text() {
  return "(\"\" | " +
         ebnf_class(without(complement({{'{', '{'}, {'[', '['}, {' ', ' '}, {'\t', '\t'}, {'\n', '\n'}}),
                            {{0xd800, 0xdfff}})) +
         " " + any_text() + ")";
}

std::string hermes_ebnf(const ToolUse& tools, const std::string& otherwise, const std::string& call,
                        EbnfGrammar* grammar) {
  const std::string rest = grammar->add("\"\\n\" " + call + " \"\\n</tool_call>\"");
  if (tools.choice == ToolUse::Choice::kAuto && otherwise.empty()) {
    return grammar->add("TagDispatch((\"<tool_call>\", " + rest +
                        "), loop_after_dispatch=" + (tools.parallel ? "true" : "false") + ")");
  }
  const std::string block = "\"<tool_call>\" " + rest;
  const std::string blocks = tools.parallel ? block + " (\"\\n\" " + block + ")*" : block;
  return tools.choice == ToolUse::Choice::kAuto ? grammar->add(blocks + " | " + otherwise) : grammar->add(blocks);
}

std::string rendered_probe(const ChatTemplate& chat_template, const Engine& engine) {
  // The name occurs in no template, and the id has the length that Mistral's templates require.
  const Json function = {
      {"name", "probe_a1"}, {"description", "d"}, {"parameters", {{"type", "object"}, {"properties", Json::object()}}}};
  const Json call = {
      {"id", "abcdefgh1"}, {"type", "function"}, {"function", {{"name", "probe_a1"}, {"arguments", {{"k", 1}}}}}};
  const Json user = {{"role", "user"}, {"content", "q"}},
             assistant = {{"role", "assistant"}, {"content", ""}, {"tool_calls", {call}}};
  const Json tools = Json::array({{{"type", "function"}, {"function", function}}});
  try {
    const std::string shown = chat_template.render(template_context(engine, Json::array({user}), tools, true));
    if (shown.find("probe_a1") == std::string::npos) return "";
    return chat_template.render(template_context(engine, Json::array({user, assistant}), nullptr, false));
  } catch (const ChatTemplateError&) {
    return "";
  }
}

std::string calls_text(const Json& calls) {
  Json result = Json::array();
  for (const Json& call : calls)
    result.push_back({{"name", call["function"]["name"]}, {"arguments", call["function"]["arguments"]}});
  return dump(result.size() == 1 ? result[0] : result);
}

std::string instructions(const ToolUse& tools) {
  std::string text = std::string(kInstructions) + (tools.parallel ? kSeveral : "") + ".";
  text +=
      tools.choice == ToolUse::Choice::kAuto ? " If no function helps, answer in plain text." : " Answer with a call.";
  text += "\n\nThe functions:";
  for (const ToolFunction& function : tools.functions) text.append("\n").append(dump(function.declaration["function"]));
  return text;
}

}  // namespace

// Frameworks declare a function without parameters as an object without named properties, although such a schema allows
// any property.
bool takes_nothing(const ToolFunction& function) {
  const auto members = function.parameters.items();
  return std::all_of(members.begin(), members.end(), [](const auto& item) {
    const std::string& key = item.key();
    const bool no_member = (key == "properties" || key == "required") && item.value().empty();
    const bool is_object = key == "type" && item.value() == "object";
    return is_object || no_member || (key == "additionalProperties" && item.value() == Json(false)) ||
           is_annotation(key);
  });
}

void require_function_type(FieldReader& fields) {
  if (const std::string type = fields.required_string("type"); type != "function") {
    throw invalid_request(fields.path("type"),
                          "'" + fields.path("type") + "': expected \"function\", found \"" + type + "\"");
  }
}

void ToolUse::settle(ToolForm template_form) {
  form = template_form;
  constrained =
      form != ToolForm::kMistral || choice == Choice::kRequired ||
      std::any_of(functions.begin(), functions.end(), [](const ToolFunction& function) { return function.strict; });
}

std::optional<ToolUse> read_tool_use(FieldReader& fields) {
  ToolUse tools;
  const Json* list = fields.array("tools");
  const Json* choice = fields.find("tool_choice");
  tools.parallel = fields.boolean("parallel_tool_calls");
  if (list == nullptr || list->empty()) {
    if (choice != nullptr && *choice != "none" && *choice != "auto") {
      throw invalid_request("tool_choice", "'tool_choice' is only allowed with 'tools'");
    }
    return std::nullopt;
  }
  if (list->size() > kMostTools) {
    throw invalid_request("tools", "'tools': expected at most " + std::to_string(kMostTools) + " tools, found " +
                                       std::to_string(list->size()));
  }
  std::set<std::string> names;
  for (size_t i = 0; i < list->size(); ++i) {
    tools.functions.push_back(read_function((*list)[i], "tools[" + std::to_string(i) + "]"));
    const ToolFunction& function = tools.functions.back();
    if (names.insert(function.name).second) continue;
    throw invalid_request(function.path + ".name",
                          "'" + function.path + ".name': \"" + function.name + "\" is used twice");
  }
  if (choice != nullptr && !read_choice(*choice, &tools)) return std::nullopt;
  return tools;
}

ToolForm tool_form(const Engine& engine) {
  if (engine.chat_template() == nullptr) return ToolForm::kGeneric;
  const std::string text = rendered_probe(*engine.chat_template(), engine);
  if (text.find("<tool_call>") != std::string::npos) return ToolForm::kHermes;
  if (text.find("[TOOL_CALLS]") != std::string::npos) return ToolForm::kMistral;
  if (text.find("\"parameters\"") != std::string::npos) return ToolForm::kLlama3;
  return ToolForm::kGeneric;
}

Json plain_tool_messages(const Json& messages, const ToolUse* tools) {
  Json result = Json::array();
  std::unordered_map<std::string, std::string> names;  // names of functions, by the id of their call
  for (const Json& message : messages) {
    Json plain = message;
    if (message.contains("tool_calls")) {
      for (const Json& call : message["tool_calls"])
        names[call["id"].get<std::string>()] = call["function"]["name"].get<std::string>();
      const std::string content = message["content"].get<std::string>();
      plain["content"] = (content.empty() ? "" : content + "\n") + calls_text(message["tool_calls"]);
      plain.erase("tool_calls");
    } else if (message["role"] == "tool") {
      const auto known = names.find(message["tool_call_id"].get<std::string>());
      const std::string name = known == names.end() ? "the function" : known->second;
      plain = {{"role", "user"}, {"content", "Result of " + name + ": " + message["content"].get<std::string>()}};
    }
    result.push_back(std::move(plain));
  }
  if (tools == nullptr) return result;
  if (!result.empty() && result[0]["role"] == "system") {
    result[0]["content"] = result[0]["content"].get<std::string>() + "\n\n" + instructions(*tools);
  } else {
    result.insert(result.begin(), Json{{"role", "system"}, {"content", instructions(*tools)}});
  }
  return result;
}

std::string call_opening(const ToolUse& tools) {
  return tools.form == ToolForm::kMistral && tools.choice == ToolUse::Choice::kRequired ? "[TOOL_CALLS]" : "";
}

std::string add_tool_rules(const ToolUse& tools, const std::string& otherwise, EbnfGrammar* grammar) try {
  const std::string call = call_ebnf(tools, grammar);
  if (tools.form == ToolForm::kHermes) return hermes_ebnf(tools, otherwise, call, grammar);
  const bool several = tools.parallel && tools.form != ToolForm::kLlama3;
  const std::string space = json_space();
  const std::string list =
      "\"[\" " + space + " " + call + (several ? " (\",\" " + space + " " + call + ")*" : "") + " " + space + " \"]\"";
  std::string answer = tools.form == ToolForm::kMistral ? "\" \"? " + list : several ? call + " | " + list : call;
  if (tools.choice == ToolUse::Choice::kAuto) answer += " | " + (otherwise.empty() ? other_text() : otherwise);
  return grammar->add(answer);
} catch (const GrammarError& error) {
  throw invalid_request("tools", std::string("'tools': ") + error.what());
}

}  // namespace smartkv::openai
