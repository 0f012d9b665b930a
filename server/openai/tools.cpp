#include "server/openai/tools.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <unordered_map>
#include <utility>

#include "engine/sampling/json_schema.h"
#include "engine/sampling/regex_grammar.h"
#include "engine/sampling/schema_merge.h"
#include "server/openai/named_calls.h"
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

// Returns the expression for a mark of the form. Special tokens in it count as such. Line breaks may be left
// out.
std::string mark_ebnf(const ToolUse& tools, std::string_view mark) {
  std::string result, literal;
  const auto add = [&](const std::string& expression) {
    if (!literal.empty()) result += (result.empty() ? "" : " ") + ebnf_literal(std::exchange(literal, {}));
    if (!expression.empty()) result += (result.empty() ? "" : " ") + expression;
  };
  for (size_t at = 0; at < mark.size();) {
    const auto special = std::find_if(tools.special.begin(), tools.special.end(),
                                      [&](const auto& one) { return mark.substr(at).starts_with(one.first); });
    if (special != tools.special.end()) {
      add("Token(" + std::to_string(special->second) + ")");
      at += special->first.size();
    } else if (mark[at] == '\n') {
      add("\"\\n\"?");
      ++at;
    } else {
      literal += mark[at++];
    }
  }
  add("");
  return result.empty() ? "\"\"" : result;
}

std::string other_char(std::initializer_list<char> excluded) {
  CodePoints out = {{0xd800, 0xdfff}};
  for (const char c : excluded) out.emplace_back(static_cast<unsigned char>(c), static_cast<unsigned char>(c));
  std::sort(out.begin(), out.end());
  return ebnf_class(complement(out));
}

// Returns the expression for any text in which `mark` does not occur. REQUIRES: the first character of the mark occurs
// only once in it, and all are ASCII.
std::string text_without(std::string_view mark, EbnfGrammar* grammar) {
  const char first = mark[0];
  const std::string begun = grammar->reserve();  // after the first character of the mark
  std::string rule;                              // after the first i characters
  for (size_t i = mark.size() - 1; i > 0; --i) {
    std::string body = "\"" + std::string(1, first) + "\" " + begun + " | " + other_char({first, mark[i]});
    if (i + 1 < mark.size()) body += " | " + ebnf_literal(mark.substr(i, 1)) + " " + rule;
    if (i > 1) rule = grammar->add(body);
    if (i == 1) grammar->define(begun, body);
  }
  return "(" + other_char({first}) + " | " + ebnf_literal(mark.substr(0, 1)) + " " + begun + ")*";
}

// Returns the expression for an argument that is a bare string.
std::string bare_string_ebnf(const ToolFunction& function, const std::string& name, const Json& schema,
                             std::string_view end, EbnfGrammar* grammar) {
  if (schema.contains("enum") || schema.contains("const")) {
    std::vector<std::string> texts;
    for (const Json& value : schema.contains("enum") ? schema["enum"] : Json::array({schema["const"]})) {
      if (value.is_string()) texts.push_back(value);
    }
    if (!texts.empty()) return "(" + ebnf_choice(texts) + ")";
  }
  for (const char* keyword : {"pattern", "format", "minLength", "maxLength"}) {
    if (!function.strict || !schema.contains(keyword)) continue;
    const std::string path = function.path + ".parameters.properties." + name + "." + keyword;
    throw invalid_request(path, "'" + path +
                                    "': is not supported for a strict function of this model, whose calls "
                                    "hold strings without quotes");
  }
  return text_without(end, grammar);
}

// Returns the schemas of the arguments, by name. A schema keeps the definitions that it may refer to.
std::vector<std::pair<std::string, Json>> argument_schemas(const ToolFunction& function) {
  std::vector<std::pair<std::string, Json>> result;
  const Json properties =
      function.parameters.is_object() ? function.parameters.value("properties", Json::object()) : Json::object();
  if (!properties.is_object()) return result;
  for (const auto& [name, schema] : properties.items()) {
    result.emplace_back(name, schema);
    for (const char* key : {"$defs", "definitions"}) {
      if (schema.is_object() && function.parameters.contains(key)) result.back().second[key] = function.parameters[key];
    }
  }
  return result;
}

bool is_required(const ToolFunction& function, const std::string& name) {
  const Json required = function.parameters.value("required", Json::array());
  return required.is_array() && std::find(required.begin(), required.end(), Json(name)) != required.end();
}

