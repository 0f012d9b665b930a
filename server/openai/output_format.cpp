#include "server/openai/output_format.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "engine/sampling/regex_grammar.h"
#include "server/openai/json_body.h"

namespace smartkv::openai {

namespace {

constexpr size_t kMostChoices = 4096, kMostGrammarBytes = size_t{64} << 10;

// Each of these functions reads one kind of format into an empty OutputFormat. They throw ApiError.
void of_schema(const Json& schema, const std::string& path, OutputFormat* format) {
  format->root = add_schema(schema, path, &format->rules);
}

void of_json_object(const std::string& path, OutputFormat* format) { of_schema({{"type", "object"}}, path, format); }

// Reads a schema given as an object or as text, as vLLM accepts it.
void of_json(const Json& value, const std::string& path, OutputFormat* format) {
  if (!value.is_string()) return of_schema(value, path, format);
  try {
    of_schema(parse_json(value.get<std::string>()), path, format);
  } catch (const JsonSyntaxError& error) {
    throw invalid_request(path, "'" + path + "': expected a JSON schema, found text that is not JSON: " + error.what());
  }
}

void of_regex(const Json& value, const std::string& path, OutputFormat* format) {
  try {
    format->root = regex_grammar(read_string(value, path), TextForm::kPlain, false).ebnf;
  } catch (const GrammarError& error) {
    throw invalid_request(path, "'" + path + "': " + error.what());
  }
}

void of_choice(const Json& value, const std::string& path, OutputFormat* format) {
  if (!value.is_array()) throw wrong_type(path, "an array of strings", value);
  std::vector<std::string> texts;
  for (const Json& one : value) texts.push_back(read_string(one, path + "[" + std::to_string(texts.size()) + "]"));
  if (texts.empty() || texts.size() > kMostChoices) {
    throw invalid_request(path, "'" + path + "': expected 1 to " + std::to_string(kMostChoices) + " strings, found " +
                                    std::to_string(texts.size()));
  }
  format->root = ebnf_choice(texts);
}

// Returns whether a grammar calls one of XGrammar's macros. They are refused, because XGrammar does not check the ids
// and rules that they take. Their names may occur in literals, classes and comments.
bool calls_macro(std::string_view grammar) {
  static constexpr std::array<std::string_view, 4> kMacros = {"TagDispatch", "TokenTagDispatch", "Token",
                                                              "ExcludeToken"};
  std::string name;    // the last identifier, if only blanks followed it
  bool ended = false;  // whether blanks followed it
  char open = 0;       // the character that ends the current literal, class or comment; 0 outside of them
  for (size_t i = 0; i < grammar.size(); ++i) {
    const char c = grammar[i];
    if (open != 0) {
      if (c == '\\' && open != '\n') ++i;
      if (c == open) open = 0;
    } else if (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.') {
      if (std::exchange(ended, false)) name.clear();
      name += c;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      ended = true;
    } else {
      if (c == '(' && std::find(kMacros.begin(), kMacros.end(), name) != kMacros.end()) return true;
      name.clear();
      open = c == '"' ? '"' : c == '[' ? ']' : c == '#' ? '\n' : 0;
    }
  }
  return false;
}

void of_grammar(const Json& value, const std::string& path, OutputFormat* format) {
  format->text = read_string(value, path);
  if (format->text.empty() || format->text.size() > kMostGrammarBytes) {
    throw invalid_request(path, "'" + path + "': expected a grammar of 1 to " + std::to_string(kMostGrammarBytes) +
                                    " bytes, found " + std::to_string(format->text.size()));
  }
  if (calls_macro(format->text)) {
    throw invalid_request(path, "'" + path + "': TagDispatch(...), Token(...) and similar macros are not supported");
  }
}

struct Kind {
  const char* field;       // the field's name in the request
  const char* structured;  // its name in structured_outputs
  void (*read)(const Json& value, const std::string& path, OutputFormat* format);
};

constexpr std::array<Kind, 4> kKinds = {{{"guided_json", "json", of_json},
                                         {"guided_regex", "regex", of_regex},
                                         {"guided_choice", "choice", of_choice},
                                         {"guided_grammar", "grammar", of_grammar}}};
constexpr std::array<Kind, 4> kPlainKinds = {{{"json_schema", nullptr, of_schema},
                                              {"regex", nullptr, of_regex},
                                              {"choice", nullptr, of_choice},
                                              {"grammar", nullptr, of_grammar}}};

// Notes the field that asks for a format. Throws ApiError if another field did already: an output has one format.
void take(OutputFormat* format, const std::string& field) {
  if (!format->field.empty()) {
    throw invalid_request(
        field, "'" + field + "' and '" + format->field + "' cannot be used together: an output has one format");
  }
  format->field = field;
}

void read_json_schema(FieldReader& fields, OutputFormat* format) {
  FieldReader inner(fields.required_object("json_schema"), fields.path("json_schema"));
  inner.string("name");
  inner.string("description");
  inner.boolean("strict", false);  // the output follows the schema in any case
  const Json* schema = inner.object("schema");
  inner.finish();
  if (schema == nullptr) return of_json_object(inner.path("schema"), format);
  of_schema(*schema, inner.path("schema"), format);
}

void read_response_format(const Json& value, OutputFormat* format) {
  FieldReader fields(value, "response_format");
  const std::string type = fields.string("type").value_or("");
  if (type == "json_object" || type == "json_schema") take(format, "response_format");
  if (type == "json_object") {  // llama.cpp allows a schema with it
    const Json* schema = fields.find("schema");
    schema == nullptr ? of_json_object("response_format", format)
                      : of_schema(*schema, "response_format.schema", format);
  } else if (type == "json_schema") {
    read_json_schema(fields, format);
  } else if (type != "text") {
    throw invalid_request("response_format.type",
                          "'response_format.type': expected text, json_object or json_schema, found \"" + type + "\"");
  }
  fields.finish();
}

void read_structured_outputs(const Json& value, OutputFormat* format) {
  FieldReader fields(value, "structured_outputs");
  for (const Kind& kind : kKinds) {
    const std::string path = fields.path(kind.structured);
    const Json* one = fields.find(kind.structured);
    if (one == nullptr) continue;
    take(format, path);
    kind.read(*one, path, format);
  }
  if (fields.boolean("json_object", false)) {
    take(format, fields.path("json_object"));
    of_json_object(fields.path("json_object"), format);
  }
  fields.only_default("disable_fallback", {true, false});
  fields.only_default("disable_any_whitespace", {false});
  fields.only_default("disable_additional_properties", {true});
  fields.finish();
}

}  // namespace

std::string add_schema(const Json& schema, const std::string& path, EbnfGrammar* grammar, Unsupported unsupported) {
  try {
    return add_json_schema(schema, grammar, unsupported);
  } catch (const GrammarError& error) {
    const std::string where = error.path.empty() || path.empty() ? path + error.path : path + "." + error.path;
    throw invalid_request(where, "'" + where + "': " + error.what());
  }
}

OutputFormat read_output_format(FieldReader& fields) {
  OutputFormat result;
  if (const Json* format = fields.object("response_format")) read_response_format(*format, &result);
  for (const auto& kinds : {kPlainKinds, kKinds}) {
    for (const Kind& kind : kinds) {
      const Json* value = fields.find(kind.field);
      if (value == nullptr) continue;
      take(&result, kind.field);
      kind.read(*value, kind.field, &result);
    }
  }
  if (const Json* value = fields.object("structured_outputs")) read_structured_outputs(*value, &result);
  return result;
}

}  // namespace smartkv::openai
