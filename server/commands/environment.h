// Options from environment variables. The variable of an option is SMARTKV_ and the option's name in capitals:
// SMARTKV_MAX_SEQUENCES for max_sequences.
#pragma once

#include <string>
#include <vector>

#include "server/commands/options.h"

namespace smartkv {

// Returns the variable that sets an option: "SMARTKV_MAX_SEQUENCES".
std::string variable(std::string_view option);

// Returns a variable's value without line breaks at its end, which secrets read from files have. Returns "" if the
// variable is unset, which means the same as empty. Kubernetes sets such variables for a service named "smartkv"
// (SMARTKV_PORT=tcp://10.0.0.1:80); they count as unset.
std::string value_of_variable(const std::string& name);

// Sets the options that have a variable set; options of serve only if `server`. A value is written as on the command
// line. For a map of files (gates, channel_worth) it is NAME=FILE or a JSON object. Throws ConfigError naming the
// variable.
void read_environment(bool server, ServerOptions* options);

// Returns a line for each unknown variable that begins with SMARTKV_. The line names the nearest known variable.
std::vector<std::string> unknown_variables();

}  // namespace smartkv
