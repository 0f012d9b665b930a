// Observing lifespans, fitting and measuring gates, on random models of a few thousand weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lab/commands/training_loader.h"
#include "lab/training/importance.h"
#include "lab/training/train_gate.h"
#include "tests/engine/model/tiny_llama.h"

namespace smartkv {
namespace {

using testing::HasSubstr;

std::vector<int64_t> random_window(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> tokens(static_cast<size_t>(n));
  for (int64_t& token : tokens) token = static_cast<int64_t>(random() % 259);
  return tokens;
}

// Returns the attention probabilities of each layer, f32 [n_heads, length, length], as the plain model computes them.
std::vector<torch::Tensor> probabilities(const TorchLlama& model, const std::vector<int64_t>& tokens) {
  std::vector<torch::Tensor> layers;
  model.hidden(torch::tensor(tokens).unsqueeze(0), [&](int64_t, const AttentionInputs& inputs) {
    AttentionInputs identity = inputs;
    const int64_t length = inputs.v.size(2);
    identity.v = torch::eye(length).to(inputs.v.dtype()).expand({1, inputs.v.size(1), length, length});
    layers.push_back(causal_attention(identity)[0]);
    return causal_attention(inputs);
  });
  return layers;
}

TEST(Lifespans, EqualTheirDefinition) {
  const torch::NoGradGuard no_grad;
  const ModelConfig config = tiny_config();
  const TorchLlama model(TinyWeights(config), torch::kFloat32);
  constexpr int64_t kLength = 300;  // more than one block of queries
  const std::vector<int64_t> tokens = random_window(kLength, 1);
  const LifespanOptions options{0.05, 16, 50};
  const std::vector<LayerLifespans> found = observe_lifespans(model, tokens, options);
  const std::vector<torch::Tensor> expected = probabilities(model, tokens);
  ASSERT_EQ(found.size(), expected.size());
  int64_t differ = 0, alive = 0;
  for (size_t layer = 0; layer < found.size(); ++layer) {
    const torch::Tensor p = expected[layer].view({config.n_kv_heads, -1, kLength, kLength});
    const torch::Tensor strongest = p.amax(1), mean = p.mean(1);
    for (int64_t head = 0; head < config.n_kv_heads; ++head) {
      for (int64_t j = 0; j < kLength; ++j) {
        double rest = 0;
        int32_t lifespan = 0;
        for (int64_t i = kLength - 1; i >= j + options.window && lifespan == 0; --i) {
          rest += strongest[head][i][j].item<float>();
          if (rest > options.rest) lifespan = static_cast<int32_t>(i - j);
        }
        alive += lifespan > 0 ? 1 : 0;
        differ += found[layer].lifespans[head][j].item<int32_t>() != lifespan ? 1 : 0;  // rounding at the limit
      }
      EXPECT_TRUE(torch::allclose(found[layer].sampled[head][2], mean[head][149], 1e-4, 1e-6));
    }
    EXPECT_EQ(found[layer].sampled.size(1), 6);
  }
  EXPECT_LE(differ, 2);
  EXPECT_GT(alive, 100);
}

TEST(GateFit, LearnsTheMeanLifespanOfAKey) {
  // Half of the tokens are of no use. Element 0 of the key says how long the others live.
  torch::manual_seed(1);
  const torch::Tensor keys = torch::randn({16384, 32}) * 3 + 5;
  const torch::Tensor mean = (keys.select(1, 0) - 5).abs() * 50 + 50;
  const torch::Tensor lifespans = (2 * mean * (torch::rand({16384}) < 0.5)).to(torch::kInt32);
  std::vector<double> losses;
  GateFitOptions options;
  options.batch = 256;
  options.epochs = 3;
  const GateLayer layer = fit_gate(keys, lifespans, options, [&](double loss) { losses.push_back(loss); });
  ASSERT_EQ(losses.size(), 3);
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_LT(losses.back(), 1.0);
  const torch::Tensor error = (apply_gate(layer, keys) - torch::log1p(mean) / std::log(4.0)).abs();
  EXPECT_LT(error.mean().item<double>(), 0.25);  // a factor of 1.4

  // The kernels' gate gives LibTorch's results, except for rounding to bf16.
  const LifespanGate gate(1, 32, {layer});
  std::vector<float> scores(16384);
  gate.score(nullptr, 0, keys.const_data_ptr<float>(), 16384, scores.data());
  const torch::Tensor difference = torch::tensor(scores) - apply_gate(layer, keys);
  EXPECT_LT(difference.abs().mean().item<double>(), 0.02);
  EXPECT_LT(difference.abs().max().item<double>(), 0.2);
}

TEST(GateReport, TellsGoodScoresFromBad) {
  // Key element 0 says how much attention a token gets.
  torch::manual_seed(1);
  constexpr int64_t kLength = 512, kEvery = 64;
  const torch::Tensor use = torch::rand({1, kLength}).pow(4);
  LayerLifespans layer;
  layer.keys = torch::randn({1, kLength, 32});
  layer.keys.select(2, 0).copy_(use);
  layer.keys = layer.keys.to(torch::kBFloat16);
  layer.lifespans = (use * 400).to(torch::kInt32);
  layer.sampled = (use / use.sum()).unsqueeze(1).expand({1, kLength / kEvery, kLength});
  GateLayer good, bad;  // the answer is 8 or -8 times key element 0
  for (int64_t i = 0; i < GateLayer::kDepth; ++i) {
    const auto [out, in] = GateLayer::shape(i, 32);
    good.weight[i].assign(static_cast<size_t>(out * in), 0.0f);
    good.bias[i].assign(static_cast<size_t>(out), 0.0f);
    good.weight[i][0] = i == GateLayer::kDepth - 1 ? 8.0f : 1.0f;
  }
  bad = good;
  bad.weight[3][0] = -8.0f;
  const KeepOptions keep{4, 32, 0.25};
  const GateQuality best = measure_gate(good, layer, kEvery, keep), worst = measure_gate(bad, layer, kEvery, keep);
  EXPECT_GT(best.recall, 0.8);
  EXPECT_GT(best.specificity, 0.8);
  EXPECT_LT(worst.recall, 0.2);
  EXPECT_LT(best.lost, 0.8 * best.lost_by_recency);
  EXPECT_GT(worst.lost, best.lost);
  EXPECT_DOUBLE_EQ(best.lost_by_norm, worst.lost_by_norm);
}

TEST(TrainGate, BeatsTheMeanOnHeldOutWindows) {
  ModelConfig config = tiny_config();
  const TorchLlama model(TinyWeights(config), torch::kFloat32);
  GateTrainingOptions options;
  options.lifespans = {0.05, 32, 0};
  options.keep = {4, 32, 0.25};
  options.fit.batch = 128;
  std::vector<std::string> events;
  TokenWindows training;
  for (uint64_t seed = 1; seed <= 6; ++seed) training.push_back(random_window(384, seed));
  const TrainedGate gate = train_gate(model, training, {random_window(384, 99)}, options,
                                      [&](const nlohmann::json& event) { events.push_back(event.at("event")); });
  EXPECT_EQ(gate.layers.size(), 3);
  EXPECT_EQ(gate.samples_per_layer, 6 * 2 * (192 - 4));
  EXPECT_EQ(events.size(), 7 + 3 * (6 + 1));
  double loss = 0;
  for (const GateQuality& quality : gate.quality) loss += quality.loss / 3;
  EXPECT_LT(loss, 1.0);
}

TEST(ImportanceFit, ExplainsWhatARepetitionLooksAt) {
  const ModelConfig config = tiny_config();
  const TorchLlama model(TinyWeights(config), torch::kFloat32);
  const std::vector<int64_t> window = random_window(384, 5), request = random_window(6, 6);
  ImportanceFit fit(config);
  fit.observe(model, window, request);
  const auto maps = fit.fit(1e-6), constant = fit.fit(1e12);
  ASSERT_EQ(maps.size(), 3);
  EXPECT_EQ(static_cast<int64_t>(maps[0].size()),
            config.n_kv_heads * (GateLayer::importance_features(config.n_kv_heads, config.head_dim) + 1));
  EXPECT_GT(fit.explained(model, window, request, maps), 0.15);
  EXPECT_NEAR(fit.explained(model, window, request, constant), 0, 1e-3);
}

class TrainingModule : public testing::Test {
 protected:
  static std::string error_of(const std::filesystem::path& module, const std::string& command,
                              const nlohmann::json& options) {
    try {
      run_training(module, command, options);
    } catch (const TrainingError& error) {
      return error.what();
    }
    return "no error";
  }
  const std::filesystem::path module_ =
      std::filesystem::path(SMARTKV_BINARY).parent_path() / training_module_path().filename();
};

TEST_F(TrainingModule, ErrorsComeBackAsText) {
  EXPECT_THAT(error_of("/nowhere/libsmartkv_training.so", "train-gate", {}),
              HasSubstr("(target smartkv_training; scripts/build_torch.sh"));
  EXPECT_THAT(error_of(module_, "train-nothing", {}), HasSubstr("train-nothing: this module has no such command"));
  const nlohmann::json options = {{"model", "/nowhere/model.gguf"}, {"text", "/nowhere/text"}, {"out", "/nowhere/out"}};
  EXPECT_THAT(error_of(module_, "train-gate", options), HasSubstr("model.gguf"));
  nlohmann::json wrong = options;
  wrong["epochs"] = 0;
  EXPECT_THAT(error_of(module_, "train-gate", wrong), HasSubstr("epochs: expected at least 1, found 0"));
}

}  // namespace
}  // namespace smartkv
