#include <fcntl.h>

#include "lab/commands/lab_commands.h"
#include "server/commands/command.h"

namespace {

// Opens the descriptors 0 to 2 if the caller closed them. Otherwise a file that a command opens could get one of them,
// and output would be written into it, for example into a model. Writing to a descriptor opened here fails.
void reserve_standard_files() {
  for (int standard = 0; standard <= 2; ++standard) {
    if (::fcntl(standard, F_GETFD) == -1) ::open("/dev/null", O_RDONLY);  // takes the lowest free descriptor
  }
}

}  // namespace

int main(int argc, char** argv) {
  reserve_standard_files();
  for (const smartkv::Command& command : smartkv::lab_commands()) smartkv::commands().push_back(command);
  return smartkv::run_command_line(argc, argv);
}
