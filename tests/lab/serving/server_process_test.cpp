// Child processes that serve. A shell plays their part.
#include "lab/serving/server_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <stdexcept>
#include <thread>

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

TEST(ServerProcess, CountsTheBytesThatTheServerWrites) {
  const std::string file = ::testing::TempDir() + "/server_process_written." + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  ServerProcess server(
      shell("trap '' TERM; echo Listening at http://127.0.0.1:1/v1; read line <'" + file + "'; echo four >/dev/null"));
  const std::optional<int64_t> before = server.written_bytes();
  ASSERT_TRUE(before.has_value());
  EXPECT_TRUE(server.running());
  std::ofstream(file) << "go\n";
  server.stop();
  EXPECT_FALSE(server.running());
  EXPECT_EQ(server.written_bytes(), *before + 5);
  ::unlink(file.c_str());
}

TEST(ServerProcess, MayBeAProgramThatPrintsNoAddress) {
  const ServerProcess server(shell("exec sleep 1000"), "http://127.0.0.1:7");
  EXPECT_EQ(server.url(), "http://127.0.0.1:7");
  EXPECT_TRUE(server.running());
  const ServerProcess gone({"/no/such/program"}, "");
  while (gone.running()) std::this_thread::yield();
}

TEST(FreePort, IsOneThatAnyUserMayTake) {
  const int port = free_port();
  EXPECT_GT(port, 1023);
  EXPECT_LE(port, 65535);
}

TEST(ServerProcess, KnowsItsOwnProgram) { EXPECT_TRUE(own_binary().ends_with("lab_test")); }

}  // namespace
}  // namespace smartkv
