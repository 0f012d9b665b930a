#include "server/commands/config_schema.h"

#include <algorithm>

#include "server/commands/options.h"

namespace smartkv {

using Json = nlohmann::ordered_json;

namespace {

Json text_schema(const Option& option) {
  Json schema = {{"type", "string"}};
  if (!option.choices.empty()) schema["enum"] = option.choices;
  return schema;
}

Json integer_schema(const Option& option, int64_t max) {
  Json schema = {{"type", "integer"}, {"minimum", option.min}};
  if (std::min(option.max, max) != std::numeric_limits<int64_t>::max()) schema["maximum"] = std::min(option.max, max);
  if (!option.bytes) return schema;
  static constexpr const char* kSize = R"(^[0-9]+(\.[0-9]+)? ?(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB|G)?$)";
  return {{"anyOf", {schema, {{"type", "string"}, {"pattern", kSize}}}}};
}

struct SchemaOf {
  const Option& option;

  Json operator()(const auto*) const { return text_schema(option); }  // a text, a path or an enum
  Json operator()(const int*) const { return integer_schema(option, std::numeric_limits<int>::max()); }
  Json operator()(const int64_t*) const { return integer_schema(option, std::numeric_limits<int64_t>::max()); }
  Json operator()(const std::vector<std::string>*) const {
    const Json name = {{"type", "string"}, {"minLength", 1}};
    return {{"anyOf", {name, {{"type", "array"}, {"items", name}}}}};
  }
  Json operator()(const nlohmann::json*) const { return {{"type", {"string", "object", "null"}}}; }
  Json operator()(const RopeStretch*) const { return (*this)(static_cast<const nlohmann::json*>(nullptr)); }
  Json operator()(const std::map<std::string, std::filesystem::path>*) const {
    return {{"type", {"object", "null"}}, {"additionalProperties", {{"type", "string"}, {"minLength", 1}}}};
  }
};

}  // namespace

Json config_schema() {
  Json properties = {{"$schema", {{"type", "string"}, {"description", "Schema for editors; the server ignores it"}}}};
  ServerOptions defaults;
  for (const Option& option : option_table()) {
    Json schema = std::visit(SchemaOf{option}, option.field(defaults));
    schema["description"] = option.help;
    schema["default"] = value_of(option, defaults);
    properties[std::string(option.name)] = std::move(schema);
  }
  return {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
          {"title", "Config file of smartkv"},
          {"type", "object"},
          {"properties", std::move(properties)},
          {"additionalProperties", false}};
}

}  // namespace smartkv
