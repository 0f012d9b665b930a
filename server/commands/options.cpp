#include "server/commands/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

#include "engine/weights/weights.h"
#include "server/commands/nearest.h"
#include "server/openai/json_body.h"

namespace smartkv {

using Json = nlohmann::ordered_json;

namespace {

template <typename... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <typename... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;  // clang 16 does not deduce it for an aggregate

std::string shown(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

[[noreturn]] void fail(const std::string& where, const Option& option, const std::string& expected, const Json& found) {
  throw ConfigError(where + ": " + std::string(option.name) + ": expected " + expected + ", found " + shown(found));
}

std::string integer_text(const Option& option) {
  std::string text = option.max == std::numeric_limits<int64_t>::max()
                         ? "an integer of at least " + std::to_string(option.min)
                         : "an integer from " + std::to_string(option.min) + " to " + std::to_string(option.max);
  return option.bytes ? text + " or a size such as \"2GiB\"" : text;
}

int64_t integer_value(const Option& option, const Json& value, const std::string& where) {
  int64_t number = option.min - 1;
  if (option.bytes && value.is_string()) {
    try {
      number = parse_bytes(value.get<std::string>());
    } catch (const std::invalid_argument&) {
      fail(where, option, integer_text(option), value);
    }
  } else if (value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{INT64_MAX} : value.is_number_integer()) {
    number = value.get<int64_t>();
  }
  if (number < option.min || number > option.max) fail(where, option, integer_text(option), value);
  return number;
}

std::string text_value(const Option& option, const Json& value, const std::string& where) {
  if (!value.is_string()) fail(where, option, "a string", value);
  auto text = value.get<std::string>();
  const auto& choices = option.choices;
  if (!choices.empty() && std::find(choices.begin(), choices.end(), text) == choices.end()) {
    std::string expected = "one of";
    for (const std::string_view choice : choices) expected += ' ' + std::string(choice);
    fail(where, option, expected, value);
  }
  return text;
}

nlohmann::json spec_value(const Option& option, const Json& value, const std::string& where) {
  const bool known = value.is_null() || value.is_string() || value.is_object();
  if (!known) fail(where, option, "a name, an object or null", value);
  return nlohmann::json::parse(shown(value));
}

RopeStretch rope_value(const Option& option, const Json& value, const std::string& where) try {
  return parse_rope_scaling(spec_value(option, value, where));
} catch (const ModelError& error) {
  throw ConfigError(where + ": " + error.what());
}

std::vector<std::string> names_value(const Option& option, const Json& value, const std::string& where) {
  std::vector<std::string> names;
  for (const Json& name : value.is_array() ? value : Json::array({value})) {
    if (!name.is_string() || name.get_ref<const std::string&>().empty()) {
      fail(where, option, "a name or a list of names", value);
    }
    names.push_back(name.get<std::string>());
  }
  return names;
}

std::map<std::string, std::filesystem::path> files_value(const Option& option, const Json& value,
                                                         const std::string& where) {
  static constexpr const char* kExpected = "an object of files by name";
  std::map<std::string, std::filesystem::path> files;
  if (value.is_null()) return files;
  if (!value.is_object()) fail(where, option, kExpected, value);
  for (const auto& [name, file] : value.items()) {
    if (name.empty() || !file.is_string() || file.get_ref<const std::string&>().empty()) {
      fail(where, option, kExpected, value);
    }
    files[name] = file.get<std::string>();
  }
  return files;
}

Json parse_object(const Option& option, const std::string& text, const std::string& where) {
  try {
    return openai::parse_json(text);
  } catch (const openai::JsonSyntaxError& error) {
    throw ConfigError(where + ": " + std::string(option.name) + ": " + error.what());
  }
}

const Option& find_option(const std::string& name, const std::string& where) {
  const auto& table = option_table();
  const auto found = std::ranges::find(table, name, &Option::name);
  if (found != table.end()) return *found;
  std::vector<std::string> names;
  for (const Option& option : table) names.emplace_back(option.name);
  throw ConfigError(where + ": unknown option " + shown(name) + "; the nearest known option is \"" +
                    nearest(name, names) + '"');
}

}  // namespace

void ErrorList::collect(const std::function<void()>& check) {
  try {
    check();
  } catch (const std::runtime_error& error) {
    add(error.what());
  }
}

void ErrorList::add(const std::string& message) {
  std::istringstream lines(message);
  for (std::string line; std::getline(lines, line);) {
    if (std::find(lines_.begin(), lines_.end(), line) == lines_.end()) lines_.push_back(line);
  }
}

void ErrorList::throw_if_any() const {
  std::string all;
  for (const std::string& line : lines_) all += (all.empty() ? "" : "\n") + line;
  if (!all.empty()) throw ConfigError(all);
}

std::string flag(const Option& option) {
  if (!option.entry.empty()) return std::string(option.entry);
  std::string text = "--" + std::string(option.name);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

Json value_of(const Option& option, const ServerOptions& options) {
  ServerOptions copy = options;
  return std::visit(Overloaded{[](const std::filesystem::path* path) { return Json(path->string()); },
                               [](const nlohmann::json* spec) { return Json(*spec); },
                               [](const std::map<std::string, std::filesystem::path>* files) {
                                 Json object = Json::object();
                                 for (const auto& [name, file] : *files) object[name] = file.string();
                                 return object;
                               },
                               [](const RopeStretch* stretch) { return Json(rope_scaling_json(*stretch)); },
                               []<NamedEnum E>(const E* value) { return Json(name(*value)); },
                               [](const auto* value) { return Json(*value); }},
                    option.field(copy));
}

void set_option(const Option& option, const Json& value, const std::string& where, ServerOptions* options) {
  std::visit(
      Overloaded{
          [&](std::string* field) { *field = text_value(option, value, where); },
          [&](std::filesystem::path* field) { *field = text_value(option, value, where); },
          [&](int* field) {
            const int64_t number = integer_value(option, value, where);
            constexpr int kMax = std::numeric_limits<int>::max();
            if (number > kMax) fail(where, option, "an integer of at most " + std::to_string(kMax), value);
            *field = static_cast<int>(number);
          },
          [&](int64_t* field) { *field = integer_value(option, value, where); },
          [&](std::vector<std::string>* field) { *field = names_value(option, value, where); },
          [&](std::map<std::string, std::filesystem::path>* field) { *field = files_value(option, value, where); },
          [&](nlohmann::json* field) { *field = spec_value(option, value, where); },
          [&](RopeStretch* field) { *field = rope_value(option, value, where); },
          [&]<NamedEnum E>(E* field) { *field = from_name<E>(text_value(option, value, where)).value(); }},
      option.field(*options));
}

void set_option_text(const Option& option, const std::string& text, const std::string& where, ServerOptions* options) {
  Json value = text;
  const OptionField field = option.field(*options);
  if (const auto* files = std::get_if<std::map<std::string, std::filesystem::path>*>(&field)) {
    if (!text.starts_with('{')) return add_file(option.entry, text, *files);
    value = parse_object(option, text, where);
  }
  if (std::holds_alternative<int*>(field) || std::holds_alternative<int64_t*>(field)) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) value = number;
  } else if (std::holds_alternative<std::vector<std::string>*>(field)) {
    value = Json::array();
    std::istringstream names(text);
    for (std::string name; std::getline(names, name, ',');) value.push_back(name);
  } else if ((std::holds_alternative<nlohmann::json*>(field) || std::holds_alternative<RopeStretch*>(field)) &&
             text.starts_with('{')) {
    value = parse_object(option, text, where);
  }
  set_option(option, value, where, options);
}

nlohmann::json name_or_object(const std::string& flag, const std::string& text) {
  if (text.empty()) return nullptr;
  if (!text.starts_with('{')) return text;
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(flag + ": expected a name or a JSON object, found \"" + text + "\": " + error.what());
  }
}

