// The whole way from a socket through a random model of three layers and back. Tests how threads interact, in
// milliseconds and under ThreadSanitizer, for which SmolLM2 (real_model_test.cpp) takes too long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "cache/presets.h"
#include "engine/engine_impl.h"
#include "engine/model/llama.h"
#include "server/openai/field_table.h"
#include "tests/cache/random_sensitivity.h"
#include "tests/engine/model/tiny_llama.h"
#include "tests/server/test_server.h"
#include "tests/text/byte_tokenizer.h"
#include "tests/text/template_file.h"

namespace smartkv::test {
namespace {

// frontier: of a model that was calibrated; empty for one that was not. chat_template: name of a published one, or "".
std::unique_ptr<Engine> tiny_engine(EngineOptions engine_options = {}, const Frontier& frontier = {},
                                    const std::string& chat_template = "") {
  const ModelOptions options{.dtype = DataType::kBf16};
  const TinyWeights weights(tiny_config());
  EngineParts parts;
  parts.threads = std::make_unique<ThreadPool>(2);
  parts.model = load_llama(weights, options, *parts.threads);
  parts.cache_shape = parts.draft_shape = llama_cache_shape(weights.config(), options);
  parts.tokenizer = std::make_unique<ByteTokenizer>();
  if (!chat_template.empty()) parts.chat_template = std::make_unique<ChatTemplate>(published_template(chat_template));
  parts.options = std::move(engine_options);
  if (!frontier.empty()) {
    Sensitivity known = *random_sensitivity(parts.cache_shape);
    known.frontier = frontier;
    parts.options.calibrates = true;
    parts.calibration =
        std::make_shared<Calibration>([found = std::make_shared<const Sensitivity>(known)] { return found; });
  }
  parts.options.model.context_length = weights.config().context_length;
  parts.options.kv_cache_bytes = int64_t{64} << 20;
  return std::make_unique<EngineImpl>(std::move(parts));
}

Json completion(int64_t max_tokens, bool stream) {
  return {{"prompt", "Once upon a time"}, {"max_tokens", max_tokens}, {"stream", stream}, {"ignore_eos", true}};
}

class TinyModel : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> engine_ = tiny_engine();
  ServedEngine served_{*engine_, {"tiny"}, {}};
};

TEST_F(TinyModel, SaysWhatRequestsMayName) {
  const auto details = [](const ServedEngine& served) {
    return Json::parse(served.client().Get("/v1/models")->body)["data"][0]["details"];
  };
  const Json open = details(served_);
  EXPECT_EQ(open["policies"][0], "full");
  EXPECT_EQ(open["presets"][0]["name"], "quality");
  EXPECT_EQ(open["presets"].size(), policy_presets().size());
  EXPECT_EQ(open["speculative_methods"], Json::array({"off", "ngram", "self", "auto"}));  // no draft model is loaded

  EngineOptions some;
  some.allowed_policies = {"full", "compact"};
  some.allowed_speculation = {"ngram"};
  const auto engine = tiny_engine(some);
  const Json restricted = details(ServedEngine(*engine, {"tiny"}, {}));
  EXPECT_EQ(restricted["policies"], Json::array({"full"}));
  ASSERT_EQ(restricted["presets"].size(), 1u);
  EXPECT_EQ(restricted["presets"][0]["name"], "compact");
  EXPECT_EQ(restricted["speculative_methods"], Json::array({"off", "ngram"}));
}

TEST_F(TinyModel, AKeysStoredPromptsStayWithinItsLimit) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("tiny_model_keys_" + std::to_string(::getpid()));
  const auto write_keys = [&](int64_t kv_bytes) {
    const Json keys = {{"open", {{"key", "0123456789abcdef-open"}}},
                       {"small", {{"key", "0123456789abcdef-small"}, {"kv_bytes", kv_bytes}}}};
    std::ofstream(file) << keys.dump();
  };
  write_keys(1 << 30);
  ServedEngine served(*engine_, {"tiny"}, {.api_keys_file = file});
  const auto as = [&](const char* name) {
    auto client = served.client();
    client.set_bearer_token_auth(std::string("0123456789abcdef-") + name);
    return client;
  };
  const auto found = [&](const char* name, char letter) -> int64_t {  // tokens of a prompt that were found
    const Json body = {{"prompt", std::string(128, letter)}, {"max_tokens", 1}};
    const auto response = as(name).Post("/v1/completions", body.dump(), "application/json");
    return Json::parse(response->body)["usage"]["prompt_tokens_details"]["cached_tokens"];
  };
  const auto stored = [&]() -> int64_t { return Json::parse(as("open").Get("/v1/kv/prefixes")->body)["bytes"]; };
  EXPECT_EQ(found("open", 'a'), 0);
  const int64_t one = stored();
  ASSERT_GT(one, 0);
  write_keys(2 * one);
  served.server.reload();
  for (char letter = 'b'; letter < 'j'; ++letter) EXPECT_EQ(found("small", letter), 0);
  EXPECT_GT(stored(), one);
  EXPECT_LE(stored(), 3 * one);
  EXPECT_GT(found("open", 'a'), 0);
  std::filesystem::remove(file);
}

