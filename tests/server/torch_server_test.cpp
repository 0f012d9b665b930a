// The program itself with the torch backend, from a socket to SmolLM2 and back.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "engine/model/torch_backend.h"
#include "server/benchmark/server_process.h"
#include "tests/server/test_server.h"

namespace smartkv::testing {
namespace {

class TorchServer : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::filesystem::path program = SMARTKV_BINARY;
    if (!std::filesystem::exists(program.parent_path() / torch_backend_path().filename())) return;
    server_ = std::make_unique<ServerProcess>(std::vector<std::string>{
        program, "serve", "--port", "0", "--backend", "torch", "--kv-cache-bytes", "1GiB", "--log-level", "warning", "--model",
        SMARTKV_SOURCE "/models/SmolLM2-135M-Instruct.Q4_1.gguf"});
  }
  static void TearDownTestSuite() { server_.reset(); }
  void SetUp() override {
    if (server_ == nullptr) GTEST_SKIP() << "no torch backend beside the program: it was built without LibTorch";
  }

  static Json answer(const Json& fields) {
    Json body = {{"messages", Json::array({{{"role", "user"}, {"content", "What is the capital of France?"}}})},
                 {"max_tokens", 32}, {"temperature", 0}};
    body.update(fields);
    httplib::Client client(server_->url());
    client.set_read_timeout(60);
    const auto response = client.Post("/v1/chat/completions", body.dump(), "application/json");
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
  for (const Json& fields : {Json::object(), Json{{"kv_cache", "balanced"}, {"speculative", "ngram"}}, Json{{"speculative", "self"}}}) {
    const Json whole = answer(fields);
    ASSERT_TRUE(whole.contains("choices")) << whole;
    EXPECT_EQ(whole["choices"][0]["message"]["content"], "The capital of France is Paris.") << fields;
  }
  const Json chosen = answer({{"regex", "It is (London|Paris|Rome)"}});
  ASSERT_TRUE(chosen.contains("choices")) << chosen;
  EXPECT_EQ(chosen["choices"][0]["message"]["content"], "It is Paris");
}

}  // namespace
}  // namespace smartkv::testing
