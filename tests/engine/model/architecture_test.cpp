// Every architecture and every scaling of RoPE in f32 against Hugging Face transformers, from folders and from GGUF
// files: fixtures made by tests/fixtures/architectures/make.py.
#include <cmath>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/engine/model/served_llama.h"
#include "tests/weights/gguf_keys.h"
#include "tests/weights/weight_files.h"

namespace smartkv {
namespace {

const std::filesystem::path kArchitectures = SMARTKV_FIXTURES "/architectures";

const nlohmann::json& cases() {
  static const nlohmann::json json = nlohmann::json::parse(std::ifstream(kArchitectures / "cases.json"));
  return json;
}

std::vector<std::string> names_of(const nlohmann::json& json) {
  std::vector<std::string> names;
  for (const auto& [name, item] : json.items()) names.push_back(name);
  return names;
}

// Writes a case's weights and configuration as a Hugging Face folder.
void write_case(const Folder& folder, const nlohmann::json& item) {
  folder.write("config.json", item["config"].dump());
  folder.write("model.safetensors", read_file(kArchitectures / (item["weights"].get<std::string>() + ".safetensors")));
}

void expect_reference(const Weights& weights, const nlohmann::json& item) {
  const std::vector<TokenId> tokens = item["tokens"];
  Served f32(weights, "f32"), bf16(weights, "bf16");
  const std::vector<float> logits = f32.run(tokens, 64);
  const int64_t vocab = weights.config().vocab_size;
  size_t row = 0;
  for (const int64_t position : item["positions"].get<std::vector<int64_t>>()) {
    const std::vector<float> expected = item["logits"][row++];
    for (int64_t i = 0; i < vocab; ++i) {
      ASSERT_NEAR(logits[static_cast<size_t>(position * vocab + i)], expected[static_cast<size_t>(i)], 1e-3)
          << "position " << position << ", token " << i;
    }
  }
  // What a row gives depends on nothing but its own sequence.
  EXPECT_EQ(logits, f32.run(tokens, 7));
  EXPECT_EQ(bf16.run(tokens, 64), bf16.run(tokens, 7));
}

class ArchitectureCase : public testing::TestWithParam<std::string> {};

TEST_P(ArchitectureCase, FolderEqualsTransformers) {
  const nlohmann::json& item = cases()[GetParam()];
  const Folder folder;
  write_case(folder, item);
  expect_reference(*Weights::open(folder.path()), item);
}

INSTANTIATE_TEST_SUITE_P(Cases, ArchitectureCase, testing::ValuesIn(names_of(cases())), [](const auto& item) { return item.param; });

class ArchitectureFile : public testing::TestWithParam<const char*> {};

TEST_P(ArchitectureFile, GgufEqualsTransformers) {
  expect_reference(*Weights::open(kArchitectures / (std::string(GetParam()) + ".gguf")), cases()[GetParam()]);
}

INSTANTIATE_TEST_SUITE_P(Files, ArchitectureFile,
                         testing::Values("llama", "mistral", "qwen2", "qwen3", "smollm3", "granite", "olmo2", "phi3"),
                         [](const auto& item) { return std::string(item.param); });

TEST(GgufRope, KeysEqualTransformers) {
  const std::string plain = read_file(kArchitectures / "llama.gguf");
  const float yarn = 0.1f * std::log(8.0f) + 1.0f;
  const GgufKeys scaled = GgufKeys().string("llama.rope.scaling.type", "yarn").number("llama.rope.scaling.factor", 8).integer(
      "llama.rope.scaling.original_context_length", 16);
  const std::pair<const char*, GgufKeys> files[] = {
      {"linear", GgufKeys().string("llama.rope.scaling.type", "linear").number("llama.rope.scaling.factor", 4)},
      {"linear", GgufKeys().number("llama.rope.scaling.factor", 4)},
      {"linear", GgufKeys().number("llama.rope.scale_linear", 4)},
      {"llama", GgufKeys().string("llama.rope.scaling.type", "none").number("llama.rope.scaling.factor", 4)},
      {"yarn", scaled},
      {"yarn_attention_factor", GgufKeys(scaled).number("llama.rope.scaling.attn_factor", 0.7f / yarn)},
  };
  const Folder folder;
  for (const auto& [name, keys] : files) {
    SCOPED_TRACE(name);
    folder.write("m.gguf", keys.in(plain));
    expect_reference(*Weights::open(folder.path() / "m.gguf"), cases()[name]);
  }
}

TEST(SlidingWindow, IsServedUpToItsLengthAndRefusedBeyond) {
  nlohmann::json item = cases()["mistral"];
  item["config"]["sliding_window"] = 48;
  const Folder folder;
  write_case(folder, item);
  const auto weights = Weights::open(folder.path());
  ThreadPool pool(1);
  try {
    load_llama(*weights, {"f32", "auto", 0}, pool);
    ADD_FAILURE() << "expected a ModelError";
  } catch (const ModelError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("expected a context_length of at most 48, found 64"));
  }
  EXPECT_EQ(load_llama(*weights, {"f32", "auto", 48}, pool)->config().context_length, 48);
}

}  // namespace
}  // namespace smartkv
