// All options of the program, in one table for the command line, config files, --print-config and
// docs/reference/options.md.
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

// All options of a run of the program.
struct ServerOptions {
  EngineOptions engine;
  http::HttpOptions http;
  std::vector<std::string> served_model_name;  // empty for the model's own names
  std::string log_level = "info";
  std::string log_format = "text";
  // Patterns of lines of system messages (server/openai/changing_lines.h).
  std::vector<std::string> dropped_lines = {"x-anthropic-billing-header:"}, moved_lines;
  nlohmann::json sampling;  // defaults for requests; null for the recommendation in the model's files
};

// A wrong option or config file. The message names the file or flag, the option, what was expected and what was found.
class ConfigError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Collects the errors of several checks, so that a user sees all of them at once.
class ErrorList {
 public:
  // Runs the check. If it throws std::runtime_error, adds its message.
  void collect(const std::function<void()>& check);
  void add(const std::string& message);  // adds the lines of the message that are not in the list yet
  // Throws one ConfigError with all lines, if there are any.
  void throw_if_any() const;

 private:
  std::vector<std::string> lines_;
};

// Points to the field that stores an option. The field's type decides which values the option takes. REQUIRES: an
// option whose field is an enum has the enum's names as `choices`.
using OptionField = std::variant<std::string*, std::filesystem::path*, int*, int64_t*, std::vector<std::string>*,
                                 nlohmann::json*, std::map<std::string, std::filesystem::path>*, RopeStretch*,
                                 DataType*, WeightFormat*, WeightsLock*, Backend*, CudaGraphs*, DraftCopy*>;

// A row of the option table.
struct Option {
  std::string_view name;  // "max_sequences"; on the command line it is "--max-sequences", or `entry` if that is set
  std::string_view help;
  OptionField (*field)(ServerOptions& options);
  int64_t min = 0, max = std::numeric_limits<int64_t>::max();
  std::vector<std::string_view> choices = {};
  bool bytes = false;           // also accepts "512MiB", "2GiB", "1.5GB"
  bool server = false;          // only serve has the option
  std::string_view entry = {};  // flag that adds one NAME=FILE to a map of files; it may be given several times
};

const std::vector<Option>& option_table();  // in the order in which help texts show them

std::string flag(const Option& option);  // returns "--max-sequences"
nlohmann::ordered_json value_of(const Option& option, const ServerOptions& options);
// Set an option from JSON, or from text as on the command line. Both throw ConfigError; its message begins with
// `where`.
void set_option(const Option& option, const nlohmann::ordered_json& value, const std::string& where,
                ServerOptions* options);
void set_option_text(const Option& option, const std::string& text, const std::string& where, ServerOptions* options);

// Parses a policy or method from the command line: a name, or the text of a JSON object. Returns null for "". Throws
// ConfigError naming the flag.
nlohmann::json name_or_object(const std::string& flag, const std::string& text);

// Reads a config file: one JSON object with the options of the table, comments allowed. "$schema" is ignored, because
// it is for editors. Throws one ConfigError with a line for each error; the options without errors are set
// nevertheless.
void read_config(std::string_view text, const std::string& file, ServerOptions* options);
void read_config_file(const std::filesystem::path& file, ServerOptions* options);

// Adds "NAME=FILE", the value of a flag, to `files`. Throws ConfigError naming the flag.
void add_file(std::string_view flag, const std::string& text, std::map<std::string, std::filesystem::path>* files);

int64_t parse_bytes(std::string_view text);             // parses "2GiB"; throws std::invalid_argument
std::string config_text(const ServerOptions& options);  // returns a config file with all options but the API key

}  // namespace smartkv
