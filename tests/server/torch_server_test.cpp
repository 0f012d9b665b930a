// The program itself with the torch backend, from a socket to SmolLM2 and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/model/torch_backend.h"
#include "lab/serving/server_process.h"
#include "tests/server/test_server.h"

namespace smartkv::test {
namespace {

// Returns null if there is no torch backend.
std::unique_ptr<ServerProcess> start_server(const std::vector<std::string>& options) {
  const std::filesystem::path program = SMARTKV_BINARY;
  if (!std::filesystem::exists(program.parent_path() / torch_backend_path().filename())) return nullptr;
  std::vector<std::string> command = {
      program,       "serve",   "--port",           "0",
      "--backend",   "torch",   "--kv-cache-bytes", "1GiB",
      "--log-level", "warning", "--model",          SMARTKV_SOURCE "/models/SmolLM2-135M-Instruct.Q4_1.gguf"};
  command.insert(command.end(), options.begin(), options.end());
  return std::make_unique<ServerProcess>(command);
}

httplib::Result ask(const ServerProcess& server, const Json& fields) {
  Json body = {{"messages", Json::array({{{"role", "user"}, {"content", "What is the capital of France?"}}})},
               {"max_tokens", 32},
               {"temperature", 0}};
  body.update(fields);
  httplib::Client client(server.url());
  client.set_read_timeout(60);
  return client.Post("/v1/chat/completions", body.dump(), "application/json");
}

class TorchServer : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = start_server({}); }
  static void TearDownTestSuite() { server_.reset(); }
  void SetUp() override {
    if (server_ == nullptr) GTEST_SKIP() << "no torch backend beside the program: it was built without LibTorch";
  }

  static Json answer(const Json& fields) {
    const auto response = ask(*server_, fields);
    return response ? Json::parse(response->body) : Json("no response");
  }

  static inline std::unique_ptr<ServerProcess> server_;
};

TEST_F(TorchServer, SaysWhatItRunsOnAndWhatItDoesNotPromise) {
  const auto models = httplib::Client(server_->url()).Get("/v1/models");
  ASSERT_TRUE(models);
  const Json details = Json::parse(models->body)["data"][0]["details"];
  EXPECT_EQ(details["backend"], "torch");
  EXPECT_EQ(details["device"], "cpu");
  EXPECT_EQ(details["dtype"], "bf16");
  EXPECT_EQ(details["batch_invariant"], false);
}

TEST_F(TorchServer, KnowsTheCapitalOfFranceUnderPoliciesAndDrafts) {
  for (const Json& fields :
       {Json::object(), Json{{"kv_cache", "balanced"}, {"speculative", "ngram"}}, Json{{"speculative", "self"}}}) {
    const Json whole = answer(fields);
    ASSERT_TRUE(whole.contains("choices")) << whole;
    EXPECT_EQ(whole["choices"][0]["message"]["content"], "The capital of France is Paris.") << fields;
  }
  const Json chosen = answer({{"regex", "It is (London|Paris|Rome)"}});
  ASSERT_TRUE(chosen.contains("choices")) << chosen;
  EXPECT_EQ(chosen["choices"][0]["message"]["content"], "It is Paris");
}

// Returns the processes that a process has started.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "status");
    for (std::string line; std::getline(file, line);) {
      if (line == "PPid:\t" + std::to_string(parent)) children.push_back(std::stoi(entry.path().filename()));
    }
  }
  return children;
}

TEST(TensorParallelServer, AnswersAsOneProcessAndEndsWithARank) {
  const auto server = start_server({"--tensor-parallel", "3"});
  if (server == nullptr) GTEST_SKIP() << "no torch backend beside the program: it was built without LibTorch";
  const auto models = httplib::Client(server->url()).Get("/v1/models");
  ASSERT_TRUE(models);
  EXPECT_EQ(Json::parse(models->body)["data"][0]["details"]["tensor_parallel"], 3);
  for (const Json& fields : {Json::object(), Json{{"kv_cache", "k8v8"}, {"speculative", "ngram"}},
                             Json{{"kv_cache", "balanced"}}, Json{{"kv_cache", "bounded"}}}) {
    const auto response = ask(*server, fields);
    ASSERT_TRUE(response);
    EXPECT_EQ(Json::parse(response->body)["choices"][0]["message"]["content"], "The capital of France is Paris.")
        << fields;
  }
  const auto refused = ask(*server, Json{{"kv_cache", {{"policy", "balanced"}, {"shadow", 0.1}}}});
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 400);
  EXPECT_THAT(refused->body, ::testing::HasSubstr("KV heads on different ranks (tensor_parallel 3)"));

  const std::vector<pid_t> ranks = children_of(server->pid());
  ASSERT_EQ(ranks.size(), 2u);
  httplib::Result cut = httplib::Result(nullptr, httplib::Error::Unknown);
  std::thread asking([&] { cut = ask(*server, Json{{"max_tokens", 4000}, {"ignore_eos", true}}); });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ::kill(ranks[0], SIGKILL);
  asking.join();
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->status, 503) << cut->body;
  const Json error = Json::parse(cut->body)["error"];
  EXPECT_EQ(error["code"], "unavailable");
  EXPECT_THAT(error["message"].get<std::string>(), ::testing::HasSubstr("was killed by signal 9"));
  int status = 0;
  ASSERT_EQ(::waitpid(server->pid(), &status, 0), server->pid());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  for (const pid_t rank : ranks) EXPECT_NE(::kill(rank, 0), 0) << "rank's process " << rank << " is still there";
}

TEST(TensorParallelServer, RanksEndWithTheServer) {
  auto server = start_server({"--tensor-parallel", "2"});
  if (server == nullptr) GTEST_SKIP() << "no torch backend beside the program: it was built without LibTorch";
  const std::vector<pid_t> ranks = children_of(server->pid());
  ASSERT_EQ(ranks.size(), 1u);
  ::kill(server->pid(), SIGKILL);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (::kill(ranks[0], 0) == 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::ifstream file("/proc/" + std::to_string(ranks[0]) + "/stat");  // init may not have collected the process yet
  std::string text;
  std::getline(file, text);
  EXPECT_TRUE(text.empty() || text.find(") Z ") != text.npos) << text;
}

}  // namespace
}  // namespace smartkv::test