TEST_F(TinyModel, UsageShowsWhereATemplateDropsEarlierThinking) {
  const auto engine = tiny_engine({}, {}, "qwen3");
  ServedEngine served(*engine, {"tiny"}, {});
  const auto usage = [&](const Json& messages) -> Json {
    const Json body = {{"messages", messages}, {"max_tokens", 1}};
    return Json::parse(served.client().Post("/v1/chat/completions", body.dump(), "application/json")->body)["usage"];
  };
  const auto details = [&](const Json& messages) -> Json { return usage(messages)["prompt_tokens_details"]; };
  Json messages = Json::array(
      {{{"role", "user"}, {"content", "How is the weather in Rome?"}},
       {{"role", "assistant"},
        {"content", ""},
        {"reasoning_content", "A tool knows."},
        {"tool_calls", {{{"id", "a"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}}}}},
       {{"role", "tool"}, {"tool_call_id", "a"}, {"content", "sunny"}}});
  const Json tokens = usage(messages)["prompt_tokens"];
  messages.push_back({{"role", "assistant"}, {"content", ""}, {"reasoning_content", "Once more."}});
  messages[3]["tool_calls"] = messages[1]["tool_calls"];
  messages.push_back(messages[2]);
  // Within one turn of the user the thinking stays.
  const Json within = details(messages);
  EXPECT_GT(within["cached_tokens"], tokens.get<int64_t>() / 2);
  EXPECT_GT(within["diverged_message"], 2);
  // The user's next message ends the turn, and the template drops the thinking of message 1.
  messages.push_back({{"role", "assistant"}, {"content", "Sunny."}});
  messages.push_back({{"role", "user"}, {"content", "And in Oslo?"}});
  const Json after = details(messages);
  EXPECT_EQ(after["diverged_message"], 1);
  EXPECT_EQ(after["miss"], "never_stored");
  EXPECT_LT(after["diverged_at"], tokens);
}

TEST_F(TinyModel, APolicyByPromise) {
  const Frontier frontier = {{{{"policy", "k4v4"}}, 300, 0.01, 1.5, 0.1}, {{{"policy", "full"}}, 800}};
  const auto engine = tiny_engine({}, frontier);
  const ServedEngine served(*engine, {"tiny"}, {});
  const auto asked = [](const ServedEngine& server, const Json& kv_cache) {
    Json request = completion(4, false);
    request["kv_cache"] = kv_cache;
    const auto response = server.client().Post("/v1/completions", request.dump(), "application/json");
    return Json::parse(response->body);
  };
  const Json cache = asked(served, {{"max_kl", 0.02}})["usage"]["kv_cache"];
  EXPECT_EQ(cache["policy"], "k4v4");
  EXPECT_EQ(cache["spec"], Json({{"policy", "k4v4"}}));
  EXPECT_EQ(cache["promise"],
            Json({{"max_kl", 0.02}, {"kl", 0.01}, {"perplexity_percent", 1.5}, {"bytes_per_token", 300.0}}));
  EXPECT_EQ(asked(served, {{"max_perplexity_percent", 1}})["usage"]["kv_cache"]["policy"], "full");
  EXPECT_THAT(std::string(asked(served, {{"bytes_per_token", 200}})["error"]["message"]),
              testing::HasSubstr("kv_cache.bytes_per_token: expected at least 300"));
  EXPECT_EQ(Json::parse(served.client().Get("/v1/models")->body)["data"][0]["details"]["frontier"],
            Json(frontier_json(frontier)));
  EXPECT_THAT(std::string(asked(served_, {{"max_kl", 0.02}})["error"]["message"]),
              testing::HasSubstr("smartkv calibrate"));

  EngineOptions some;
  some.allowed_policies = {"full", "calibrated"};
  const auto careful = tiny_engine(some, frontier);
  const ServedEngine restricted(*careful, {"tiny"}, {});
  EXPECT_EQ(asked(restricted, {{"max_kl", 0}})["usage"]["kv_cache"]["policy"], "full");
  EXPECT_THAT(std::string(asked(restricted, {{"max_kl", 0.02}})["error"]["message"]),
              testing::HasSubstr("kv_cache: expected one of \"full\""));
}

