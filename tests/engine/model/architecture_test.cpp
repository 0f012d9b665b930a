// Compares every architecture and every scaling of RoPE in f32 with Hugging Face transformers, from folders and from
// GGUF files. The fixtures are made by tests/fixtures/architectures/make.py.
#include <cmath>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/weights/architecture.h"
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
  // A row's result depends on its own sequence only.
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

INSTANTIATE_TEST_SUITE_P(Cases, ArchitectureCase, testing::ValuesIn(names_of(architecture_cases())),
                         [](const auto& item) { return item.param; });

class ArchitectureFile : public testing::TestWithParam<const char*> {};

TEST_P(ArchitectureFile, GgufEqualsTransformers) {
  expect_reference(*Weights::open(kArchitectures / (std::string(GetParam()) + ".gguf")),
                   architecture_cases()[GetParam()]);
}

INSTANTIATE_TEST_SUITE_P(Files, ArchitectureFile, testing::ValuesIn(kGgufCases),
                         [](const auto& item) { return std::string(item.param); });

TEST(GgufRope, KeysEqualTransformers) {
  const std::string plain = read_file(kArchitectures / "llama.gguf");
  const float yarn = 0.1f * std::log(8.0f) + 1.0f;
  const GgufKeys scaled = GgufKeys()
                              .string("llama.rope.scaling.type", "yarn")
                              .number("llama.rope.scaling.factor", 8)
                              .integer("llama.rope.scaling.original_context_length", 16);
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

// The README and the page about models name every architecture, and no other.
TEST(Architectures, AreThoseOfTheDocuments) {
  std::string names = architecture_names(), rows;
  const std::string readme = read_file(SMARTKV_SOURCE "/README.md");
  const size_t begin = readme.find("- Architectures: ");
  ASSERT_NE(begin, std::string::npos);
  std::string listed;
  for (const char c : readme.substr(begin + 17, readme.find('.', begin) - begin - 17)) {
    if (c != '`' && !(c == ' ' && listed.ends_with(' '))) listed += c == '\n' ? ' ' : c;
  }
  std::erase(listed, ' ');
  std::erase(names, ' ');
  EXPECT_EQ(listed, names);
  std::istringstream page(read_file(SMARTKV_SOURCE "/docs/use/models.md"));
  bool in_table = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("| architecture |")) in_table = true;
    if (in_table && line.empty()) break;
    if (in_table && line.starts_with("| `")) rows += (rows.empty() ? "" : ",") + line.substr(3, line.find('`', 3) - 3);
  }
  EXPECT_EQ(rows, names);
}

nlohmann::json long_mistral() {
  nlohmann::json item = architecture_cases()["mistral_window"];
  item["config"]["max_position_embeddings"] = 512;
  return item;
}

TEST(SlidingWindow, IsNoneUpToItsLength) {
  const Folder folder;
  write_case(folder, long_mistral());
  const auto weights = Weights::open(folder.path());
  ThreadPool pool(1);
  EXPECT_EQ(load_llama(*weights, {.dtype = DataType::kF32, .context_length = 12}, pool)->config().sliding_window, 0);
  EXPECT_EQ(load_llama(*weights, {.dtype = DataType::kF32, .context_length = 13}, pool)->config().sliding_window, 12);
}

// Pages that no layer sees any more are released without changing a result. If all layers have a window, no policy
// changes anything.
TEST(SlidingWindow, TheCacheKeepsWhatIsSeen) {
  const nlohmann::json item = long_mistral();
  const Folder folder;
  write_case(folder, item);
  const auto weights = Weights::open(folder.path());
  Served forgetting(*weights, "f32"), keeping(*weights, "f32"), coded(*weights, "f32");
  keeping.context.window.tokens = 512;
  keeping.policy = make_policy(keeping.context, nullptr);
  coded.policy = make_policy(coded.context, "k4v4");
  const std::vector<TokenId> tokens = some_tokens(400, 40, 5);
  const std::vector<float> logits = forgetting.run(tokens, 50), expected = keeping.run(tokens, 50);
  EXPECT_EQ(logits, forgetting.run(tokens, 33));
  EXPECT_EQ(logits, coded.run(tokens, 33));
  for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 1e-4) << i;
  const int64_t page = keeping.context.pool->page_bytes();
  EXPECT_LE(forgetting.policy->max_bytes(0, 400), 2 * page);
  EXPECT_EQ(keeping.policy->max_bytes(0, 400), 7 * page);
}

// One layer has a window and the other has not: a policy changes the latter alone.
TEST(SlidingWindow, PoliciesApplyToTheOtherLayers) {
  nlohmann::json item = architecture_cases()["qwen2_window"];
  item["config"]["max_position_embeddings"] = 512;
  const Folder folder;
  write_case(folder, item);
  const auto weights = Weights::open(folder.path());
  Served full(*weights, "f32"), coded(*weights, "f32");
  coded.policy = make_policy(coded.context, "k8v8");
  const std::vector<TokenId> tokens = some_tokens(400, 40, 5);
  const std::vector<float> expected = full.run(tokens, 50), logits = coded.run(tokens, 50);
  EXPECT_EQ(logits, coded.run(tokens, 33));
  EXPECT_NE(logits, expected);
  for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 0.2) << i;
  const int64_t page = full.context.pool->page_bytes();
  EXPECT_LE(full.policy->max_bytes(0, 400), (7 + 2) * page);
}

}  // namespace
}  // namespace smartkv
