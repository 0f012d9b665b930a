#include "engine/weights/model_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace smartkv {
namespace {

using ::testing::ElementsAre;

std::string without_gguf(std::string file) { return file.ends_with(".gguf") ? file.substr(0, file.size() - 5) : file; }

TEST(ModelName, OfAFileHasNoQuantization) {
  const auto named = [](const char* file) { return model_names("/models/" + std::string(file)); };
  EXPECT_THAT(named("SmolLM2-135M-Instruct.Q4_1.gguf"),
              ElementsAre("SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct.Q4_1"));
  EXPECT_THAT(named("qwen2.5-coder-0.5b.gguf"), ElementsAre("qwen2.5-coder-0.5b"));
  EXPECT_THAT(named("Qwen2.5-Coder-0.5B-Instruct"), ElementsAre("Qwen2.5-Coder-0.5B-Instruct"));
  EXPECT_THAT(named("Llama-3.1-8B"), ElementsAre("Llama-3.1-8B"));
  EXPECT_THAT(named("m.Q4_0-00001-of-00002.gguf"), ElementsAre("m", "m.Q4_0"));
  for (const char* ending :
       {"-Q4_K_M.gguf", ".q4_k_m.gguf", "-q8_0.GGUF", "-IQ4_XS.gguf", "-IQ2_XXS", ".i1-Q4_K_M.gguf", "-UD-Q4_K_XL.gguf",
        "-Q4_0_4_4.gguf", "-F16.gguf", "-bf16.gguf", "-FP16.gguf", "-f32.gguf", "-TQ1_0.gguf", "-MXFP4_MOE.gguf",
        "-int4.gguf", "-IQ4_NL.gguf", "-Q3_K.gguf", "-fp8.gguf", "_Q6_K_L.gguf"}) {
    EXPECT_EQ(named(("Qwen2.5-1.5B-Instruct" + std::string(ending)).c_str())[0], "Qwen2.5-1.5B-Instruct") << ending;
  }
  for (const char* whole :
       {"Q4_0", "model-v1.5", "phi-3.5", "gemma3-270m", "Qwen3-A3B", "m-Q", "m-fp", "FP16", "SmolLM2-P1"})
    EXPECT_EQ(named(whole)[0], whole);
}

TEST(ModelName, TitleStandsInForAFileNameThatSaysNothing) {
  const std::string title = "Qwen2.5 Coder  0.5B Instruct";
  for (const char* file : {"model.gguf", "ggml-model-Q4_0.gguf", "ggml-model.gguf", "Model.Q8_0.gguf", "weights.gguf",
                           "default", "latest.gguf"}) {
    EXPECT_EQ(model_names("/models/" + std::string(file), title)[0], "Qwen2.5-Coder-0.5B-Instruct") << file;
    EXPECT_THAT(model_names("/models/" + std::string(file), title), ::testing::Contains(without_gguf(file)));
  }
  EXPECT_THAT(model_names("/models/mine.Q4_1.gguf", title),
              ElementsAre("mine", "mine.Q4_1", "Qwen2.5-Coder-0.5B-Instruct"));
  EXPECT_THAT(model_names("/models/m.gguf", "m"), ElementsAre("m"));
}

TEST(ModelName, TitleIsALineOfText) {
  for (const std::string& title : {std::string("a\nb"), std::string("\x1b[2J"), std::string("\xff"),
                                   std::string(97, 'a'), std::string("  "), std::string(1 << 20, ' ')}) {
    EXPECT_THAT(model_names("/models/model.gguf", title), ElementsAre("model")) << title.substr(0, 9);
  }
  EXPECT_EQ(model_names("/models/model.gguf", "模型")[0], "模型");
}

class ModelNameOfFolders : public ::testing::Test {
 protected:
  ModelNameOfFolders() : root_(std::filesystem::path(::testing::TempDir()) / "model_name_test") {
    std::filesystem::remove_all(root_);
  }
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

TEST_F(ModelNameOfFolders, IsTheirConfigsWhereItSaysNothing) {
  const auto folder = made("models");
  std::ofstream(folder / "config.json") << R"({"_name_or_path": "org/Some-Model"})";
  EXPECT_EQ(model_title(folder), "Some-Model");
  EXPECT_THAT(model_names(folder, model_title(folder)), ElementsAre("Some-Model", "models"));
  std::ofstream(folder / "config.json") << "[1";
  EXPECT_EQ(model_title(folder), "");
  std::ofstream(folder / "config.json") << R"({"_name_or_path": 7})";
  EXPECT_EQ(model_title(folder), "");
}

}  // namespace
}  // namespace smartkv
