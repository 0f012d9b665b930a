// The torch backend: compared with transformers, in batches, under the engine and as a module.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "engine/model/llama_footprint.h"
#include "engine/model/torch_backend.h"
#include "tests/engine/model/architecture_cases.h"
#include "tests/engine/torch/tiny_engine.h"

namespace smartkv {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Served torch_served(const Weights& weights, const std::string& dtype) {
  return {weights, dtype, "auto", torch_loader()};
}

// Compares with transformers, whole and in chunks. Chunks lead to other products, with the same values up to rounding.
void expect_reference(const Weights& weights, const nlohmann::json& item) {
  const std::vector<TokenId> tokens = item["tokens"];
  Served served = torch_served(weights, "f32");
  for (const int64_t chunk : {64, 7}) expect_transformers(item, served.run(tokens, chunk), weights.config().vocab_size);
}

class TorchArchitectureCase : public testing::TestWithParam<std::string> {};

TEST_P(TorchArchitectureCase, FolderEqualsTransformers) {
  const nlohmann::json& item = architecture_cases()[GetParam()];
  const Folder folder;
  write_case(folder, item);
  expect_reference(*Weights::open(folder.path()), item);
}

INSTANTIATE_TEST_SUITE_P(Cases, TorchArchitectureCase, testing::ValuesIn(names_of(architecture_cases())),
                         [](const auto& item) { return item.param; });

class TorchArchitectureFile : public testing::TestWithParam<const char*> {};

TEST_P(TorchArchitectureFile, GgufEqualsTransformers) {
  expect_reference(*Weights::open(kArchitectures / (std::string(GetParam()) + ".gguf")),
                   architecture_cases()[GetParam()]);
}

INSTANTIATE_TEST_SUITE_P(Files, TorchArchitectureFile, testing::ValuesIn(kGgufCases),
                         [](const auto& item) { return std::string(item.param); });

class TorchRows : public testing::TestWithParam<const char*> {};

// At SmolLM2's shapes. Prints for which chunks the rows have the same bits as alone. If all had, batch_invariant()
// could be true.
TEST_P(TorchRows, DifferByRoundingAloneAndInChunks) {
  ModelConfig config = tiny_config();
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.n_layers = 1;
  config.n_heads = 9;
  config.n_kv_heads = 3;
  config.head_dim = 64;
  const TinyWeights weights(config);
  EXPECT_TRUE(Served(weights, GetParam()).model->batch_invariant());
  Served served = torch_served(weights, GetParam());
  EXPECT_FALSE(served.model->batch_invariant());
  const std::vector<TokenId> tokens = some_tokens(64, config.vocab_size, 1);
  const std::vector<float> alone = served.run(tokens, 1);
  for (const int64_t chunk : {2, 3, 4, 8, 16, 31, 32, 33, 64}) {
    const std::vector<float> found = served.run(tokens, chunk);
    const double error = relative_error(found, alone);
    EXPECT_LT(error, GetParam() == std::string("f32") ? 1e-5 : 0.02) << chunk;
    std::cout << GetParam() << ", chunks of " << chunk << ": "
              << (found == alone ? "the same bits" : "other bits, relative error ")
              << (found == alone ? "" : std::to_string(error)) << '\n';
  }
}

INSTANTIATE_TEST_SUITE_P(Types, TorchRows, testing::Values("f32", "bf16"));

// The last layer computes only rows with wanted logits, and here none of the second sequence.
TEST(TorchBackend, ABatchGivesEachSequenceItsOwn) {
  const TinyWeights weights(tiny_config());
  Served served = torch_served(weights, "f32");
  const int64_t vocab = weights.config().vocab_size;
  const std::vector<TokenId> a = some_tokens(100, vocab, 1), b = some_tokens(33, vocab, 2),
                             c = some_tokens(1, vocab, 3);
  const std::vector<float> alone_a = served.run(a, 512), alone_c = served.run(c, 512);
  const auto cache_a = served.policy->new_sequence(0), cache_b = served.policy->new_sequence(0),
             cache_c = served.policy->new_sequence(0);
  const SequenceInput batch[] = {{a, cache_a.get(), 3}, {b, cache_b.get(), 0}, {c, cache_c.get(), 1}};
  std::vector<float> logits(static_cast<size_t>(4 * vocab));
  served.model->forward(batch, logits.data());
  std::vector<float> expected(alone_a.end() - 3 * vocab, alone_a.end());
  expected.insert(expected.end(), alone_c.begin(), alone_c.end());
  EXPECT_LT(relative_error(logits, expected), 1e-5);
  EXPECT_EQ(cache_b->tokens(), 33);
  const SequenceInput silent{b, cache_b.get(), 0};
  served.model->forward({&silent, 1}, nullptr);
  EXPECT_EQ(cache_b->tokens(), 66);
}

TEST(TorchBackend, ErrorsOfLibTorchComeWithoutTheirStack) {
  const TinyWeights weights(tiny_config());
  Served served = torch_served(weights, "f32");
  try {
    served.run({1000}, 1);
    ADD_FAILURE() << "expected an error";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("LibTorch: index out of range"));
    EXPECT_THAT(error.what(), Not(HasSubstr("frame")));
  }
  EXPECT_EQ(served.run({7}, 1), served.run({7}, 1));
}

