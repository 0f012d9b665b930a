// A draft's training data, network, training and file, on random models of a few thousand weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/model/llama.h"
#include "engine/model/policy_context.h"
#include "engine/weights/draft_weights.h"
#include "lab/commands/training_loader.h"
#include "lab/training/train_draft.h"
#include "tests/engine/model/tiny_llama.h"

namespace smartkv {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<int64_t> kAllLayers = {0, 1, 2};

std::vector<TokenId> random_prompt(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> tokens(static_cast<size_t>(n));
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 259);
  return tokens;
}

std::vector<TokenId> all_tokens() {
  std::vector<TokenId> tokens(259);
  for (TokenId i = 0; i < 259; ++i) tokens[static_cast<size_t>(i)] = i;
  return tokens;
}

class DraftTraining : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  DraftData data() {
    Teacher teacher(target_, {}, 2);
    std::vector<AnswerPrompt> prompts;
    for (uint64_t seed = 0; seed < 24; ++seed) prompts.push_back({random_prompt(5, seed), seed % 2 == 0 ? 0 : 0.7});
    DraftData data;
    data.answers = teacher.answer(prompts, 24, 8, 1, [](int64_t) {});
    prompts.resize(4);
    for (AnswerPrompt& prompt : prompts) prompt.temperature = 0;
    data.held_answers = teacher.answer(prompts, 24, 8, 1, [](int64_t) {});
    data.windows = {teacher.read(random_prompt(80, 30))};
    data.held_windows = {teacher.read(random_prompt(40, 31))};
    return data;
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() /
      (std::string("smartkv_draft_") + testing::UnitTest::GetInstance()->current_test_info()->name());
  const TinyWeights target_{tiny_config()};
};

TEST_F(DraftTraining, AnswersCarryTheDistributionsThatReadingThemGives) {
  Teacher teacher(target_, {7}, 2);
  std::vector<AnswerPrompt> prompts;
  for (uint64_t seed = 0; seed < 5; ++seed) prompts.push_back({random_prompt(3 + seed, seed), seed == 4 ? 0.7 : 0.0});
  std::vector<int64_t> done;
  const std::vector<TaughtSequence> answers =
      teacher.answer(prompts, 20, 2, 1, [&](int64_t n) { done.push_back(n); });  // two at a time
  ASSERT_EQ(answers.size(), 5);
  EXPECT_EQ(done.back(), 5);
  for (size_t i = 0; i < answers.size(); ++i) {
    const TaughtSequence& answer = answers[i];
    EXPECT_EQ(answer.first, static_cast<int64_t>(prompts[i].tokens.size()) - 1);
    EXPECT_LE(answer.n_taught(), 20);
    const TaughtSequence read = teacher.read(answer.tokens);
    const auto skipped = answer.first * kTaughtTop;
    EXPECT_EQ(answer.top, std::vector<TokenId>(read.top.begin() + skipped, read.top.end()));
    EXPECT_EQ(answer.probability, std::vector<float>(read.probability.begin() + skipped, read.probability.end()));
    for (int64_t j = 0; prompts[i].temperature == 0 && j + 1 < answer.n_taught(); ++j) {
      EXPECT_EQ(answer.tokens[static_cast<size_t>(answer.first + j + 1)],
                answer.top[static_cast<size_t>(j * kTaughtTop)]);
    }
  }
}

TEST_F(DraftTraining, DataSurvivesItsFile) {
  const DraftData data = this->data();
  save_draft_data(folder_ / "data", data);
  const DraftData loaded = load_draft_data(folder_ / "data");
  ASSERT_EQ(loaded.answers.size(), data.answers.size());
  for (size_t i = 0; i < data.answers.size(); ++i) {
    EXPECT_EQ(loaded.answers[i].tokens, data.answers[i].tokens);
    EXPECT_EQ(loaded.answers[i].first, data.answers[i].first);
    EXPECT_EQ(loaded.answers[i].top, data.answers[i].top);
    EXPECT_EQ(loaded.answers[i].probability, data.answers[i].probability);
  }
  EXPECT_EQ(loaded.held_windows[0].tokens, data.held_windows[0].tokens);
}

TEST_F(DraftTraining, AllLayersOfTheTargetForeseeIt) {
  const DraftData data = this->data();
  const DraftNetwork network(target_, kAllLayers, all_tokens(), torch::kFloat32);
  const DraftQuality quality = measure_draft(network, data.held_answers, 64);
  EXPECT_EQ(quality.positions, 4 * 24);
  EXPECT_GT(quality.agreement, 0.9);        // the target computes in bf16
  EXPECT_GT(quality.tokens_per_pass, 3.7);  // at most 24 / 5 = 4.8
  EXPECT_GT(quality.overlap, 0.94 * quality.coverage);

  // With half of the vocabulary, the draft fails to predict exactly the tokens that it lacks.
  const std::vector<TokenId> half = frequent_tokens(data.answers, data.windows, 259, 130);
  const DraftNetwork smaller(target_, kAllLayers, half, torch::kFloat32);
  const DraftQuality less = measure_draft(smaller, data.held_windows, 64);
  int64_t known = 0;
  const TaughtSequence& window = data.held_windows[0];
  for (size_t i = 0; i < window.top.size(); i += kTaughtTop) {
    known += std::binary_search(half.begin(), half.end(), window.top[i]) ? 1 : 0;
  }
  EXPECT_NEAR(less.agreement, static_cast<double>(known) / 40, 0.051);
  EXPECT_LT(less.coverage, quality.coverage);
}

