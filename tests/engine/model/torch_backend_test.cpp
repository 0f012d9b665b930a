// Errors where the torch backend is not available, and the options that lead there.
#include "engine/model/torch_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model/llama.h"
#include "tests/engine/model/tiny_llama.h"

namespace smartkv {
namespace {

using testing::AllOf;
using testing::HasSubstr;

template <typename F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const ModelError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TorchBackend, SaysWhatIsMissingAndHowToGetIt) {
  const TinyWeights weights(tiny_config());
  const std::string error = error_of(
      [&] { load_torch_backend("no_such_folder/libsmartkv_torch_backend.so", weights, ProductType::kF32, "cpu", 1); });
  EXPECT_THAT(error, AllOf(HasSubstr("backend: torch needs no_such_folder/libsmartkv_torch_backend.so"), HasSubstr("LibTorch"),
                           HasSubstr("scripts/build_torch.sh")));
}

TEST(Backend, OptionsThatAreNotServedAreNamed) {
  const TinyWeights weights(tiny_config());
  ThreadPool pool(1);
  const auto refusal = [&](const LlamaOptions& options) { return error_of([&] { load_llama(weights, options, pool); }); };
  EXPECT_THAT(refusal({.backend = "tensorrt"}), HasSubstr("backend: expected native or torch, found \"tensorrt\""));
  for (const char* backend : {"native", "torch"}) {
    EXPECT_THAT(refusal({.backend = backend, .device = "cuda:0"}),
                AllOf(HasSubstr("device: expected cpu, found \"cuda:0\""), HasSubstr("built without CUDA")));
    for (const char* device : {"tpu", "cuda:", "cuda:-1", "cuda:0x"}) {
      EXPECT_THAT(refusal({.backend = backend, .device = device}),
                  HasSubstr(std::string("device: expected cpu or cuda:N, found \"") + device + '"'));
    }
  }
  EXPECT_THAT(refusal({.weights = "int4", .backend = "torch"}),
              HasSubstr("weights: expected auto, bf16 or f32, which backend torch has, found \"int4\""));
  EXPECT_THAT(refusal({.dtype = "f16"}), HasSubstr("dtype: expected auto, bf16 or f32, which backend native has, found \"f16\""));
  EXPECT_THAT(refusal({.dtype = "f16", .weights = "bf16", .backend = "torch"}),
              HasSubstr("weights: expected auto, which is f16 with dtype f16, found \"bf16\""));
  EXPECT_THAT(refusal({.backend = "torch", .cuda_graphs = "yes"}), HasSubstr("cuda_graphs: expected auto, on or off, found \"yes\""));
  EXPECT_THAT(refusal({.backend = "torch", .cuda_graphs = "on"}), HasSubstr("cuda_graphs: expected auto or off on device cpu, found \"on\""));
  EXPECT_THAT(refusal({.dtype = "f8", .backend = "torch"}), HasSubstr("dtype: expected auto, bf16, f16 or f32, found \"f8\""));
}

}  // namespace
}  // namespace smartkv
