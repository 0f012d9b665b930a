#include "hub/choose_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hub/hub_error.h"

namespace smartkv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kGib = int64_t{1} << 30;

std::vector<HubFile> some_files() {
  return {{"README.md", 10},           {"m-BF16.gguf", 16 * kGib}, {"m-IQ2_XS.gguf", 3 * kGib},
          {"m-Q4_K_M.gguf", 5 * kGib}, {"m-Q8_0.gguf", 8 * kGib},  {"mmproj-F16.gguf", kGib},
          {"m-Q3_K_L.gguf", 4 * kGib}};
}

std::vector<std::string> chosen(const std::string& reference, int64_t memory,
                                const std::vector<HubFile>& files = some_files()) {
  std::vector<std::string> paths;
  for (const HubFile& file : choose_files(*parse_model_reference(reference), files, memory).files)
    paths.push_back(file.path);
  return paths;
}

TEST(ChooseFiles, KnowsQuantizationsByNames) {
  for (const auto& [file, expected] :
       std::vector<std::pair<const char*, const char*>>{{"model-q4_k_m.gguf", "Q4_K_M"},
                                                        {"Qwen3-0.6B-Q8_0.gguf", "Q8_0"},
                                                        {"sub/Model.IQ2_XXS.gguf", "IQ2_XXS"},
                                                        {"m-bf16-00001-of-00002.gguf", "BF16"},
                                                        {"gpt-oss-20b-mxfp4.gguf", "MXFP4"},
                                                        {"m-TQ1_0.gguf", "TQ1_0"},
                                                        {"model.gguf", ""},
                                                        {"Q4-model.gguf", ""}}) {
    EXPECT_EQ(quantization_of(file), expected) << file;
  }
}

TEST(ChooseFiles, TakesTheUsualQuantizationIfItFits) {
  EXPECT_THAT(chosen("a/b", 8 * kGib), ElementsAre("m-Q4_K_M.gguf"));
  EXPECT_THAT(chosen("a/b", 100 * kGib), ElementsAre("m-Q4_K_M.gguf"));
  EXPECT_THAT(chosen("a/b", 7 * kGib), ElementsAre("m-Q3_K_L.gguf"));
  EXPECT_THAT(chosen("a/b", 5 * kGib), ElementsAre("m-IQ2_XS.gguf"));
  EXPECT_THAT(chosen("a/b", kGib), ElementsAre("m-IQ2_XS.gguf"));
  EXPECT_THAT(choose_files(*parse_model_reference("a/b"), some_files(), 7 * kGib).why,
              HasSubstr("Q3_K_L of IQ2_XS, Q3_K_L, Q4_K_M, Q8_0, BF16: the largest that fits"));
}

TEST(ChooseFiles, WithoutTheUsualOneTheLargestThatFits) {
  const std::vector<HubFile> files = {{"m-Q8_0.gguf", 8 * kGib}, {"m-F16.gguf", 16 * kGib}};
  EXPECT_THAT(chosen("a/b", 32 * kGib, files), ElementsAre("m-F16.gguf"));
  EXPECT_THAT(chosen("a/b", 16 * kGib, files), ElementsAre("m-Q8_0.gguf"));
}

TEST(ChooseFiles, TakesWhatTheUserNames) {
  EXPECT_THAT(chosen("a/b:q8_0", kGib), ElementsAre("m-Q8_0.gguf"));
  EXPECT_THAT(chosen("hf://a/b/m-BF16.gguf", kGib), ElementsAre("m-BF16.gguf"));
  EXPECT_THAT([] { chosen("a/b:Q5_0", kGib); }, testing::ThrowsMessage<HubError>(HasSubstr("found Q5_0")));
  EXPECT_THAT([] { chosen("hf://a/b/other.gguf", kGib); },
              testing::ThrowsMessage<HubError>(HasSubstr("found other.gguf")));
}

TEST(ChooseFiles, ShardsBelongTogether) {
  const std::vector<HubFile> files = {
      {"q4/m-Q4_0-00002-of-00002.gguf", 1}, {"q4/m-Q4_0-00001-of-00002.gguf", 1}, {"m-Q8_0.gguf", 3}};
  EXPECT_THAT(chosen("a/b:Q4_0", kGib, files),
              ElementsAre("q4/m-Q4_0-00001-of-00002.gguf", "q4/m-Q4_0-00002-of-00002.gguf"));
  EXPECT_THAT(chosen("hf://a/b/q4/m-Q4_0-00002-of-00002.gguf", kGib, files),
              ElementsAre("q4/m-Q4_0-00001-of-00002.gguf", "q4/m-Q4_0-00002-of-00002.gguf"));
}

TEST(ChooseFiles, AFolderHasWeightsConfigurationAndTokenizer) {
  const std::vector<HubFile> files = {{"config.json", 1},
                                      {"model-00001-of-00002.safetensors", 1},
                                      {"model-00002-of-00002.safetensors", 1},
                                      {"model.safetensors.index.json", 1},
                                      {"tokenizer.json", 1},
                                      {"chat_template.jinja", 1},
                                      {"pytorch_model.bin", 1},
                                      {"original/params.json", 1},
                                      {"LICENSE", 1}};
  EXPECT_EQ(chosen("a/b", kGib, files).size(), 6u);
  EXPECT_TRUE(choose_files(*parse_model_reference("a/b"), files, kGib).folder);
  EXPECT_THROW(chosen("a/b", kGib, {{"config.json", 1}, {"pytorch_model.bin", 1}}), HubError);
  EXPECT_THROW(chosen("a/b:Q4_0", kGib, files), HubError);
}

}  // namespace
}  // namespace smartkv
