// Readiness, liveness, `smartkv health`, and notifications to a service manager.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/commands/service_manager.h"
#include "server/http/stream_health.h"
#include "server/openai/openapi.h"
#include "tests/server/command_runner.h"
#include "tests/server/test_server.h"

namespace smartkv::test {
namespace {

using http::StreamHealth;
using ::testing::HasSubstr;

TEST(StreamHealth, FailsAfterFailuresInARowAndForAWhile) {
  StreamHealth health;
  const StreamHealth::Clock::time_point now{};
  health.failed(now);
  health.failed(now);
  EXPECT_FALSE(health.failing(now));
  health.failed(now);
  EXPECT_TRUE(health.failing(now));
  EXPECT_TRUE(health.failing(now + std::chrono::seconds(59)));
  EXPECT_FALSE(health.failing(now + std::chrono::seconds(60)));  // another attempt is due
  health.failed(now + std::chrono::seconds(61));
  EXPECT_TRUE(health.failing(now + std::chrono::seconds(61)));
  health.succeeded();
  EXPECT_FALSE(health.failing(now + std::chrono::seconds(61)));
}

int asked(const TestServer& server, std::vector<const char*> more = {}) {
  const std::string port = std::to_string(server.port);
  more.insert(more.begin(), {"health", "--port", port.c_str()});
  return run(more).code;
}

TEST(Health, ReadinessTurnsFalseWhileEveryStreamFails) {
  TestServer server;
  EXPECT_EQ(server.client().Get("/health/ready")->status, 200);
  server.engine.set_answer({"a"}, FinishReason::kError);
  const std::string body = R"({"prompt": "a", "stream": true})";
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(server.stream("/v1/completions", body).whole);
  EXPECT_EQ(server.client().Get("/health")->status, 200);
  EXPECT_EQ(server.post("/v1/completions", R"({"prompt": "a"})")->status, 500);
  for (const char* path : {"/health", "/health/ready"}) {
    const auto answer = server.client().Get(path);
    EXPECT_EQ(answer->status, 503) << path;
    EXPECT_EQ(Json::parse(answer->body)["status"], "failing") << path;
  }
  EXPECT_EQ(server.client().Get("/health/live")->status, 200);
  EXPECT_EQ(asked(server), kRuntimeError);
  EXPECT_EQ(asked(server, {"--live"}), kOk);
  server.engine.set_answer({"a"}, FinishReason::kStop);
  EXPECT_EQ(server.post("/v1/completions", R"({"prompt": "a"})")->status, 200);
  EXPECT_EQ(server.client().Get("/health")->status, 200);
  EXPECT_EQ(asked(server), kOk);
}

TEST(Health, ADrainingServerLivesAndIsNotReady) {
  TestServer server;
  server.server.begin_drain();
  EXPECT_EQ(server.client().Get("/health/ready")->status, 503);
  EXPECT_EQ(server.client().Get("/health/live")->status, 200);
  EXPECT_EQ(asked(server), kRuntimeError);
  EXPECT_EQ(asked(server, {"--live"}), kOk);
}

TEST(Health, EveryStatusIsInTheSchema) {
  const Json known = openai::openapi()["components"]["schemas"]["Health"]["properties"]["status"]["enum"];
  TestServer server;
  const auto expect = [&](const char* path, const Json& status) {
    EXPECT_EQ(Json::parse(server.client().Get(path)->body)["status"], status);
    EXPECT_EQ(std::count(known.begin(), known.end(), status), 1) << status;
  };
  expect("/health/ready", "ok");
  expect("/health/live", "alive");
  server.engine.set_answer({"a"}, FinishReason::kError);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(server.post("/v1/completions", R"({"prompt": "a"})")->status, 500);
  expect("/health/ready", "failing");
  server.server.begin_drain();
  expect("/health/ready", "draining");
  server.engine.is_lost = true;
  expect("/health/live", "lost");
  EXPECT_EQ(known.size(), 5u);
}

TEST(Health, NeedsNoKey) {
  TestServer server({.api_key = "secret"});
  EXPECT_EQ(asked(server), kOk);
}

TEST(Health, ReadsTheOptionsOfTheServer) {
  TestServer server;
  ::setenv("SMARTKV_PORT", std::to_string(server.port).c_str(), 1);
  ::setenv("SMARTKV_HOST", "0.0.0.0", 1);  // where the server listens, not where to ask
  const Ran found = run({"health"});
  ::setenv("SMARTKV_PORT", "eighty", 1);
  const Ran wrong = run({"health"});
  ::unsetenv("SMARTKV_PORT");
  ::unsetenv("SMARTKV_HOST");
  EXPECT_EQ(found.code, kOk) << found.error;
  EXPECT_EQ(found.out, "ok\n");
  EXPECT_EQ(wrong.code, kRuntimeError);  // not 2, which container engines reserve
  EXPECT_THAT(wrong.error, HasSubstr("SMARTKV_PORT"));
}

TEST(Health, IsBadWhereNobodyAnswers) {
  int port = 0;
  { port = TestServer().port; }
  const Ran ran = run({"health", "--port", std::to_string(port).c_str()});
  EXPECT_EQ(ran.code, kRuntimeError);
  EXPECT_THAT(ran.error, HasSubstr("127.0.0.1:" + std::to_string(port)));
}

// A socket as systemd opens it.
class Manager {
 public:
  explicit Manager(const std::string& name) : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path, sizeof address.sun_path - 1);
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(::bind(socket_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
  }
  ~Manager() {
    ::unsetenv("NOTIFY_SOCKET");
    ::close(socket_);
  }
  std::string heard() const {
    char text[1000];
    const ssize_t size = ::recv(socket_, text, sizeof text, MSG_DONTWAIT);
    return size < 0 ? "" : std::string(text, static_cast<size_t>(size));
  }

 private:
  int socket_;
};

TEST(ServiceManager, HearsDatagrams) {
  const std::string path = ::testing::TempDir() + "notify." + std::to_string(::getpid());
  for (const std::string& name : {path, "@smartkv-test-" + std::to_string(::getpid())}) {
    const Manager manager(name);
    notify_service_manager("READY=1\nSTATUS=Serving");
    EXPECT_EQ(manager.heard(), "READY=1\nSTATUS=Serving") << name;
    notify_service_manager(reloading_lines());
    EXPECT_THAT(manager.heard(), ::testing::MatchesRegex("RELOADING=1\nMONOTONIC_USEC=[0-9]+"));
  }
  ::unlink(path.c_str());
}

TEST(ServiceManager, IsNotWaitedForAndMayBeMissing) {
  notify_service_manager("READY=1");
  ::setenv("NOTIFY_SOCKET", "/nowhere/notify", 1);
  notify_service_manager("READY=1");
  ::setenv("NOTIFY_SOCKET", std::string(200, '/').c_str(), 1);
  notify_service_manager("READY=1");
  ::setenv("NOTIFY_SOCKET", "relative", 1);
  notify_service_manager("READY=1");
  ::unsetenv("NOTIFY_SOCKET");
  const Manager manager("@smartkv-full-" + std::to_string(::getpid()));
  for (int i = 0; i < 2000; ++i) notify_service_manager("STATUS=full");  // must not block
  EXPECT_EQ(manager.heard(), "STATUS=full");
}

}  // namespace
}  // namespace smartkv::test
