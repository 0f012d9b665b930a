// The generated parts of docs/reference equal what the tables of the code make. scripts/generate_docs.sh rewrites them.
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "cache/presets.h"
#include "server/commands/config_schema.h"
#include "server/commands/options.h"
#include "server/http/metrics.h"
#include "server/openai/field_table.h"
#include "tests/cache/policy_parameters.h"

namespace smartkv {
namespace {

using openai::FieldRow;
using openai::FieldUse;
using openai::Json;

// Describes the values that a schema allows: "integer from 1 to 128".
std::string values_text(const Json& schema) {
  if (schema.contains("const")) return "`" + openai::dump(schema["const"]) + "`";
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : " or ") + part; };
  for (const Json& value : schema.value("enum", Json::array())) add("`" + openai::dump(value) + "`");
  for (const Json& part : schema.value("anyOf", Json::array())) add(values_text(part));
  const Json types = schema.value("type", Json::array());
  if (types.is_string()) add(types.get<std::string>());
  if (types.is_array()) {
    for (const Json& type : types) add(type.get<std::string>());
  }
  const bool above = schema.contains("exclusiveMinimum");
  if (!above && !schema.contains("minimum")) return text;
  const std::string least = openai::dump(schema[above ? "exclusiveMinimum" : "minimum"]);
  if (!schema.contains("maximum")) return text + " of at least " + least;
  return text + (above ? " above " : " from ") + least + " to " + openai::dump(schema["maximum"]);
}

std::string fields_markdown() {
  using openai::Body;
  std::string text =
      "| field | chat | completions | responses | messages | value | default | meaning |\n"
      "|---|---|---|---|---|---|---|---|\n";
  for (const FieldRow& row : openai::field_table()) {
    std::string names, help = row.help;
    for (const std::string& name : field_names(row)) names.append(names.empty() ? "`" : ", `").append(name).append("`");
    if (row.use != FieldUse::kHonoured) {
      help = std::string(row.use == FieldUse::kIdle ? "Without effect on the answer" : "Any other value is a 400") +
             (help.empty() ? "" : ": " + help);
    }
    text += "| " + names;
    for (const Body body : {Body::kChat, Body::kCompletions, Body::kResponses, Body::kMessages}) {
      text += row.is_of(body) ? " | yes" : " |";
    }
    const std::string fallback = row.schema.contains("default") ? "`" + openai::dump(row.schema["default"]) + "`" : "";
    text += " | " + values_text(row.schema) + " | " + fallback + " | " + help + " |\n";
  }
  return text;
}

std::string options_markdown() {
  std::string text = "| option | default | meaning |\n|---|---|---|\n";
  for (const Option& option : option_table()) {
    std::string choices;
    for (const std::string_view choice : option.choices) {
      choices += (choices.empty() ? " (`" : ", `") + std::string(choice) + '`';
    }
    if (!choices.empty()) choices += ')';
    text += "| `" + std::string(option.name) + "` | `" + value_of(option, ServerOptions()).dump() + "` | " +
            std::string(option.help) + choices + " |\n";
  }
  return text;
}

std::string parameters_markdown(const std::vector<ListedParameter>& parameters) {
  if (parameters.empty()) return "No parameters.\n";
  std::string text = "| parameter | default | values | meaning |\n|---|---|---|---|\n";
  for (const ListedParameter& parameter : parameters) {
    // A default of 0 below the range means that the parameter is absent. So does an empty text.
    const bool below = parameter.fallback.starts_with("0") && parameter.values.starts_with("[1,");
    const bool absent = below || parameter.fallback == "\"\"";
    text += "| `" + parameter.path + "` | " + (absent ? "" : "`" + parameter.fallback + "`") + " | " +
            parameter.values + " | " + parameter.help + " |\n";
  }
  return text;
}

std::string policies_markdown() {
  std::string text = "| preset | stands for | keeps |\n|---|---|---|\n";
  for (const PolicyPreset& preset : policy_presets()) {
    text +=
        "| `" + std::string(preset.name) + "` | `" + preset.spec.dump() + "` | " + std::string(preset.summary) + " |\n";
  }
  text += "\n## Every policy\n\n" + parameters_markdown(shared_parameters());
  for (const PolicyRow& row : policy_registry()) {
    std::string summary(row.summary);
    summary[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(summary[0])));
    text +=
        "\n## `" + std::string(row.name) + "`\n\n" + summary + ".\n\n" + parameters_markdown(policy_parameters(row));
  }
  return text;
}

// Lists the metrics of a server in which everything has happened. A metric with vLLM's prefix shares the row of the
// metric before it, which is the same under our prefix.
std::string metrics_markdown() {
  EngineStats stats;
  stats.kv_offload_bytes_budget = 1;
  stats.speculation.drafted = 1;
  std::istringstream lines(http::metrics_text(stats, "", http::RequestCounter()));
  std::string text = "| metric | type | meaning |\n|---|---|---|\n", names, help;
  const std::string kHelp = "# HELP ", kType = "# TYPE ";
  std::string row_end;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kHelp)) {
      const std::string name = line.substr(kHelp.size(), line.find(' ', kHelp.size()) - kHelp.size());
      if (!name.starts_with("vllm:") && !names.empty()) text += names + row_end;
      names = name.starts_with("vllm:") ? names + ", `" + name + "`" : "| `" + name + "`";
      help = line.substr(kHelp.size() + name.size() + 1);
    } else if (line.starts_with(kType)) {
      row_end = " | " + line.substr(line.rfind(' ') + 1) + " | " + help + " |\n";
    }
  }
  return text + names + row_end;
}

std::string schema_text() { return config_schema().dump(2) + "\n"; }

struct Page {
  const char* file;
  std::string (*make)();
};
void PrintTo(const Page& page, std::ostream* out) { *out << page.file; }

const std::string kGeneratedBegin = "<!-- generated by scripts/generate_docs.sh -->\n\n";
const std::string kGeneratedEnd = "\n<!-- end of the generated part -->\n";

// Returns the page with its generated part renewed. All of a page that is not Markdown is generated.
std::string renewed(const std::string& page, const Page& of) {
  if (!std::string(of.file).ends_with(".md")) return of.make();
  const size_t begin = page.find(kGeneratedBegin), end = page.find(kGeneratedEnd);
  if (begin == page.npos || end == page.npos)
    return "expected a part between \"" + kGeneratedBegin + "\" and \"" + kGeneratedEnd + '"';
  return page.substr(0, begin) + kGeneratedBegin + of.make() + page.substr(end);
}

class ReferenceDocs : public ::testing::TestWithParam<Page> {};

TEST_P(ReferenceDocs, AreGenerated) {
  const std::string path = std::string(SMARTKV_SOURCE) + "/docs/reference/" + GetParam().file;
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string expected = renewed(text.str(), GetParam());
  const bool rewrites = std::getenv("SMARTKV_GENERATE_DOCS") != nullptr && !expected.starts_with("expected");
  if (rewrites) std::ofstream(path) << expected;
  EXPECT_EQ(text.str(), expected) << path << ": run scripts/generate_docs.sh";
}

INSTANTIATE_TEST_SUITE_P(Pages, ReferenceDocs,
                         ::testing::Values(Page{"api.md", fields_markdown}, Page{"options.md", options_markdown},
                                           Page{"policies.md", policies_markdown}, Page{"metrics.md", metrics_markdown},
                                           Page{"config.schema.json", schema_text}));

}  // namespace
}  // namespace smartkv
