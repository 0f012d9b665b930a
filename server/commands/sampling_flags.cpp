#include "server/commands/sampling_flags.h"

#include "server/openai/field_table.h"

namespace smartkv {

SamplingFlags::SamplingFlags(CLI::App& app, int64_t max_tokens) {
  body_["max_tokens"] = max_tokens;
  for (const openai::FieldRow& row : openai::field_table()) {
    if (row.flags.empty()) continue;
    const std::string name(row.names), flags(row.flags), help(row.help), type = row.schema.value("type", "");
    const auto set = [this, name](const auto& value) { body_[name] = value; };
    if (type == "boolean") {
      app.add_flag_function(
          flags, [set](int64_t) { set(true); }, help);
    } else if (type == "integer" || type == "number") {
      CLI::Option* option = type == "integer" ? app.add_option_function<int64_t>(flags, set, help)
                                              : app.add_option_function<double>(flags, set, help);
      if (row.schema.contains("default")) option->default_str(body_.value(name, row.schema["default"]).dump());
    } else {
      app.add_option_function<std::vector<std::string>>(flags, set, help + "; may be given several times")
          ->allow_extra_args(false);
    }
  }
}

}  // namespace smartkv