void read_config(std::string_view text, const std::string& file, ServerOptions* options) {
  Json config;
  try {
    config = openai::parse_json(text, {.comments = true});
  } catch (const openai::JsonSyntaxError& error) {
    throw ConfigError(file + ": " + error.what());
  }
  if (!config.is_object()) throw ConfigError(file + ": expected a JSON object, found " + shown(config).substr(0, 60));
  ErrorList errors;
  for (const auto& [name, value] : config.items()) {
    if (name == "$schema" && value.is_string()) continue;  // for editors
    errors.collect([&, &name = name, &value = value] { set_option(find_option(name, file), value, file, options); });
  }
  errors.throw_if_any();
}

void read_config_file(const std::filesystem::path& file, ServerOptions* options) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  if (std::filesystem::is_directory(file) || !in || !(text << in.rdbuf())) {
    throw ConfigError(file.string() + ": the config file cannot be read, or is empty");
  }
  read_config(text.str(), file.string(), options);
}

void add_file(std::string_view flag, const std::string& text, std::map<std::string, std::filesystem::path>* files) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == text.npos || equals + 1 == text.size()) {
    throw ConfigError(std::string(flag) + ": expected NAME=FILE, found " + shown(text));
  }
  (*files)[text.substr(0, equals)] = text.substr(equals + 1);
}

int64_t parse_bytes(std::string_view text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  static constexpr std::array<Unit, 11> kUnits = {{{"", 1},
                                                   {"B", 1},
                                                   {"KB", 1e3},
                                                   {"MB", 1e6},
                                                   {"GB", 1e9},
                                                   {"TB", 1e12},
                                                   {"KiB", 0x1p10},
                                                   {"MiB", 0x1p20},
                                                   {"GiB", 0x1p30},
                                                   {"TiB", 0x1p40},
                                                   {"G", 0x1p30}}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  std::string_view rest = text.substr(static_cast<size_t>(end - text.data()));
  if (rest.starts_with(' ')) rest.remove_prefix(1);
  const auto unit = std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& one) { return one.name == rest; });
  const double bytes = unit == kUnits.end() ? -1 : number * unit->bytes;
  if (error != std::errc() || !(bytes >= 0 && bytes < 0x1p62)) throw std::invalid_argument("not a size");
  return std::llround(bytes);
}

std::string config_text(const ServerOptions& options) {
  Json config = Json::object();
  for (const Option& option : option_table()) {
    if (option.name != "api_key") config[std::string(option.name)] = value_of(option, options);
  }
  return config.dump(2) + "\n";
}

}  // namespace smartkv
