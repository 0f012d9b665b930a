#include "engine/engine_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/weights/weights.h"

namespace smartkv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns the messages of all checks that fail.
std::vector<std::string> engine_option_errors(const EngineOptions& options) {
  std::vector<std::string> errors;
  check_engine_options(options, [&](const std::function<void()>& check) {
    try {
      check();
    } catch (const std::runtime_error& error) {
      errors.emplace_back(error.what());
    }
  });
  return errors;
}

TEST(EngineOptions, DefaultsAreAccepted) { EXPECT_THAT(engine_option_errors({}), IsEmpty()); }

TEST(EngineOptions, OptionsOfTheModelAreChecked) {
  EngineOptions options;
  options.model.dtype = DataType::kF16;
  EXPECT_THAT(engine_option_errors(options),
              ElementsAre(HasSubstr("dtype: expected auto, bf16 or f32 with backend native, found \"f16\"")));
  options.model.dtype = DataType::kF32;
  options.model.weights = WeightFormat::kInt4;
  EXPECT_THAT(engine_option_errors(options),
              ElementsAre("weights: expected auto or f32 with dtype f32, found \"int4\""));
  EXPECT_THROW(check_engine_options(options), ModelError);
}

TEST(EngineOptions, A4BitCopyNeedsOneRankAnd16BitActivations) {
  EngineOptions options;
  options.draft_weights = DraftCopy::kInt4;
  EXPECT_THAT(engine_option_errors(options), IsEmpty());
  options.model.weights = WeightFormat::kF32;
  EXPECT_THAT(engine_option_errors(options),
              ElementsAre("draft_weights: expected none with f32 activations (dtype auto, weights f32), because "
                          "4-bit weights need bf16, found \"int4\""));
  options.model = {.backend = Backend::kTorch, .tensor_parallel = 2};
  EXPECT_THAT(engine_option_errors(options),
              ElementsAre("draft_weights: expected none with tensor_parallel 2, which does not support drafting "
                          "with the model's own weights, found \"int4\""));
}

TEST(EngineOptions, AProcessHasAtMost64Threads) {
  EngineOptions options;
  options.model.threads = 64;
  EXPECT_THAT(engine_option_errors(options), IsEmpty());
  options.model.threads = 65;
  EXPECT_THAT(engine_option_errors(options),
              ElementsAre("threads: expected at most 64 per process, found 65 for 1 processes"));
  options.model = {.backend = Backend::kTorch, .tensor_parallel = 2, .threads = 128};
  EXPECT_THAT(engine_option_errors(options), IsEmpty());
  options.model.threads = 129;
  EXPECT_THAT(engine_option_errors(options),
              ElementsAre("threads: expected at most 64 per process, found 129 for 2 processes"));
}

TEST(EngineOptions, MemoryAndDirectoriesGoWithTheDeviceAndTheRanks) {
  EngineOptions options;
  options.kv_offload_bytes = 1;
  EXPECT_THAT(engine_option_errors(options), ElementsAre(HasSubstr("kv_offload_bytes: expected 0 on device cpu, ")));
  options = {};
  options.model = {.backend = Backend::kTorch, .tensor_parallel = 2};
  options.prefix_cache_dir = "prefixes";
  EXPECT_THAT(engine_option_errors(options),
              ElementsAre(HasSubstr("prefix_cache_dir: expected none with tensor_parallel 2, ")));
}

TEST(EngineOptions, EveryErrorIsReported) {
  EngineOptions options;
  options.model.threads = -1;
  options.model.dtype = DataType::kF16;
  options.max_queue = 0;
  options.prefix_cache_bytes = -2;
  options.kv_cache = "ballanced";
  EXPECT_THAT(
      engine_option_errors(options),
      ElementsAre(HasSubstr("threads: expected at least 0, found -1"), HasSubstr("dtype: "),
                  HasSubstr("prefix_cache_bytes: expected at least -1, found -2"),
                  HasSubstr("max_queue: expected at least 1, found 0"), HasSubstr("kv_cache: expected one of")));
}

}  // namespace
}  // namespace smartkv