// Results of a pass of one layer without attention.
struct OneLayer {
  std::vector<float> qkv, logits;
};

OneLayer one_layer(const Weights& weights, ProductType type, std::span<const TokenId> tokens) {
  const ModelConfig& config = weights.config();
  const auto backend = make_torch_backend(weights, type, "cpu", 2);
  OneLayer found;
  found.qkv.resize(tokens.size() * static_cast<size_t>((config.n_heads + 2 * config.n_kv_heads) * config.head_dim));
  found.logits.resize(tokens.size() * static_cast<size_t>(config.vocab_size));
  backend->embed(tokens);
  backend->project(0, found.qkv.data());
  const std::vector<float> attended(tokens.size() *
                                    static_cast<size_t>(config.n_heads * config.head_dim));  // 0 in every type
  backend->finish_layer(0, attended.data());
  backend->head(found.logits.data());
  return found;
}

TEST(TorchBackend, ProductsOfF16AreThoseOfF32ButForRounding) {
  const TinyWeights weights(tiny_config());
  const std::vector<TokenId> tokens = some_tokens(7, weights.config().vocab_size, 1);
  const OneLayer f32 = one_layer(weights, ProductType::kF32, tokens),
                 f16 = one_layer(weights, ProductType::kF16, tokens);
  for (const auto& [found, expected] : {std::pair{&f16.qkv, &f32.qkv}, {&f16.logits, &f32.logits}}) {
    const double error = relative_error(*found, *expected);
    EXPECT_GT(error, 1e-5);
    EXPECT_LT(error, 1e-3);  // rounding: f16 2^-11 = 4.9e-4, bf16 2^-8 = 3.9e-3
  }
}

TEST(TorchBackend, ServesInF16OverCachesOfBf16) {
  const TinyWeights weights(tiny_config());
  const std::vector<TokenId> tokens = some_tokens(150, weights.config().vocab_size, 1);
  Served f16(weights, "f16", "auto", torch_loader(ProductType::kF16)), f32 = torch_served(weights, "f32");
  EXPECT_EQ(f16.context.shape.type, kernels::KvType::kBf16);
  EXPECT_EQ(f16.model->weight_bytes(),
            llama_weight_bytes(weights, {.dtype = DataType::kF16, .backend = Backend::kTorch}));
  for (const int64_t chunk : {64, 7}) {  // the error comes from bf16 in caches and attention
    EXPECT_LT(relative_error(f16.run(tokens, chunk), f32.run(tokens, chunk)), 0.04) << chunk;
  }
}