TEST(FrequentTokens, AreTheMostProbableOnes) {
  TaughtSequence a, b;
  a.top = {5, 9, 2};
  a.probability = {0.5f, 0.3f, 0.1f};
  b.top = {9, 7};
  b.probability = {0.6f, 0.2f};
  EXPECT_THAT(frequent_tokens(std::span(&a, 1), std::span(&b, 1), 10, 3), ElementsAre(5, 7, 9));
}

TEST_F(DraftTraining, LearnsAndLoadsBesideItsTarget) {
  const DraftData data = this->data();
  DraftTrainingOptions options;
  options.layers = {0, 2};
  options.vocabulary = 200;
  options.fit = {30, 256, 5e-3, 1};
  std::vector<double> losses;
  const std::filesystem::path file = folder_ / "draft.safetensors";
  const DraftReport report = train_draft(target_, data, options, file, {{"command", "none"}},
                                         [&](const nlohmann::json& event) { losses.push_back(event.at("loss")); });
  EXPECT_EQ(report.trained_on, 24 * 24 + 80);
  EXPECT_LT(losses.back(), 0.5 * losses.front());
  EXPECT_GT(report.answers.agreement, report.answers_before.agreement);

  // Serving the file must compute what was trained.
  const std::unique_ptr<Weights> draft = open_draft_weights(file, target_);
  EXPECT_EQ(draft->config().n_layers, 2);
  ASSERT_EQ(draft->output_tokens().size(), 200);
  ThreadPool pool(2);
  const std::unique_ptr<Model> model = load_llama(*draft, {}, pool);
  const PolicyContext context = policy_context(*model, llama_cache_shape(model->config(), {}), &pool);
  const auto policy = make_policy(context, nullptr);
  int64_t agreements = 0, positions = 0;
  for (const TaughtSequence& answer : data.held_answers) {
    const auto n = static_cast<int64_t>(answer.tokens.size());
    const auto cache = policy->new_sequence(n);
    std::vector<float> logits(static_cast<size_t>(n * 259));
    const SequenceInput input{answer.tokens, cache.get(), n};
    model->forward({&input, 1}, logits.data());
    for (int64_t i = answer.first; i < n; ++i) {
      const auto row = std::span(logits).subspan(static_cast<size_t>(i * 259), 259);
      EXPECT_EQ(std::count_if(row.begin(), row.end(), [](float x) { return std::isfinite(x); }), 200);
      for (const TokenId token : draft->output_tokens()) EXPECT_TRUE(std::isfinite(row[static_cast<size_t>(token)]));
      const auto best = std::max_element(row.begin(), row.end()) - row.begin();
      agreements += best == answer.top[static_cast<size_t>((i - answer.first) * kTaughtTop)] ? 1 : 0;
      ++positions;
    }
  }
  EXPECT_NEAR(static_cast<double>(agreements) / static_cast<double>(positions), report.answers.agreement, 0.04);
}

TEST_F(DraftTraining, FilesThatDoNotFitAreRefused) {
  const auto error_of = [&](const std::filesystem::path& file, const Weights& target) -> std::string {
    try {
      open_draft_weights(file, target);
    } catch (const ModelError& error) {
      return error.what();
    }
    return "no error";
  };
  const std::filesystem::path file = folder_ / "draft.safetensors";
  const DraftNetwork network(target_, std::vector<int64_t>{1}, {3, 5, 8}, torch::kFloat32);
  write_draft_weights(file, tiny_config(), 1, network.output_tokens(), network.tensors(), {});
  EXPECT_EQ(error_of(file, target_), "no error");
  ModelConfig larger = tiny_config();
  larger.vocab_size = 300;
  EXPECT_THAT(error_of(file, TinyWeights(larger)), AllOf(HasSubstr("vocab_size"), HasSubstr("300, found 259")));
  ModelConfig wider = tiny_config();
  wider.intermediate_size = 128;
  EXPECT_THAT(error_of(file, TinyWeights(wider)),
              AllOf(HasSubstr("mlp.gate_proj"), HasSubstr("[128, 64], found [96, 64]")));
  write_draft_weights(file, tiny_config(), 1, std::vector<TokenId>{5, 3}, network.tensors(), {});
  EXPECT_THAT(error_of(file, target_), HasSubstr("\"output_tokens\": expected ascending token ids below 259"));
  write_safetensors(file, network.tensors(), TensorType::kBf16);
  EXPECT_THAT(error_of(file, target_), HasSubstr("not a draft of smartkv train-draft"));
}

TEST_F(DraftTraining, WrongOptionsAreNamed) {
  const std::filesystem::path module =
      std::filesystem::path(SMARTKV_BINARY).parent_path() / training_module_path().filename();
  const auto error_of = [&](const nlohmann::json& change) -> std::string {
    nlohmann::json options = {
        {"model", "/nowhere/model.gguf"}, {"prompts", "/nowhere/prompts"}, {"out", "d.safetensors"}};
    options.update(change);
    try {
      run_training(module, "train-draft", options);
    } catch (const TrainingError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of(nlohmann::json::object()), HasSubstr("/nowhere/model.gguf: no such file"));
  EXPECT_THAT(error_of({{"prompts", ""}}), HasSubstr("prompts, text: expected at least one of them"));
  EXPECT_THAT(error_of({{"out", "draft.gguf"}}), HasSubstr("out: expected a name that ends in .safetensors"));
  EXPECT_THAT(error_of({{"vocabulary", 0}}), HasSubstr("vocabulary: expected at least 1, found 0"));
}

}  // namespace
}  // namespace smartkv
