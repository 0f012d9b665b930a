// The whole way from a socket to SmolLM2 and back.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "tests/server/test_server.h"

namespace smartkv::test {
namespace {

class RealModel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    EngineOptions options;
    options.model.path = SMARTKV_SOURCE "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    options.model.weights = WeightFormat::kBf16;  // the answers below are near ties
    options.kv_cache_bytes = int64_t{1} << 30;
    engine_ = Engine::create(options);
  }
  static void TearDownTestSuite() { engine_.reset(); }

  static Json chat(const std::string& question, int64_t max_tokens, bool stream) {
    return {{"messages", Json::array({{{"role", "user"}, {"content", question}}})},
            {"max_tokens", max_tokens},
            {"stream", stream}};
  }
  static std::string streamed_text(const std::string& body) {
    std::string text;
    for (const std::string& data : sse_data(body)) {
      if (data == "[DONE]") return text;
      const Json chunk = Json::parse(data);
      for (const Json& choice : chunk["choices"]) text += choice["delta"].value("content", "");
    }
    return "no [DONE] behind: " + text;
  }
  // Returns the bytes that are held once the engine has had time for a step.
  static int64_t settled_kv_bytes() {
    for (int i = 0; i < 200 && engine_->stats().kv_bytes_used > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return engine_->stats().kv_bytes_used;
  }

  static inline std::unique_ptr<Engine> engine_;
  ServedEngine served_{*engine_, {"smollm2"}, {}};
};

TEST_F(RealModel, ARequestNeverNamesAFile) {
  const std::filesystem::path fifo =
      std::filesystem::temp_directory_path() / ("smartkv_fifo_" + std::to_string(::getpid()));
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& name : {std::string("/etc/passwd"), fifo.string(), std::string("../gate.safetensors")}) {
    const Json gated = {{"policy", "gated_eviction"}, {"gate", name}};
    const Json nested = {{"method", "self"}, {"kv_cache", gated}};
    for (const Json& field : {Json{{"kv_cache", gated}}, Json{{"speculative", nested}}}) {
      Json body = chat("Hello", 4, false);
      body.update(field);
      // A server that opened the FIFO would not answer.
      const auto response = served_.post("/v1/chat/completions", body.dump());
      ASSERT_TRUE(response) << body;
      EXPECT_EQ(response->status, 400) << response->body;
      const std::string message = Json::parse(response->body)["error"]["message"];
      EXPECT_NE(message.find("smollm2-135m-instruct"), message.npos) << message;
      EXPECT_EQ(message.find("root:"), message.npos) << message;
      EXPECT_EQ(message.find("file"), message.npos) << message;
    }
  }
  std::filesystem::remove(fifo);
  Json body = chat("Hello", 4, false);
  body["kv_cache"] = {{"policy", "gated_eviction"}, {"gate", "smollm2-135m-instruct"}};
  EXPECT_EQ(served_.post("/v1/chat/completions", body.dump())->status, 200);
}

TEST_F(RealModel, TextThatCannotFitIsRefusedByItsLength) {
  for (const std::string& text : {std::string(5000, 'a'), std::string("\x04\xf0\x9f\x98\x80 a"), std::string()}) {
    EXPECT_LE(engine_->tokenizer().min_tokens(text),
              static_cast<int64_t>(engine_->tokenizer().encode(text, {.add_special = false}).size()));
  }
  const Json body = {{"prompt", std::string(8 << 20, 'a')}};
  const auto response = served_.post("/v1/completions", body.dump());
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 400);
  EXPECT_EQ(Json::parse(response->body)["error"]["code"], "context_length_exceeded");
  EXPECT_NE(response->body.find("at least"), std::string::npos);
}

TEST_F(RealModel, KnowsTheCapitalOfFrance) {
  Json body = chat("What is the capital of France?", 32, true);
  body["temperature"] = 0;
  const auto response = served_.post("/v1/chat/completions", body.dump());
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(streamed_text(response->body), "The capital of France is Paris.");
  EXPECT_EQ(settled_kv_bytes(), 0);
}

TEST_F(RealModel, ASeedGivesTheSameAnswerAloneAndAmongOthers) {
  const auto ask = [&](int64_t seed) {
    Json body = chat("Tell me a story.", 40, true);
    body["seed"] = seed;
    const auto response = served_.post("/v1/chat/completions", body.dump());
    return response ? streamed_text(response->body) : "no response";
  };
  const std::string alone = ask(5);
  std::vector<std::string> answers(16);
  std::vector<std::thread> clients;
  for (int64_t i = 0; i < 16; ++i)
    clients.emplace_back([&, i] { answers[static_cast<size_t>(i)] = ask(i % 2 == 0 ? 5 : 100 + i); });
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < 16; i += 2) EXPECT_EQ(answers[i], alone);
  for (size_t i = 1; i < 16; i += 2) EXPECT_NE(answers[i], alone);
}

TEST_F(RealModel, ClientsThatLeaveTakeTheirMemoryAlong) {
  std::atomic<int> finished{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&, i] {
      if (i % 2 == 0) {
        const auto response = served_.post("/v1/chat/completions", chat("Write a poem.", 60, true).dump());
        if (response && response->body.ends_with("data: [DONE]\n\n")) ++finished;
      } else {
        RawConnection connection(served_.port);
        connection.send(post_text("/v1/chat/completions", chat("Write a poem.", 4000, i % 4 == 1).dump()));
        if (i % 4 == 1) connection.read_until("\"content\":\"");  // a stream: leaves in the middle
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(finished, 8);
  EXPECT_EQ(settled_kv_bytes(), 0);
  EXPECT_EQ(engine_->stats().requests_running, 0);
}

TEST_F(RealModel, EchoesThePromptWithItsLogProbabilities) {
  const Json body = {{"prompt", "The capital of France is Paris."}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 1}};
  const auto response = served_.post("/v1/completions", body.dump());
  ASSERT_TRUE(response);
  ASSERT_EQ(response->status, 200) << response->body;
  const Json choice = Json::parse(response->body)["choices"][0];
  EXPECT_EQ(choice["text"], "The capital of France is Paris.");
  const Json& logprobs = choice["logprobs"]["token_logprobs"];
  ASSERT_EQ(logprobs.size(), 7u);
  EXPECT_TRUE(logprobs[0].is_null());
  EXPECT_GT(logprobs[5].get<double>(), -2.0);  // " Paris"
}

}  // namespace
}  // namespace smartkv::test
