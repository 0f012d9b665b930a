#include "engine/model/model_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/weights/weights.h"

namespace smartkv {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Returns the messages of all checks that fail.
std::vector<std::string> model_option_errors(const ModelOptions& options) {
  std::vector<std::string> errors;
  check_model_options(options, [&](const std::function<void()>& check) {
    try {
      check();
    } catch (const ModelError& error) {
      errors.emplace_back(error.what());
    }
  });
  return errors;
}

template <typename E>
void expect_every_name_found(size_t values) {
  ASSERT_EQ(kEnumNames<E>.size(), values);
  for (size_t i = 0; i < values; ++i) {
    const E value = static_cast<E>(i);
    EXPECT_FALSE(name(value).empty());
    EXPECT_EQ(from_name<E>(name(value)), value) << name(value);
  }
  for (const char* wrong : {"", "Auto", "auto ", "fp8"}) EXPECT_EQ(from_name<E>(wrong), std::nullopt) << wrong;
}

TEST(ModelOptions, EveryValueHasANameOfItsOwn) {
  expect_every_name_found<DataType>(static_cast<size_t>(DataType::kF32) + 1);
  expect_every_name_found<WeightFormat>(static_cast<size_t>(WeightFormat::kInt4) + 1);
  expect_every_name_found<Backend>(static_cast<size_t>(Backend::kTorch) + 1);
  expect_every_name_found<CudaGraphs>(static_cast<size_t>(CudaGraphs::kOff) + 1);
  expect_every_name_found<WeightsLock>(static_cast<size_t>(WeightsLock::kOn) + 1);
  expect_every_name_found<DraftCopy>(static_cast<size_t>(DraftCopy::kInt4) + 1);
  expect_every_name_found<RopeScaling>(static_cast<size_t>(RopeScaling::kLongRope) + 1);
  EXPECT_EQ(name(DataType::kF16), "f16");
  EXPECT_EQ(name(WeightFormat::kFile), "file");
  EXPECT_EQ(name(Backend::kTorch), "torch");
  EXPECT_EQ(name(CudaGraphs::kOn), "on");
  EXPECT_EQ(name(DraftCopy::kNone), "none");
  EXPECT_EQ(name(RopeScaling::kYarn), "yarn");
}

TEST(ModelOptions, DefaultsAreAccepted) { EXPECT_THAT(model_option_errors({}), IsEmpty()); }

TEST(ModelOptions, TypesThatDoNotGoTogetherAreNamed) {
  EXPECT_THAT(
      model_option_errors({.dtype = DataType::kF16}),
      ElementsAre("dtype: expected auto, bf16 or f32 with backend native, found \"f16\"; --backend torch supports it"));
  EXPECT_THAT(model_option_errors({.dtype = DataType::kF32, .weights = WeightFormat::kInt4}),
              ElementsAre("weights: expected auto or f32 with dtype f32, found \"int4\""));
  EXPECT_THAT(model_option_errors({.dtype = DataType::kBf16, .weights = WeightFormat::kF32}),
              ElementsAre("weights: expected auto, file, bf16, int8 or int4 with dtype bf16, found \"f32\""));
  EXPECT_THAT(model_option_errors({.weights = WeightFormat::kFile, .backend = Backend::kTorch}),
              ElementsAre("weights: expected auto, bf16 or f32 with backend torch, found \"file\""));
  EXPECT_THAT(
      model_option_errors({.dtype = DataType::kF16, .weights = WeightFormat::kBf16, .backend = Backend::kTorch}),
      ElementsAre("weights: expected auto, which stores f16, with dtype f16, found \"bf16\""));
  EXPECT_THAT(model_option_errors({.dtype = DataType::kF16, .backend = Backend::kTorch}), IsEmpty());
  EXPECT_THAT(model_option_errors({.weights = WeightFormat::kF32}), IsEmpty());
  EXPECT_EQ(product_type({.weights = WeightFormat::kF32}), ProductType::kF32);
  EXPECT_EQ(product_type({.weights = WeightFormat::kInt8}), ProductType::kBf16);
  EXPECT_EQ(product_type({.dtype = DataType::kF16}), ProductType::kF16);
}

TEST(ModelOptions, OnlyTheNativeBackendLocksWeights) {
  EXPECT_THAT(model_option_errors({.weights_lock = WeightsLock::kOn}), IsEmpty());
  EXPECT_THAT(model_option_errors({.weights_lock = WeightsLock::kOn, .backend = Backend::kTorch}),
              ElementsAre("weights_lock: expected off with backend torch, found \"on\""));
}

TEST(ModelOptions, SizesAreInRange) {
  EXPECT_THAT(model_option_errors({.tensor_parallel = 0, .threads = -1, .context_length = -2}),
              ElementsAre("threads: expected at least 0, found -1", "tensor_parallel: expected at least 1, found 0",
                          "context_length: expected at least 0, found -2"));
}

TEST(ModelOptions, SeveralRanksNeedTorchAndHaveNoCudaGraphs) {
  EXPECT_THAT(
      model_option_errors({.tensor_parallel = 2}),
      ElementsAre("tensor_parallel: expected 1 with backend native, found 2; --backend torch supports several ranks"));
  ModelOptions options{.backend = Backend::kTorch, .device = "cuda:0", .tensor_parallel = 2};
  // A program without CUDA refuses the device, too.
  EXPECT_THAT(model_option_errors(options), Not(testing::Contains(HasSubstr("cuda_graphs"))));
  options.cuda_graphs = CudaGraphs::kOn;
  EXPECT_THAT(model_option_errors(options),
              testing::Contains(HasSubstr("cuda_graphs: expected auto or off with tensor_parallel 2, ")));
  options.tensor_parallel = 1;
  EXPECT_THAT(model_option_errors(options), Not(testing::Contains(HasSubstr("cuda_graphs"))));
  EXPECT_THAT(model_option_errors({.cuda_graphs = CudaGraphs::kOn}),
              ElementsAre(HasSubstr("cuda_graphs: expected auto or off on device cpu, found \"on\"")));
}

TEST(ModelOptions, EveryErrorIsReported) {
  EXPECT_THAT(model_option_errors({.dtype = DataType::kF16,
                                   .weights = WeightFormat::kInt4,
                                   .device = "tpu",
                                   .tensor_parallel = 2,
                                   .threads = -1}),
              ElementsAre(HasSubstr("threads: "), HasSubstr("device: expected cpu or cuda:N, found \"tpu\""),
                          HasSubstr("dtype: "), HasSubstr("weights: "), HasSubstr("tensor_parallel: ")));
  EXPECT_THAT([] { check_model_options({.dtype = DataType::kF16}); },
              testing::ThrowsMessage<ModelError>(HasSubstr("dtype: ")));
}

TEST(RopeScalingOption, IsReadAndWrittenAlike) {
  for (const json& option :
       {json(nullptr), json("linear"), json("dynamic"), json("yarn"), json({{"type", "yarn"}, {"factor", 2.5}})}) {
    EXPECT_EQ(rope_scaling_json(parse_rope_scaling(option)), option);
  }
  EXPECT_EQ(parse_rope_scaling("none").scaling, RopeScaling::kNone);
  EXPECT_EQ(parse_rope_scaling({{"rope_type", "dynamic"}}).scaling, RopeScaling::kDynamic);
  EXPECT_EQ(parse_rope_scaling({{"type", "linear"}, {"factor", 4}}).factor, 4);
}

TEST(RopeScalingOption, WhatIsWrongIsNamed) {
  const auto error_of = [](const json& option) -> std::string {
    try {
      parse_rope_scaling(option);
    } catch (const ModelError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of("llama3"), "rope_scaling: expected none, linear, dynamic or yarn, found \"llama3\"");
  EXPECT_EQ(error_of("longrope"), "rope_scaling: expected none, linear, dynamic or yarn, found \"longrope\"");
  EXPECT_EQ(error_of({{"type", "stretch"}}),
            "rope_scaling.type: expected none, linear, dynamic or yarn, found \"stretch\"");
  EXPECT_EQ(error_of({{"factor", 2}}), "rope_scaling.type: expected none, linear, dynamic or yarn, found null");
  EXPECT_EQ(error_of({{"type", "yarn"}, {"factor", 0.5}}),
            "rope_scaling.factor: expected a number from 1 to 1024, found 0.5");
  EXPECT_EQ(error_of({{"type", "yarn"}, {"factr", 2}}),
            "rope_scaling: expected only the members type and factor, found \"factr\"");
}

TEST(SettleContext, FollowsFromTheFactorAndIsBoundedByIt) {
  ModelOptions options{.rope_scaling = {RopeScaling::kYarn, 4}};
  settle_context(1000, &options);
  EXPECT_EQ(options.context_length, 4000);
  options.context_length = 4001;
  EXPECT_THROW(settle_context(1000, &options), ModelError);
  options = {.rope_scaling = {RopeScaling::kYarn, 0}};
  EXPECT_THROW(settle_context(1000, &options), ModelError);  // neither a factor nor a longer context
  options.context_length = 1001;
  EXPECT_NO_THROW(settle_context(1000, &options));
  options.rope_scaling = {};
  EXPECT_THROW(settle_context(1000, &options), ModelError);  // longer than the model's own
}

TEST(DraftOptions, RunOnTheNativeBackendAndTheCpu) {
  const ModelOptions target{.path = "model.gguf",
                            .dtype = DataType::kF16,
                            .backend = Backend::kTorch,
                            .device = "cuda:0",
                            .cuda_graphs = CudaGraphs::kOff,
                            .threads = 3,
                            .context_length = 4000,
                            .rope_scaling = {RopeScaling::kYarn, 4},
                            .gates = {{"default", "gates.safetensors"}}};
  const ModelOptions copy = draft_options(target, WeightFormat::kInt4), draft = draft_model_options(target);
  for (const ModelOptions& options : {copy, draft}) {
    EXPECT_EQ(options.dtype, DataType::kBf16);  // the native backend has no f16
    EXPECT_EQ(options.backend, Backend::kNative);
    EXPECT_EQ(options.device, "cpu");
    EXPECT_EQ(options.cuda_graphs, CudaGraphs::kAuto);
    EXPECT_EQ(options.context_length, 4000);
    EXPECT_EQ(options.rope_scaling.scaling, RopeScaling::kYarn);
    EXPECT_THAT(model_option_errors(options), IsEmpty());
  }
  EXPECT_EQ(copy.weights, WeightFormat::kInt4);
  EXPECT_FALSE(copy.int4_floats);
  EXPECT_EQ(copy.rope_scaling.factor, 4);
  EXPECT_EQ(draft.weights, WeightFormat::kFile);
  EXPECT_TRUE(draft.int4_floats);
  EXPECT_EQ(draft.rope_scaling.factor, 0);  // follows from the draft's own context
}

TEST(DraftOptions, DraftsAreLockedAsTheModelIs) {
  EXPECT_EQ(draft_options({.weights_lock = WeightsLock::kOn}, WeightFormat::kInt4).weights_lock, WeightsLock::kOn);
  EXPECT_EQ(draft_model_options({}).weights_lock, WeightsLock::kOff);
}

TEST(DraftOptions, WeightsAreOnlyReducedIfTheyMayBe) {
  for (const WeightFormat weights : {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kF32}) {
    const ModelOptions draft = draft_model_options({.weights = weights});
    EXPECT_EQ(draft.weights, weights);
    EXPECT_FALSE(draft.int4_floats);
  }
  EXPECT_FALSE(draft_model_options({.dtype = DataType::kF32}).int4_floats);
  EXPECT_EQ(draft_model_options({.weights = WeightFormat::kBf16}).weights, WeightFormat::kFile);
}

}  // namespace
}  // namespace smartkv
