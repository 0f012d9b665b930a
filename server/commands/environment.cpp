#include "server/commands/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <regex>

#include "server/commands/nearest.h"

namespace smartkv {
namespace {

constexpr std::string_view kPrefix = "SMARTKV_";

// Variables that do not set an option: those of --config and --preset, and the one that kernels/cpu_level.cpp reads.
constexpr const char* kOthers[] = {"SMARTKV_CONFIG", "SMARTKV_PRESET", "SMARTKV_CPU_LEVEL"};

// Returns whether a variable is a link to a Kubernetes service. Kubernetes sets such variables, in the format of Docker
// links, for every service in a container's namespace. The variables of a service "smartkv" begin with SMARTKV_ too.
bool is_service_link(const std::string& name, const std::string& value) {
  static const std::regex kNames("SMARTKV_(SERVICE_(HOST|PORT)(_.*)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_.*)?)");
  static const std::regex kAddress("(tcp|udp|sctp)://.*");
  return std::regex_match(name, kNames) || (name == "SMARTKV_PORT" && std::regex_match(value, kAddress));
}

}  // namespace

std::string variable(std::string_view option) {
  std::string name(kPrefix);
  for (const char c : option) name += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return name;
}

std::string value_of_variable(const std::string& name) {
  const char* found = std::getenv(name.c_str());
  std::string value = found == nullptr ? "" : found;
  value.erase(value.find_last_not_of("\r\n") + 1);
  return is_service_link(name, value) ? "" : value;
}

void read_environment(bool server, ServerOptions* options) {
  for (const Option& option : option_table()) {
    if (option.server && !server) continue;
    const std::string name = variable(option.name), value = value_of_variable(name);
    if (!value.empty()) set_option_text(option, value, "environment variable " + name, options);
  }
}

std::vector<std::string> unknown_variables() {
  std::vector<std::string> known(std::begin(kOthers), std::end(kOthers)), lines;
  for (const Option& option : option_table()) known.push_back(variable(option.name));
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry, name = text.substr(0, text.find('='));
    if (!name.starts_with(kPrefix) || std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (is_service_link(name, "")) continue;
    lines.push_back("environment variable " + name + " is unknown and ignored; the nearest known variable is " +
                    nearest(name, known));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace smartkv