// Returns numbers at and around the limits that the schema gives a field, including some that f32 rounds away.
std::vector<Json> extremes_of(const Json& schema) {
  std::vector<Json> values;
  if (schema["type"] == "integer") {
    values = {schema.value("minimum", Json(0)), schema.value("maximum", Json(INT64_MAX)), 0, 1, 2, 7, INT32_MAX};
  } else if (schema["type"] == "number") {
    const double least = schema.value("minimum", schema.value("exclusiveMinimum", 0.0)), most = schema["maximum"];
    values = {least,        std::nextafter(least, most), least + 1e-46, least + 1e-45, least + 1e-38, least + 1e-5,
              least + 1e-3, std::nextafter(most, least), most};
  } else if (schema["type"] == "boolean") {
    values = {true, false};
  }
  return values;
}

// Values of a request's fields, within their limits or beyond, must never lead to an error of the server.
TEST_F(TinyModel, NoValueOfASamplingFieldIsAnErrorOfTheServer) {
  const Json& fields = openai::body_schema(openai::Body::kCompletions)["properties"];
  std::vector<std::pair<std::string, std::vector<Json>>> values;
  for (const auto& [name, schema] : fields.items()) {
    if (!schema.contains("type") || name == "stream" || name == "n" || name == "max_tokens") continue;
    if (auto extremes = extremes_of(schema); !extremes.empty()) values.emplace_back(name, std::move(extremes));
  }
  ASSERT_GE(values.size(), 12u);
  std::vector<TokenId> all(static_cast<size_t>(engine_->tokenizer().vocab_size()));
  std::iota(all.begin(), all.end(), 0);
  Json all_biased = Json::object();
  for (const TokenId token : all) all_biased[std::to_string(token)] = token % 2 == 0 ? -100 : 100;
  values.emplace_back("stop_token_ids", std::vector<Json>{all, Json::array({0})});
  values.emplace_back("logit_bias", std::vector<Json>{all_biased, {{"0", -100}}});
  values.emplace_back("regex", std::vector<Json>{"a?", "[ab]{3}"});
  values.emplace_back("stop", std::vector<Json>{"a", Json::array({"", "b"})});

  int answered = 0;
  const auto ask = [&](const Json& body) {
    const auto response = served_.post("/v1/completions", body.dump());
    ASSERT_TRUE(response);
    ASSERT_TRUE(response->status == 200 || response->status == 400) << body << "\n" << response->body;
    answered += response->status == 200 ? 1 : 0;
  };
  const Json plain = {{"prompt", "ab"}, {"max_tokens", 4}};
  for (const auto& [name, of_field] : values) {
    for (const Json& value : of_field) {
      Json body = plain;
      body[name] = value;
      ask(body);
    }
  }
  std::mt19937 random(5);
  for (int i = 0; i < 400; ++i) {
    Json body = plain;
    for (const auto& [name, of_field] : values) {
      if (random() % 3 == 0) body[name] = of_field[random() % of_field.size()];
    }
    if (body.contains("min_tokens")) body["min_tokens"] = random() % 5;
    ask(body);
  }
  EXPECT_GT(answered, 200);
}

