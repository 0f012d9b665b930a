// Errors where the torch backend is not available, and the options that lead there.
#include "engine/model/torch_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model/llama.h"
#include "tests/engine/model/tiny_llama.h"
#include "tests/weights/weight_files.h"

namespace smartkv {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(TorchBackend, SaysWhatIsMissingAndHowToGetIt) {
  const TinyWeights weights(tiny_config());
  const std::string error = error_of(
      [&] { load_torch_backend("no_such_folder/libsmartkv_torch_backend.so", weights, ProductType::kF32, "cpu", 1); });
  EXPECT_THAT(error, AllOf(HasSubstr("backend: torch needs no_such_folder/libsmartkv_torch_backend.so"),
                           HasSubstr("LibTorch"), HasSubstr("scripts/build_torch.sh")));
}

TEST(Backend, OptionsThatAreNotServedAreNamed) {
  const TinyWeights weights(tiny_config());
  ThreadPool pool(1);
  const auto refusal = [&](const ModelOptions& options) {
    return error_of([&] { load_llama(weights, options, pool); });
  };
  for (const Backend backend : {Backend::kNative, Backend::kTorch}) {
    EXPECT_THAT(refusal({.backend = backend, .device = "cuda:0"}),
                AllOf(HasSubstr("device: expected cpu, found \"cuda:0\""), HasSubstr("built without CUDA")));
    for (const char* device : {"tpu", "cuda:", "cuda:-1", "cuda:0x"}) {
      EXPECT_THAT(refusal({.backend = backend, .device = device}),
                  HasSubstr(std::string("device: expected cpu or cuda:N, found \"") + device + '"'));
    }
  }
  EXPECT_THAT(refusal({.weights = WeightFormat::kInt4, .backend = Backend::kTorch}),
              HasSubstr("weights: expected auto, bf16 or f32 with backend torch, found \"int4\""));
  EXPECT_THAT(refusal({.dtype = DataType::kF16}),
              HasSubstr("dtype: expected auto, bf16 or f32 with backend native, found \"f16\""));
  EXPECT_THAT(refusal({.dtype = DataType::kF16, .weights = WeightFormat::kBf16, .backend = Backend::kTorch}),
              HasSubstr("weights: expected auto, which stores f16, with dtype f16, found \"bf16\""));
  EXPECT_THAT(refusal({.backend = Backend::kTorch, .cuda_graphs = CudaGraphs::kOn}),
              HasSubstr("cuda_graphs: expected auto or off on device cpu, found \"on\""));
}

}  // namespace
}  // namespace smartkv
