#include "engine/calibration/calibration.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/calibration/calibration_texts.h"
#include "engine/calibration/measure_frontier.h"
#include "engine/calibration/measure_sensitivity.h"
#include "engine/weights/model_fingerprint.h"
#include "engine/weights/safetensors.h"
#include "tests/cache/random_sensitivity.h"
#include "tests/engine/model/served_llama.h"
#include "tests/text/byte_tokenizer.h"
#include "tests/weights/weight_files.h"

namespace smartkv {
namespace {

using ::testing::HasSubstr;

constexpr CacheShape kShape{2, 3, 32, kernels::KvType::kBf16};

TEST(Calibration, FilesKeepASensitivity) {
  const Folder folder;
  const std::filesystem::path file = folder.path() / "model.safetensors";
  const auto written = random_sensitivity(kShape);
  write_sensitivity(file, *written);
  EXPECT_EQ(read_sensitivity(file, kShape).fingerprint(), written->fingerprint());
  EXPECT_FALSE(read_sensitivity(file, kShape).by_answers);
  EXPECT_TRUE(read_sensitivity(file, kShape).frontier.empty());
  Sensitivity by_answers = *written;
  by_answers.by_answers = true;
  by_answers.frontier = {{{{"policy", "k4v4"}}, 10, 0.1, 2, 0.3}, {{{"policy", "full"}}, 40}};
  write_sensitivity(file, by_answers);
  const Sensitivity read = read_sensitivity(file, kShape);
  EXPECT_TRUE(read.by_answers);
  EXPECT_EQ(frontier_json(read.frontier), frontier_json(by_answers.frontier));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);  // nothing unfinished is left
}

TEST(Calibration, FilesThatDoNotFitAreErrors) {
  const Folder folder;
  const std::filesystem::path file = folder.path() / "model.safetensors";
  const auto written = random_sensitivity(kShape);
  write_sensitivity(file, *written);
  CacheShape other = kShape;
  other.n_layers = 3;
  EXPECT_THAT(error_of([&] { read_sensitivity(file, other); }),
              HasSubstr("tensor \"k.lambda\": expected f32 [3, 3, 32]"));
  Sensitivity bad = *written;
  bad.v[1].lambda[3] = -1;
  write_sensitivity(file, bad);
  EXPECT_THAT(error_of([&] { read_sensitivity(file, kShape); }),
              HasSubstr("tensor \"v.lambda\": expected finite values of at least 0"));
  bad = *written;
  bad.k[0].mean[0] = std::numeric_limits<float>::quiet_NaN();
  write_sensitivity(file, bad);
  EXPECT_THAT(error_of([&] { read_sensitivity(file, kShape); }), HasSubstr("tensor \"k.mean\": expected finite"));
  bad = *written;
  bad.frontier = {{{{"policy", "full"}}, -1}};
  write_sensitivity(file, bad);
  EXPECT_THAT(error_of([&] { read_sensitivity(file, kShape); }), HasSubstr("frontier: expected more bytes"));
  write_safetensors(file, {}, TensorType::kF32, {{"texts", "1"}});
  EXPECT_THAT(error_of([&] { read_sensitivity(file, kShape); }), HasSubstr("with the texts of this program"));
  std::ofstream(file) << "no safetensors";
  EXPECT_NE(error_of([&] { read_sensitivity(file, kShape); }), "no error");
}

TEST(Calibration, TextsAreLongEnough) {
  for (const EmbeddedFile& text : calibration_texts()) {
    EXPECT_GT(text.text().size(), 4000) << text.file;  // a thousand tokens
  }
  EXPECT_EQ(calibration_texts().size(), 8);
}

TEST(Calibration, TokensOfAFolderAreTwoPartsOfEachText) {
  const ByteTokenizer bytes;
  const Tokenizer& tokenizer = bytes;
  std::vector<std::string> texts;
  for (const EmbeddedFile& text : calibration_texts()) {
    if (text.file.starts_with("frontier/")) texts.emplace_back(text.text());
  }
  const CalibrationTokens found = calibration_tokens(tokenizer, 800, "frontier");
  EXPECT_EQ(found.texts, 4);
  std::vector<TokenId> expected;
  for (const size_t half : {0, 1}) {
    for (const std::string& text : texts) {
      const auto part = tokenizer.encode(text.substr(100 * half, 100));
      expected.insert(expected.end(), part.begin(), part.end());
    }
  }
  EXPECT_EQ(found.tokens, expected);
}

TEST(Calibration, FilesAreInTheUsersCacheByFingerprint) {
  const TinyWeights weights(tiny_config()), other(tiny_config(), 2);
  const auto with = [&](const char* xdg, const char* home) {
    const std::pair<const char*, const char*> variables[] = {{"XDG_CACHE_HOME", xdg}, {"HOME", home}};
    std::vector<std::optional<std::string>> before;
    for (const auto& [name, value] : variables) {
      const char* const old = std::getenv(name);
      before.push_back(old == nullptr ? std::nullopt : std::optional<std::string>(old));
      value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
    }
    const std::filesystem::path file = calibration_file(weights), of_other = calibration_file(other);
    for (size_t i = 0; i < before.size(); ++i) {
      const char* const name = variables[i].first;
      before[i] ? ::setenv(name, before[i]->c_str(), 1) : ::unsetenv(name);
    }
    EXPECT_EQ(file.empty(), file == of_other);
    return file;
  };
  const std::string name = model_fingerprint(weights) + ".safetensors";
  EXPECT_EQ(with("/b", "/c"), "/b/smartkv/calibrations/" + name);
  EXPECT_EQ(with("", "/c"), "/c/.cache/smartkv/calibrations/" + name);
  EXPECT_EQ(with(nullptr, "/c"), "/c/.cache/smartkv/calibrations/" + name);
  EXPECT_EQ(with(nullptr, nullptr), "");
}

class CalibratedModel : public testing::Test {
 protected:
  std::shared_ptr<const Sensitivity> calibrate() {
    return smartkv::calibrate(*served_.model, weights_, tokenizer_, served_.context.shape, served_.pool, file_);
  }
  std::shared_ptr<const Sensitivity> found() { return find_sensitivity(file_, served_.context.shape); }

