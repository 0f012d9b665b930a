// Speculative decoding over the real model code, kernels and caches must give the output of plain decoding.
#include <gmock/gmock.h>

#include <filesystem>

#include "engine/model/llama.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/model/tiny_llama.h"

namespace smartkv {
namespace {

using nlohmann::json;
using ::testing::SizeIs;

// Returns all kinds of drafts. `full`: the target's cache is full, which pillar_attn needs in order to read its rows.
std::vector<json> drafts(bool full) {
  const json small = {{"policy", "streaming"}, {"tokens", 192}, {"sinks", 4}};
  const json watching = {{"policy", "snapkv"}, {"tokens", 256}, {"window", 32}};
  std::vector<json> all = {{{"method", "ngram"}, {"ngram_min", 1}, {"adaptive", false}},
                           {{"method", "draft_model"}, {"adaptive", false}},
                           {{"method", "draft_model"}, {"kv_cache", small}, {"tokens", 8}, {"adaptive", false}},
                           {{"method", "self"}, {"kv_cache", small}, {"tokens", 5}, {"adaptive", false}},
                           {{"method", "self"}, {"kv_cache", watching}, {"tokens", 5}, {"adaptive", false}},
                           {{"method", "self"}, {"weights", "int4"}, {"tokens", 6}, {"adaptive", false}},
                           {{"method", "auto"}}};
  if (full) {
    all.push_back({{"method", "self"},
                   {"kv_cache", {{"policy", "pillar_attn"}, {"tokens", 128}}},
                   {"tokens", 5},
                   {"adaptive", false}});
    all.push_back({{"method", "self"}, {"kv_cache", "pillar_attn"}, {"weights", "int4"}});
    all.push_back({{"method", "self"}, {"kv_cache", {{"policy", "sparse"}, {"read", 0.25}}}, {"adaptive", false}});
  }
  return all;
}

std::vector<TokenId> run_request(Engine* engine, GenerationRequest request, const json& speculative,
                                 RequestUsage* usage) {
  request.speculative = speculative;
  const auto stream = engine->submit(std::move(request));
  ChoiceResult result = read_all(*stream)[0];
  EXPECT_EQ(result.error, "");
  *usage = stream->usage();
  return result.tokens;
}

TEST(LlamaSpeculation, OutputIsPlainDecodingsUnderEveryPolicy) {
  ModelConfig config = tiny_config();
  config.vocab_size = kFakeVocab;
  const TinyWeights weights(config), other(config, 2);
  EngineParts parts;
  parts.threads = std::make_unique<ThreadPool>(2);
  const ModelOptions bf16{.dtype = DataType::kBf16}, int4 = draft_options(bf16, WeightFormat::kInt4);
  parts.model = load_llama(weights, bf16, *parts.threads);
  parts.int4_model = load_llama(weights, int4, *parts.threads);
  parts.draft_model = load_llama(weights, {.weights = WeightFormat::kInt8}, *parts.threads);
  parts.cache_shape = parts.draft_shape = llama_cache_shape(config, bf16);
  parts.tokenizer = std::make_unique<FakeTokenizer>();
  parts.options.model.context_length = config.context_length;
  parts.options.kv_cache_bytes = int64_t{64} << 20;
  parts.options.prefix_cache_bytes = 0;
  EngineImpl engine(std::move(parts));

  int64_t accepted = 0, rejected = 0;
  for (const json& policy :
       {json(), json{{"policy", "streaming"}, {"tokens", 192}}, json{{"policy", "snapkv"}, {"tokens", 256}},
        json{{"policy", "random"}, {"tokens", 256}}}) {
    for (uint64_t seed = 0; seed < 3; ++seed) {
      GenerationRequest request = make_request(20 + static_cast<int64_t>(seed) * 90, 150, seed);
      request.sampling.temperature = seed == 0 ? 0.0f : 0.9f;
      request.ignore_eos = true;
      request.kv_cache = policy;
      RequestUsage usage;
      const std::vector<TokenId> plain = run_request(&engine, request, "off", &usage);
      for (const json& draft : drafts(policy.is_null())) {
        EXPECT_EQ(run_request(&engine, request, draft, &usage), plain) << policy << ' ' << draft << ' ' << seed;
        accepted += usage.speculation.accepted;
        rejected += usage.speculation.drafted - usage.speculation.accepted;
      }
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(rejected, 100);
  EXPECT_EQ(engine.stats().kv_bytes_used, 0);
}

class RealModelSpeculation : public ::testing::Test {
 protected:
  static std::vector<TokenId> ask(const Tokenizer& tokenizer, const std::string& question) {
    return tokenizer.encode("<|im_start|>user\n" + question + "<|im_end|>\n<|im_start|>assistant\n", {});
  }
};

TEST_F(RealModelSpeculation, CopyingTakesFewPassesAndEveryMethodAgreesWithPlainDecoding) {
  EngineOptions options;
  options.model.path = SMARTKV_SOURCE "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  options.draft_model = options.model.path;  // the most accurate draft, and the slowest
  options.draft_weights = DraftCopy::kInt4;
  options.kv_cache_bytes = int64_t{1} << 30;
  const auto engine = Engine::create(options);
  const auto start = [&](const std::string& question, const json& draft, float temperature) {
    GenerationRequest request;
    request.id = "test";
    request.prompt = ask(engine->tokenizer(), question);
    request.max_tokens = 40;
    request.sampling.temperature = temperature;
    request.sampling.seed = 4;
    request.speculative = draft;
    return engine->submit(std::move(request));
  };
  for (const auto& [question, temperature] : {std::pair<std::string, float>{"What is the capital of France?", 0.0f},
                                              {"Explain how a bicycle stays upright.", 1.0f},
                                              {"Count from one to twenty in words.", 0.5f}}) {
    std::vector<std::unique_ptr<GenerationStream>> streams;  // all methods in one batch, plain decoding first
    streams.push_back(start(question, "off", temperature));
    for (const json& draft : drafts(true)) streams.push_back(start(question, draft, temperature));
    const std::vector<TokenId> plain = read_all(*streams[0])[0].tokens;
    for (size_t i = 1; i < streams.size(); ++i) {
      EXPECT_EQ(read_all(*streams[i])[0].tokens, plain) << question << ' ' << drafts(true)[i - 1];
    }
  }
  const auto copying = start(
      "Repeat this text exactly: In 1923, the explorer Amelia Thornton set out from Lisbon with "
      "seven companions and two mules. They crossed the Pyrenees in late autumn.",
      {{"method", "ngram"}, {"adaptive", false}}, 0);
  EXPECT_THAT(read_all(*copying)[0].tokens, SizeIs(::testing::Ge(20)));
  const RequestUsage usage = copying->usage();
  EXPECT_LE(2 * usage.timings.decode_passes, usage.completion_tokens);
}

TEST_F(RealModelSpeculation, ADraftModelWithAnotherTokenizerIsRefused) {
  const std::filesystem::path draft = std::filesystem::path(::testing::TempDir()) / "other_tokenizer";
  const std::filesystem::path fixtures = SMARTKV_FIXTURES;
  std::filesystem::remove_all(draft);
  std::filesystem::copy(fixtures / "weights" / "tiny", draft);
  std::filesystem::copy(fixtures / "tokenizers" / "sentencepiece.model", draft / "tokenizer.model");
  EngineOptions options;
  options.model.path = SMARTKV_SOURCE "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  options.draft_model = draft;
  try {
    Engine::create(options);
    ADD_FAILURE() << "the draft model was taken";
  } catch (const ModelError& error) {
    EXPECT_THAT(error.what(), ::testing::StartsWith("draft_model: " + draft.string()));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("as token 0 instead of \"<|endoftext|>\""));
  }
}

}  // namespace
}  // namespace smartkv
