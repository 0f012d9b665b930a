// Child processes that serve. A shell plays their part.
#include "lab/serving/server_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <stdexcept>

namespace smartkv {
namespace {

std::vector<std::string> shell(const std::string& script) { return {"/bin/sh", "-c", script}; }

TEST(ServerProcess, WaitsForTheAddressAndStopsTheServer) {
  auto server = std::make_unique<ServerProcess>(
      shell("echo loading; printf 'Serving a model '; echo 'at http://127.0.0.1:4321/v1'; exec sleep 1000"));
  EXPECT_EQ(server->url(), "http://127.0.0.1:4321");
  const pid_t pid = server->pid();
  EXPECT_EQ(::kill(pid, 0), 0);
  server.reset();
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST(ServerProcess, AServerThatEndsFirst) {
  EXPECT_THROW(ServerProcess(shell("echo no; exit 2")), std::runtime_error);
  EXPECT_THROW(ServerProcess({"/no/such/program"}), std::runtime_error);
}

TEST(ServerProcess, AServerThatSaysNothing) {
  EXPECT_THROW(ServerProcess(shell("exec sleep 1000"), std::chrono::seconds(0)), std::runtime_error);
}

TEST(ServerProcess, KeepsOurApiKeyToItself) {
  ::setenv("SMARTKV_API_KEY", "secret", 1);
  const ServerProcess server(
      shell("echo \"key=$SMARTKV_API_KEY at http://127.0.0.1:1$SMARTKV_API_KEY/v1\"; exec sleep 1000"));
  ::unsetenv("SMARTKV_API_KEY");
  EXPECT_EQ(server.url(), "http://127.0.0.1:1");
}

TEST(ServerProcess, KnowsItsOwnProgram) { EXPECT_TRUE(own_binary().ends_with("lab_test")); }

}  // namespace
}  // namespace smartkv
