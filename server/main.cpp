#include <fcntl.h>

#include "server/commands/command.h"

namespace {

// Keeps the descriptors 0 to 2, where the caller closed them, from becoming those of files that a command opens: what it prints
// would be written into a model. Writing to them fails.
void reserve_standard_files() {
  for (int standard = 0; standard <= 2; ++standard) {
    if (::fcntl(standard, F_GETFD) == -1) ::open("/dev/null", O_RDONLY);  // the lowest that is free
  }
}

}  // namespace

int main(int argc, char** argv) {
  reserve_standard_files();
  return smartkv::run_command_line(argc, argv);
}