std::string argument_value_ebnf(const ToolFunction& function, const std::string& name, const Json& schema,
                                EbnfGrammar* grammar) {
  return add_schema(schema, function.path + ".parameters.properties." + name, grammar,
                    function.strict ? Unsupported::kError : Unsupported::kLeftOut);
}

// Returns the expression for arguments in tags, in the order of the schema.
std::string tags_ebnf(const ToolUse& tools, const NamedForm& form, const ToolFunction& function, EbnfGrammar* grammar) {
  const bool in_lines = form.value.ends_with('\n');
  const std::string_view end = form.value_end.substr(form.value_end.starts_with('\n') ? 1 : 0);
  const std::string_view mark = end.substr(0, end.find('\n'));
  std::string result;
  for (const auto& [name, schema] : argument_schemas(function)) {
    const std::string value = is_string_schema(schema) ? bare_string_ebnf(function, name, schema, mark, grammar)
                                                       : argument_value_ebnf(function, name, schema, grammar);
    const std::string line = in_lines ? " \"\\n\" " : " ";
    const std::string_view opening = in_lines ? form.value.substr(0, form.value.size() - 1) : form.value;
    const std::string one = mark_ebnf(tools, form.key) + " " + ebnf_literal(name) + " " + mark_ebnf(tools, opening) +
                            line + value + line + mark_ebnf(tools, end);
    result += (result.empty() ? "" : " ") + std::string("(") + one + ")" + (is_required(function, name) ? "" : "?");
  }
  return result;
}

// Returns the expression for arguments between braces or brackets: names, `assign`, values. They come in the order of
// the schema; every subset of the optional ones may be left out.
std::string keywords_ebnf(const ToolFunction& function, const std::string& assign,
                          const std::function<std::string(const std::string& name, const Json& schema)>& value,
                          EbnfGrammar* grammar) {
  // rest[i]: the arguments from i on, none of which is the first; first: the same where one of them is.
  std::string rest = "\"\"", first = "\"\"";
  const auto schemas = argument_schemas(function);
  for (size_t i = schemas.size(); i-- > 0;) {
    const auto& [name, schema] = schemas[i];
    const std::string one = ebnf_literal(name) + " " + assign + " " + value(name, schema);
    const bool required = is_required(function, name);
    const std::string later = grammar->add("\",\" \" \"? " + one + " " + rest + (required ? "" : " | " + rest));
    first = grammar->add(one + " " + rest + (required ? "" : " | " + first));
    rest = later;
  }
  return first;
}

std::string gemma_value_ebnf(const ToolUse& tools, const ToolFunction& function, const std::string& name,
                             const Json& schema, EbnfGrammar* grammar) {
  const std::string quote = mark_ebnf(tools, "<|\"|>");
  const Json type = schema.is_object() ? schema.value("type", Json()) : Json();
  if (type == "string") {
    return quote + " " + bare_string_ebnf(function, name, schema, "<|\"|>", grammar) + " " + quote;
  }
  if (type == "integer" || type == "number" || type == "boolean" || type == "null")
    return argument_value_ebnf(function, name, schema, grammar);
  const std::string path = function.path + ".parameters.properties." + name;
  throw invalid_request(path, "'" + path + "': a strict function of this model takes strings, numbers and booleans");
}

std::string named_call_ebnf(const ToolUse& tools, const NamedForm& form, EbnfGrammar* grammar) {
  std::string calls;
  for (const ToolFunction& function : tools.functions) {
    std::string arguments;
    switch (form.style) {
      case ArgumentStyle::kJson: arguments = arguments_ebnf(function, grammar); break;
      case ArgumentStyle::kTags: arguments = tags_ebnf(tools, form, function, grammar); break;
      case ArgumentStyle::kGemma:
        arguments = "\"{\" " +
                    keywords_ebnf(
                        function, "\":\"",
                        [&](const std::string& name, const Json& schema) {
                          return gemma_value_ebnf(tools, function, name, schema, grammar);
                        },
                        grammar) +
                    " \"}\"";
        break;
    }
    const std::string call = ebnf_literal(function.name) + " " + mark_ebnf(tools, form.name_end) + " " + arguments;
    calls += (calls.empty() ? "" : " | ") + call;
  }
  return grammar->add(calls) + " " + mark_ebnf(tools, form.close);
}

