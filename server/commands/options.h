// Every option of the program: one table for the command line, the config file, --print-config and docs/reference/options.md.
#pragma once

#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "server/http/http_server.h"

namespace smartkv {

struct ServerOptions {
  EngineOptions engine;
  http::HttpOptions http;
  std::vector<std::string> served_model_name;  // empty: the model's own
  std::string log_level = "info";
  std::string log_format = "text";
  nlohmann::json sampling;  // for requests that do not say; null: what the model's files recommend
};

// A wrong option or config file; the message names the file or flag, the option, what was expected and what was found.
class ConfigError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The errors of several checks, so that a user sees all of them at once.
class ErrorList {
 public:
  // Runs the check, and keeps the message of the std::runtime_error that it throws.
  void collect(const std::function<void()>& check);
  void add(const std::string& message);  // its lines, those that are not there yet
  // Throws one ConfigError with a line for each.
  void throw_if_any() const;

 private:
  std::vector<std::string> lines_;
};

// Where an option lives; its type decides what values it takes.
using OptionField =
    std::variant<std::string*, std::filesystem::path*, int*, int64_t*, std::vector<std::string>*, nlohmann::json*,
                 std::map<std::string, std::filesystem::path>*>;

struct Option {
  std::string_view name;  // "max_sequences"; on the command line "--max-sequences", or `entry`
  std::string_view help;
  OptionField (*field)(ServerOptions& options);
  int64_t min = 0, max = std::numeric_limits<int64_t>::max();
  std::vector<std::string_view> choices = {};
  bool bytes = false;   // also "512MiB", "2GiB", "1.5GB"
  bool server = false;  // of serve only
  std::string_view entry = {};  // flag that adds NAME=FILE to a map, as often as it is given
};

const std::vector<Option>& option_table();

std::string flag(const Option& option);                                // "--max-sequences"
nlohmann::ordered_json value_of(const Option& option, const ServerOptions& options);
// Both throw ConfigError; `where` begins its message.
void set_option(const Option& option, const nlohmann::ordered_json& value, const std::string& where,
                ServerOptions* options);
void set_option_text(const Option& option, const std::string& text, const std::string& where, ServerOptions* options);

// A policy or method as command lines give it: a name, or the text of a JSON object; "": null. Throws ConfigError naming the
// flag.
nlohmann::json name_or_object(const std::string& flag, const std::string& text);

// A config file: one JSON object, comments allowed, keys as in the table, and "$schema", which is the editor's. Throws
// ConfigError with all that is wrong, a line each; the options that are right are set all the same.
void read_config(std::string_view text, const std::string& file, ServerOptions* options);
void read_config_file(const std::filesystem::path& file, ServerOptions* options);

// Adds "NAME=FILE" of a flag to `files`. Throws ConfigError naming the flag.
void add_file(std::string_view flag, const std::string& text, std::map<std::string, std::filesystem::path>* files);
// The same of --gate.
void add_gate(const std::string& text, std::map<std::string, std::filesystem::path>* gates);

int64_t parse_bytes(std::string_view text);  // throws std::invalid_argument
std::string config_text(const ServerOptions& options);   // a config file; the API key is left out
std::string option_table_markdown();                     // for docs/reference/options.md

}  // namespace smartkv