TEST_F(TinyModel, ASeedOfTheServersFitsADouble) {
  for (int i = 0; i < 20; ++i) {
    const auto response = served_.post("/v1/completions", completion(1, false).dump());
    const auto seed = Json::parse(response->body)["usage"]["seed"].get<uint64_t>();
    EXPECT_LT(seed, uint64_t{1} << 53);
  }
}

TEST_F(TinyModel, ASeedGivesTheSameAnswerAloneAndAmongOthers) {
  const auto ask = [&](int64_t seed, const char* policy) {
    Json body = completion(100, false);
    body["seed"] = seed;
    body["kv_cache"] = policy;
    const auto response = served_.post("/v1/completions", body.dump());
    if (!response || response->status != 200) return std::string("refused: ") + (response ? response->body : "");
    return Json::parse(response->body)["choices"][0]["text"].get<std::string>();
  };
  const std::vector<const char*> policies = {"full", "streaming"};
  std::vector<std::string> alone, answers(16);
  for (const char* policy : policies) alone.push_back(ask(5, policy));
  std::vector<std::thread> clients;
  for (size_t i = 0; i < answers.size(); ++i) {
    clients.emplace_back([&, i] { answers[i] = ask(i < 8 ? 5 : 100 + static_cast<int64_t>(i), policies[i % 2]); });
  }
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(answers[i], alone[i % 2]);
  for (size_t i = 8; i < answers.size(); ++i) EXPECT_NE(answers[i], alone[i % 2]);
}

TEST_F(TinyModel, ClientsThatLeaveTakeTheirMemoryAlong) {
  std::atomic<int> finished{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      if (i % 2 == 0) {
        const auto response = served_.post("/v1/completions", completion(60, true).dump());
        if (response && response->body.ends_with("data: [DONE]\n\n")) ++finished;
      } else {
        RawConnection connection(served_.port);
        connection.send(post_text("/v1/completions", completion(400, i % 4 == 1).dump()));
        if (i % 4 == 1) connection.read_until("\"text\":\"");  // a stream: leaves in the middle
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (int i = 0; i < 2000 && engine_->stats().kv_bytes_used > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(finished, 4);
  EXPECT_EQ(engine_->stats().kv_bytes_used, 0);
  EXPECT_EQ(engine_->stats().requests_running, 0);
}

// Returns a request with a grammar that compiles for many seconds.
Json slow_choice() {
  Json choices = Json::array();
  uint32_t random = 1;
  for (int i = 0; i < 4096; ++i) {
    std::string word;
    for (int j = 0; j < 24; ++j) word += static_cast<char>('a' + (random = random * 1664525 + 1013904223) / 3 % 26);
    choices.push_back(word);
  }
  return {{"prompt", "a"}, {"max_tokens", 4}, {"guided_choice", choices}};
}

TEST_F(TinyModel, AGrammarEndsWithItsClientAndTheServer) {
  const auto count = [&](const std::string& status) {
    const std::string metrics = served_.client().Get("/metrics")->body;
    return metrics.find("route=\"/v1/completions\",code=\"" + status + '"') != std::string::npos;
  };
  const auto wait_for = [&](const std::string& status) {
    for (int i = 0; i < 1000 && !count(status); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return count(status);
  };
  {
    RawConnection leaves(served_.port);
    leaves.send(post_text("/v1/completions", slow_choice().dump()));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const Json small = {{"prompt", "a"}, {"max_tokens", 4}, {"guided_choice", {"yes"}}};
    const auto answer = served_.post("/v1/completions", small.dump());
    ASSERT_TRUE(answer && answer->status == 200) << (answer ? answer->body : "");
    EXPECT_FALSE(count("400"));  // the large grammar still compiles
    EXPECT_FALSE(count("499"));
  }
  EXPECT_TRUE(wait_for("499"));
  std::thread stays([&] {
    const auto answer = served_.post("/v1/completions", slow_choice().dump());
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 503) << answer->body;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto start = std::chrono::steady_clock::now();
  engine_->drain();
  stays.join();
  served_.server.stop();
  // The 503 came although compiling takes 10 s of CPU time.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace smartkv::test