// Returns the expression for text with calls behind `mark`, whose rest `behind` describes.
std::string dispatched_ebnf(const ToolUse& tools, std::string_view mark, const std::string& behind, bool loops,
                            EbnfGrammar* grammar) {
  const auto special =
      std::find_if(tools.special.begin(), tools.special.end(), [&](const auto& one) { return mark == one.first; });
  const std::string rule = grammar->add(behind), loop = loops ? "true" : "false";
  if (special == tools.special.end()) {
    return grammar->add("TagDispatch((" + ebnf_literal(mark) + ", " + rule + "), loop_after_dispatch=" + loop + ")");
  }
  return grammar->add("TokenTagDispatch((" + std::to_string(special->second) + ", " + rule +
                      "), loop_after_dispatch=" + loop + ")");
}

std::string named_ebnf(const ToolUse& tools, const NamedForm& form, const std::string& otherwise,
                       EbnfGrammar* grammar) {
  const std::string call = named_call_ebnf(tools, form, grammar), open = mark_ebnf(tools, form.open);
  const std::string more = tools.parallel ? " (" + mark_ebnf(tools, form.between) + " " + open + " " + call + ")*" : "";
  const std::string begin = form.begin.empty() ? "" : mark_ebnf(tools, form.begin) + " ";
  const std::string end = form.end.empty() ? "" : " " + mark_ebnf(tools, form.end);
  const bool may_answer = tools.choice == ToolUse::Choice::kAuto;
  if (!may_answer || !otherwise.empty()) {
    const std::string block = begin + open + " " + call + more + end;
    return grammar->add(may_answer ? block + " | " + otherwise : block);
  }
  // The tag that is looked for is the first word of the form, or its first special token.
  std::string_view mark = call_mark(form.form);
  std::string_view tag = mark.substr(0, mark.find('\n'));
  for (const auto& [text, token] : tools.special) {
    if (mark.starts_with(text)) tag = mark.substr(0, text.size());
  }
  const std::string behind = mark_ebnf(tools, mark.substr(tag.size())) + " ";
  if (form.begin.empty()) return dispatched_ebnf(tools, tag, behind + call, tools.parallel, grammar);
  return dispatched_ebnf(tools, tag, behind + open + " " + call + more + end, false, grammar);
}

std::string harmony_ebnf(const ToolUse& tools, const std::string& otherwise, EbnfGrammar* grammar) {
  std::string calls;
  const std::string channel = mark_ebnf(tools, "<|channel|>"), message = mark_ebnf(tools, "<|message|>");
  const std::string json = "(\" json\" | \" \" " + mark_ebnf(tools, "<|constrain|>") + " \"json\")?";
  for (const ToolFunction& function : tools.functions) {
    const std::string to = ebnf_literal(" to=functions." + function.name);
    const std::string head = "(" + to + " " + channel + " \"commentary\" | " + channel + " \"commentary\" " + to + ")";
    calls += (calls.empty() ? "" : " | ") + head + " " + json + " " + message + " " + arguments_ebnf(function, grammar);
  }
  std::string answer = grammar->add(calls);
  if (tools.choice == ToolUse::Choice::kAuto) {
    answer = grammar->add(answer + " | " + channel + " \"final\" " + message + " " +
                          (otherwise.empty() ? any_text() : "(" + otherwise + ")"));
  }
  return mark_ebnf(tools, "<|start|>assistant") + " " + answer;  // the thinking comes first in any case
}