TEST(TorchBackend, TheEngineAnswersAsOverTheNativeBackend) {
  ModelConfig config = tiny_config();
  config.vocab_size = kFakeVocab;
  config.head_dim = 64;  // large enough for k4v4
  const TinyWeights weights(config);
  const auto native = tiny_engine(weights, nullptr), torch_engine = tiny_engine(weights, torch_loader());
  std::vector<GenerationRequest> requests =
      greedy_requests({{}, {{"policy", "streaming"}, {"tokens", 192}}, {{"policy", "snapkv"}, {"tokens", 256}}, "k4v4"},
                      {{}, {{"method", "ngram"}, {"ngram_min", 1}}, "draft_model", "self"}, 100);
  requests.push_back(requests.back());
  requests.back().n = 1;
  requests.back().grammar = R"(root ::= [a-c]+)";
  EXPECT_EQ(answers(torch_engine.get(), requests), answers(native.get(), requests));
}

// If they were rounded to 16 bits, most logits would have their last 16 bits clear.
TEST(TorchBackend, LogitsOf16BitWeightsAreNotRoundedTo16Bits) {
  const TinyWeights weights(tiny_config());
  int64_t rounded = 0;
  const std::vector<float> logits =
      torch_served(weights, "bf16").run(some_tokens(3, weights.config().vocab_size, 1), 3);
  for (const float logit : logits) rounded += (std::bit_cast<uint32_t>(logit) & 0xffff) == 0 ? 1 : 0;
  EXPECT_LT(rounded, static_cast<int64_t>(logits.size()) / 100);
}

class TorchModule : public testing::Test {
 protected:
  static std::string error_of(const std::filesystem::path& module) {
    try {
      load_torch_backend(module, TinyWeights(tiny_config()), ProductType::kF32, "cpu", 2);
    } catch (const ModelError& error) {
      return error.what();
    }
    return "no error";
  }
  const std::filesystem::path folder_ = std::filesystem::path(SMARTKV_BINARY).parent_path();
  const std::filesystem::path module_ = folder_ / torch_backend_path().filename();
};

TEST_F(TorchModule, HoldsTheSameBackend) {
  const TinyWeights weights(tiny_config());
  const std::vector<TokenId> tokens = some_tokens(50, weights.config().vocab_size, 1);
  Served direct = torch_served(weights, "bf16"),
         loaded(weights, "bf16", "auto", [&](const Weights& served, kernels::KvType type) {
           return load_torch_backend(module_, served, product_of(type), "cpu", 2);
         });
  EXPECT_EQ(loaded.run(tokens, 512), direct.run(tokens, 512));
  EXPECT_EQ(loaded.model->weight_bytes(), direct.model->weight_bytes());
}

TEST_F(TorchModule, ErrorsComeThroughAsTheModels) {
  EXPECT_THAT(error_of(folder_ / "libsmartkv_training.so"),
              HasSubstr("does not export smartkv_torch_backend_interface"));
  ModelConfig config = tiny_config();
  const TinyWeights weights(config);
  struct Lacking final : Weights {
    explicit Lacking(const Weights& all) : weights(all) {}
    const ModelConfig& config() const override { return weights.config(); }
    std::string format() const override { return weights.format(); }
    std::vector<std::string> names() const override { return weights.names(); }
    std::optional<TensorView> find(std::string_view name) const override {
      return name.ends_with("up_proj.weight") ? std::nullopt : weights.find(name);
    }
    int64_t file_row(std::string_view, int64_t row) const override { return row; }
    const Weights& weights;
  };
  try {
    load_torch_backend(module_, Lacking(weights), ProductType::kF32, "cpu", 2);
    ADD_FAILURE() << "expected a ModelError";
  } catch (const ModelError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tensor \"model.layers.0.mlp.up_proj.weight\""));
  }
}

}  // namespace
}  // namespace smartkv
