#include "engine/weights/model_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace smartkv {
namespace {

using ::testing::ElementsAre;

TEST(ModelName, OfAFileHasNoQuantization) {
  const auto named = [](const char* file) { return model_names("/models/" + std::string(file)); };
  EXPECT_THAT(named("SmolLM2-135M-Instruct.Q4_1.gguf"), ElementsAre("SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct.Q4_1"));
  EXPECT_THAT(named("qwen2.5-coder-0.5b.gguf"), ElementsAre("qwen2.5-coder-0.5b"));
  EXPECT_THAT(named("Qwen2.5-Coder-0.5B-Instruct"), ElementsAre("Qwen2.5-Coder-0.5B-Instruct"));
  EXPECT_THAT(named("Llama-3.1-8B"), ElementsAre("Llama-3.1-8B"));
  EXPECT_THAT(named("m.Q4_0-00001-of-00002.gguf"), ElementsAre("m", "m.Q4_0"));
  for (const char* ending : {"-Q4_K_M.gguf", ".q4_k_m.gguf", "-q8_0.GGUF", "-IQ4_XS.gguf", "-IQ2_XXS", ".i1-Q4_K_M.gguf", "-UD-Q4_K_XL.gguf", "-Q4_0_4_4.gguf",
                             "-F16.gguf", "-bf16.gguf", "-FP16.gguf", "-f32.gguf", "-TQ1_0.gguf", "-MXFP4_MOE.gguf", "-int4.gguf", "-IQ4_NL.gguf", "-Q3_K.gguf", "-fp8.gguf",
                             "_Q6_K_L.gguf"}) {
    EXPECT_EQ(named(("Qwen2.5-1.5B-Instruct" + std::string(ending)).c_str())[0], "Qwen2.5-1.5B-Instruct") << ending;
  }
  for (const char* whole : {"Q4_0", "model-v1.5", "phi-3.5", "gemma3-270m", "Qwen3-A3B", "m-Q", "m-fp", "FP16", "SmolLM2-P1"}) EXPECT_EQ(named(whole)[0], whole);
}

class ModelNameOfFolders : public ::testing::Test {
 protected:
  ModelNameOfFolders() : root_(std::filesystem::path(::testing::TempDir()) / "model_name_test") { std::filesystem::remove_all(root_); }
  ~ModelNameOfFolders() override { std::filesystem::remove_all(root_); }
  std::filesystem::path made(const char* folder) {
    std::filesystem::create_directories(root_ / folder);
    return root_ / folder;
  }

  std::filesystem::path root_;
};

TEST_F(ModelNameOfFolders, IsTheirs) {
  EXPECT_THAT(model_names(made("Qwen2.5-0.5B")), ElementsAre("Qwen2.5-0.5B"));
  EXPECT_THAT(model_names(made("Qwen2.5-0.5B") / ""), ElementsAre("Qwen2.5-0.5B"));
  EXPECT_THAT(model_names(made("snapshots/abc")), ElementsAre("abc"));
}

TEST_F(ModelNameOfFolders, InTheHubsCacheIsTheRepositorys) {
  const auto snapshot = made("hub/models--Qwen--Qwen2.5-Coder-0.5B/snapshots/8123ea2e9354afb7");
  EXPECT_THAT(model_names(snapshot), ElementsAre("Qwen2.5-Coder-0.5B", "Qwen/Qwen2.5-Coder-0.5B"));
  EXPECT_THAT(model_names(made("hub/models--gpt2/snapshots/1")), ElementsAre("gpt2"));
  EXPECT_THAT(model_names(made("hub/models--o--a--b/snapshots/1")), ElementsAre("a--b", "o/a--b"));
  EXPECT_THAT(model_names(snapshot / "qwen-q4_0.gguf"), ElementsAre("qwen", "qwen-q4_0", "Qwen/Qwen2.5-Coder-0.5B"));
}

}  // namespace
}  // namespace smartkv
