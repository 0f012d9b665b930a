// Every architecture and every scaling of RoPE in f32 against Hugging Face transformers, from folders and from GGUF
// files: fixtures made by tests/fixtures/architectures/make.py.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/model/architecture_cases.h"
#include "tests/engine/model/served_llama.h"
#include "tests/weights/gguf_keys.h"

namespace smartkv {
namespace {

void expect_reference(const Weights& weights, const nlohmann::json& item) {
  const std::vector<TokenId> tokens = item["tokens"];
  Served f32(weights, "f32"), bf16(weights, "bf16");
  const std::vector<float> logits = f32.run(tokens, 64);
  expect_transformers(item, logits, weights.config().vocab_size);
  // What a row gives depends on nothing but its own sequence.
  EXPECT_EQ(logits, f32.run(tokens, 7));
  EXPECT_EQ(bf16.run(tokens, 64), bf16.run(tokens, 7));
}

class ArchitectureCase : public testing::TestWithParam<std::string> {};

TEST_P(ArchitectureCase, FolderEqualsTransformers) {
  const nlohmann::json& item = architecture_cases()[GetParam()];
  const Folder folder;
  write_case(folder, item);
  expect_reference(*Weights::open(folder.path()), item);
}

INSTANTIATE_TEST_SUITE_P(Cases, ArchitectureCase, testing::ValuesIn(names_of(architecture_cases())), [](const auto& item) { return item.param; });

class ArchitectureFile : public testing::TestWithParam<const char*> {};

TEST_P(ArchitectureFile, GgufEqualsTransformers) {
  expect_reference(*Weights::open(kArchitectures / (std::string(GetParam()) + ".gguf")), architecture_cases()[GetParam()]);
}

INSTANTIATE_TEST_SUITE_P(Files, ArchitectureFile, testing::ValuesIn(kGgufCases),
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
    expect_reference(*Weights::open(folder.path() / "m.gguf"), architecture_cases()[name]);
  }
}

TEST(SlidingWindow, IsServedUpToItsLengthAndRefusedBeyond) {
  nlohmann::json item = architecture_cases()["mistral"];
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