std::string python_ebnf(const ToolUse& tools, const std::string& otherwise, EbnfGrammar* grammar) {
  std::string calls;
  for (const ToolFunction& function : tools.functions) {
    const auto value = [&](const std::string& name, const Json& schema) -> std::string {
      if (schema.is_object() && schema.value("type", Json()) == "boolean") return "(\"True\" | \"False\")";
      return argument_value_ebnf(function, name, schema, grammar);
    };
    calls += (calls.empty() ? "" : " | ") + ebnf_literal(function.name + "(") + " " +
             keywords_ebnf(function, "\"=\"", value, grammar) + " \")\"";
  }
  const std::string call = grammar->add(calls);
  std::string answer = "\"[\" " + call + (tools.parallel ? " (\",\" \" \"? " + call + ")*" : "") + " \"]\"";
  if (tools.choice == ToolUse::Choice::kAuto) answer += " | " + (otherwise.empty() ? other_text() : otherwise);
  return grammar->add(answer);
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

std::string calls_text(const Json& calls) {
  Json result = Json::array();
  for (const Json& call : calls)
    result.push_back({{"name", call["function"]["name"]}, {"arguments", call["function"]["arguments"]}});
  return dump(result.size() == 1 ? result[0] : result);
}

// Returns a call of the function NAME, as a named form writes it.
std::string example_call(const NamedForm& form) {
  std::string arguments = "{...}";
  if (form.style == ArgumentStyle::kTags) {
    arguments = std::string(form.key) + "ARGUMENT" + std::string(form.value) + "VALUE" + std::string(form.value_end);
  }
  return std::string(form.begin) + std::string(form.open) + "NAME" + std::string(form.name_end) + arguments +
         std::string(form.close) + std::string(form.end);
}

std::string instructions(const ToolUse& tools) {
  std::string text = std::string(kInstructions) + (tools.parallel ? kSeveral : "") + ".";
  if (const NamedForm* form = named_form(tools.form)) {
    text = "You can call functions. To call one, write exactly:\n" + example_call(*form) + "\n";
  }
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
  const bool marked = form == ToolForm::kMistral || form == ToolForm::kGranite;
  const bool strict =
      std::any_of(functions.begin(), functions.end(), [](const ToolFunction& function) { return function.strict; });
  constrained = !marked || choice == Choice::kRequired || strict;
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
  if (tools != nullptr) explain_tools(*tools, &result);
  return result;
}

void write_calls(ToolForm form, Json* messages) {
  for (Json& message : *messages) {
    if (!message.contains("tool_calls")) continue;
    Json calls = Json::array();
    for (const Json& call : message["tool_calls"])
      calls.push_back({{"name", call["function"]["name"]}, {"arguments", call["function"]["arguments"]}});
    message["content"] = message["content"].get<std::string>() + std::string(call_mark(form)) + dump(calls);
    message.erase("tool_calls");
  }
}

void explain_tools(const ToolUse& tools, Json* messages) {
  if (!messages->empty() && (*messages)[0]["role"] == "system") {
    Json& content = (*messages)[0]["content"];
    content = content.get<std::string>() + "\n\n" + instructions(tools);
  } else {
    messages->insert(messages->begin(), Json{{"role", "system"}, {"content", instructions(tools)}});
  }
}

std::string call_opening(const ToolUse& tools) {
  const bool marked = tools.form == ToolForm::kMistral || tools.form == ToolForm::kGranite;
  if (!marked || tools.choice != ToolUse::Choice::kRequired || !tools.special.empty()) return "";
  return std::string(call_mark(tools.form));
}

std::string add_tool_rules(const ToolUse& tools, const std::string& otherwise, EbnfGrammar* grammar) try {
  if (const NamedForm* form = named_form(tools.form)) return named_ebnf(tools, *form, otherwise, grammar);
  if (tools.form == ToolForm::kHarmony) return harmony_ebnf(tools, otherwise, grammar);
  if (tools.form == ToolForm::kPython) return python_ebnf(tools, otherwise, grammar);
  const std::string call = call_ebnf(tools, grammar);
  if (tools.form == ToolForm::kHermes) return hermes_ebnf(tools, otherwise, call, grammar);
  const bool several = tools.parallel && tools.form != ToolForm::kLlama3;
  const std::string space = json_space();
  const std::string list =
      "\"[\" " + space + " " + call + (several ? " (\",\" " + space + " " + call + ")*" : "") + " " + space + " \"]\"";
  std::string answer = several ? call + " | " + list : call;
  if (tools.form == ToolForm::kMistral || tools.form == ToolForm::kGranite) {
    const std::string mark = tools.special.empty() ? "" : mark_ebnf(tools, call_mark(tools.form)) + " ";
    answer = mark + "\" \"? " + list;
  }
  if (tools.choice == ToolUse::Choice::kAuto) answer += " | " + (otherwise.empty() ? other_text() : otherwise);
  return grammar->add(answer);
} catch (const GrammarError& error) {
  throw invalid_request("tools", std::string("'tools': ") + error.what());
}

}  // namespace smartkv::openai
