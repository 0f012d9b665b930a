// lab_test runs the commands of the lab as main() does.
#include "lab/commands/lab_commands.h"

namespace smartkv {
namespace {

[[maybe_unused]] const bool registered = [] {
  for (const Command& command : lab_commands()) commands().push_back(command);
  return true;
}();

}  // namespace
}  // namespace smartkv
