// The commands that measure and train. main() adds them to those of the server.
#pragma once

#include <vector>

#include "server/commands/command.h"

namespace smartkv {

std::vector<Command> lab_commands();

}  // namespace smartkv
