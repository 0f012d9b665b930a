#include "server/openai/output_format.h"

#include <array>
#include <functional>
#include <utility>

#include "engine/sampling/json_schema.h"
#include "engine/sampling/regex_grammar.h"
#include "server/openai/json_body.h"

namespace smartkv::openai {

namespace {

constexpr size_t kMostChoices = 4096;

std::string of_schema(const Json& schema, const std::string& path) {
  EbnfGrammar grammar;
  const std::string root = add_schema(schema, path, &grammar);
  return grammar.text(root);
}

std::string of_json_object(const std::string& path) { return of_schema({{"type", "object"}}, path); }

// vLLM takes a schema as an object or as text.
std::string of_json(const Json& value, const std::string& path) {
  if (!value.is_string()) return of_schema(value, path);
  try {
    return of_schema(parse_json(value.get<std::string>()), path);
  } catch (const JsonSyntaxError& error) {
    throw invalid_request(path, "'" + path + "': expected a JSON schema, found text that is not JSON: " + error.what());
  }
}

std::string of_regex(const Json& value, const std::string& path) {
  try {
    return "root ::= " + regex_grammar(read_string(value, path), TextForm::kPlain, false).ebnf + "\n";
  } catch (const GrammarError& error) {
    throw invalid_request(path, "'" + path + "': " + error.what());
  }
}

std::string of_choice(const Json& value, const std::string& path) {
  if (!value.is_array()) throw wrong_type(path, "an array of strings", value);
  std::vector<std::string> texts;
  for (const Json& one : value) texts.push_back(read_string(one, path + "[" + std::to_string(texts.size()) + "]"));
  if (texts.empty() || texts.size() > kMostChoices) {
    throw invalid_request(path, "'" + path + "': expected 1 to " + std::to_string(kMostChoices) + " strings, found " +
                                    std::to_string(texts.size()));
  }
  return "root ::= " + ebnf_choice(texts) + "\n";
}

std::string of_grammar(const Json& value, const std::string& path) { return read_string(value, path); }

struct Kind {
  const char* field;       // of the request
  const char* structured;  // in structured_outputs
  std::string (*read)(const Json& value, const std::string& path);
};

constexpr std::array<Kind, 4> kKinds = {{{"guided_json", "json", of_json},
                                         {"guided_regex", "regex", of_regex},
                                         {"guided_choice", "choice", of_choice},
                                         {"guided_grammar", "grammar", of_grammar}}};
constexpr std::array<Kind, 4> kPlainKinds = {{{"json_schema", nullptr, of_schema},
                                              {"regex", nullptr, of_regex},
                                              {"choice", nullptr, of_choice},
                                              {"grammar", nullptr, of_grammar}}};

std::string read_json_schema(FieldReader& fields) {
  const Json* wrapped = fields.object("json_schema");
  if (wrapped == nullptr) throw invalid_request(fields.path("json_schema"), "'" + fields.path("json_schema") + "' is required");
  FieldReader inner(*wrapped, fields.path("json_schema"));
  inner.string("name");
  inner.string("description");
  inner.boolean("strict", false);  // the output follows the schema in any case
  const Json* schema = inner.find("schema");
  inner.finish();
  return schema == nullptr ? of_json_object(inner.path("schema")) : of_schema(*schema, inner.path("schema"));
}

std::string read_response_format(const Json& format) {
  FieldReader fields(format, "response_format");
  const std::string type = fields.string("type").value_or("");
  std::string grammar;
  if (type == "json_object") {  // llama.cpp lets a schema stand beside it
    const Json* schema = fields.find("schema");
    grammar = schema == nullptr ? of_json_object("response_format") : of_schema(*schema, "response_format.schema");
  } else if (type == "json_schema") {
    grammar = read_json_schema(fields);
  } else if (type != "text") {
    throw invalid_request("response_format.type", "'response_format.type': expected text, json_object or json_schema, found \"" + type + "\"");
  }
  fields.finish();
  return grammar;
}

// Keeps the one format of the request.
void take(OutputFormat* result, const std::string& field, std::string grammar) {
  if (!result->field.empty()) {
    throw invalid_request(field, "'" + field + "' and '" + result->field + "' exclude each other: an output has one format");
  }
  *result = {std::move(grammar), field};
}

void read_structured_outputs(const Json& value, OutputFormat* result) {
  FieldReader fields(value, "structured_outputs");
  for (const Kind& kind : kKinds) {
    const std::string path = fields.path(kind.structured);
    if (const Json* one = fields.find(kind.structured)) take(result, path, kind.read(*one, path));
  }
  if (fields.boolean("json_object", false)) take(result, fields.path("json_object"), of_json_object(""));
  fields.only_default("disable_fallback", {true, false});
  fields.only_default("disable_any_whitespace", {false});
  fields.only_default("disable_additional_properties", {true});
  fields.finish();
}

}  // namespace

std::string add_schema(const Json& schema, const std::string& path, EbnfGrammar* grammar) {
  try {
    return add_json_schema(schema, grammar);
  } catch (const GrammarError& error) {
    const std::string where = error.path.empty() || path.empty() ? path + error.path : path + "." + error.path;
    throw invalid_request(where, "'" + where + "': " + error.what());
  }
}

OutputFormat read_output_format(FieldReader& fields) {
  OutputFormat result;
  if (const Json* format = fields.object("response_format")) {
    std::string grammar = read_response_format(*format);
    if (!grammar.empty()) take(&result, "response_format", std::move(grammar));
  }
  for (const auto& kinds : {kPlainKinds, kKinds}) {
    for (const Kind& kind : kinds) {
      if (const Json* value = fields.find(kind.field)) take(&result, kind.field, kind.read(*value, kind.field));
    }
  }
  if (const Json* value = fields.object("structured_outputs")) read_structured_outputs(*value, &result);
  fields.only_default("guided_decoding_backend", {"auto", "xgrammar"});
  return result;
}

}  // namespace smartkv::openai