  TinyWeights weights_{tiny_config()};
  Served served_{weights_, "f32"};
  ByteTokenizer tokenizer_;
  Folder folder_;
  const std::filesystem::path file_ = folder_.path() / "calibrations" / "model.safetensors";
};

TEST_F(CalibratedModel, IsMeasuredOnce) {
  EXPECT_EQ(found(), nullptr);
  const auto measured = calibrate();
  const auto written = std::filesystem::last_write_time(file_);
  EXPECT_EQ(found()->fingerprint(), measured->fingerprint());
  EXPECT_EQ(calibrate()->fingerprint(), measured->fingerprint());
  EXPECT_EQ(std::filesystem::last_write_time(file_), written);

  std::ofstream(file_) << "damaged";
  EXPECT_EQ(found(), nullptr);
  EXPECT_EQ(calibrate()->fingerprint(), measured->fingerprint());
  EXPECT_NE(found(), nullptr);
}

TEST_F(CalibratedModel, HasAValueForEachChannel) {
  const auto measured = calibrate();
  for (const auto* sides : {&measured->k, &measured->v}) {
    ASSERT_EQ(sides->size(), 3 * 2);
    for (const SideSensitivity& side : *sides) {
      ASSERT_EQ(side.lambda.size(), 32);
      for (const float lambda : side.lambda) EXPECT_GT(lambda, 0);
    }
  }
}

TEST(MeasureFrontier, HasPoliciesThatNoCheaperOneBeats) {
  ModelConfig config = tiny_config();
  config.context_length = 1024;
  const TinyWeights weights(config);
  const Served served(weights, "f32");
  ThreadPool threads(2);
  std::vector<double> progress;
  const Frontier frontier =
      measure_frontier(*served.model, served.context.shape, threads, some_tokens(1024, config.vocab_size, 1), 2,
                       random_sensitivity(served.context.shape), [&](double done) { progress.push_back(done); });
  ASSERT_GT(frontier.size(), 3u);
  EXPECT_EQ(frontier.back().spec, nlohmann::json({{"policy", "full"}}));
  EXPECT_EQ(frontier.back().kl, 0);
  EXPECT_EQ(frontier.back().bytes_per_token, static_cast<double>(served.context.shape.bytes_per_token()));
  EXPECT_EQ(frontier_json(read_frontier(frontier_json(frontier))), frontier_json(frontier));
  for (const FrontierPoint& point : std::span(frontier).first(frontier.size() - 1)) {
    EXPECT_GT(point.kl, 0) << point.spec;
    EXPECT_GT(point.drift, 0) << point.spec;
    EXPECT_GE(point.perplexity_percent, 100 * point.kl) << point.spec;  // even where the text happens to gain
  }
  EXPECT_TRUE(std::ranges::is_sorted(progress));
  EXPECT_DOUBLE_EQ(progress.back(), 1);
}

// Answers give each side of a KV head one factor.
TEST(MeasureSensitivity, WeighsHeadsByAnswers) {
  ModelConfig config = tiny_config();
  config.context_length = 1024;
  const TinyWeights weights(config);
  const Served served(weights, "f32");
  std::mt19937 random(3);
  std::vector<TokenId> text(1024);
  for (TokenId& token : text) token = static_cast<TokenId>(random() % 256);
  ThreadPool threads(2);
  std::vector<double> progress;
  const auto measure = [&](bool by_answers) {
    return measure_sensitivity(*served.model, weights, served.context.shape, threads, text, by_answers,
                               [&](double done) { progress.push_back(done); });
  };
  const Sensitivity channels = measure(false), answers = measure(true);
  EXPECT_FALSE(channels.by_answers);
  EXPECT_TRUE(answers.by_answers);
  EXPECT_GT(progress.size(), 1);
  EXPECT_TRUE(std::ranges::is_sorted(progress));
  EXPECT_EQ(progress.back(), 1);
  std::set<float> factors;
  for (const auto side : {&Sensitivity::k, &Sensitivity::v}) {
    for (size_t i = 0; i < channels.k.size(); ++i) {
      const std::vector<float>&before = (channels.*side)[i].lambda, &after = (answers.*side)[i].lambda;
      factors.insert(after[0] / before[0]);
      for (size_t d = 0; d < before.size(); ++d) EXPECT_NEAR(after[d] / before[d] / (after[0] / before[0]), 1, 1e-5);
      EXPECT_GT(after[0], 0);
    }
  }
  EXPECT_EQ(factors.size(), 2 * channels.k.size());
  EXPECT_EQ(measure(true).fingerprint(), answers.fingerprint());
}

TEST(MeasureSensitivity, ShortTextsGiveChannelsOnly) {
  const TinyWeights weights(tiny_config());
  const Served served(weights, "f32");
  ThreadPool threads(1);
  const std::vector<TokenId> text(100, 5);
  EXPECT_FALSE(measure_sensitivity(*served.model, weights, served.context.shape, threads, text, true).by_answers);
}

}  // namespace
}  // namespace smartkv
