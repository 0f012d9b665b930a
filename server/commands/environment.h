// Options from environment variables: SMARTKV_ and an option's name in capitals, SMARTKV_MAX_SEQUENCES for max_sequences.
#pragma once

#include <string>
#include <vector>

#include "server/commands/options.h"

namespace smartkv {

// Returns the variable that sets an option: "SMARTKV_MAX_SEQUENCES".
std::string variable(std::string_view option);

// Returns a variable's value without line breaks at its end, which secrets read from files have. Empty: it is unset or empty,
// which means the same, or it is a link to a Kubernetes service named "smartkv" (SMARTKV_PORT=tcp://10.0.0.1:80).
std::string value_of_variable(const std::string& name);

// Sets the options that have a variable; those of serve only where `server`. A value is written as on the command line; of gates
// it is NAME=FILE or a JSON object. Throws ConfigError naming the variable.
void read_environment(bool server, ServerOptions* options);

// Returns a line for each variable that begins with SMARTKV_ and is none of the program's, with the nearest one that is.
std::vector<std::string> unknown_variables();

}  // namespace smartkv
