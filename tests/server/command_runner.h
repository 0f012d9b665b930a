// Runs commands as a shell calls them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/commands/command.h"

namespace smartkv::test {

struct Ran {
  int code;
  std::string out, error;
};

// Runs smartkv with these arguments. Returns its exit code and output.
inline Ran run(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "smartkv");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int code = run_command_line(static_cast<int>(arguments.size()), arguments.data());
  std::string out = ::testing::internal::GetCapturedStdout();
  return {code, std::move(out), ::testing::internal::GetCapturedStderr()};
}

}  // namespace smartkv::test
