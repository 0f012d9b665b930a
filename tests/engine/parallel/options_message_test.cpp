// Every option reaches the other ranks.
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "engine/parallel/tensor_parallel.h"

namespace smartkv {
namespace {

bool operator==(const RopeStretch& a, const RopeStretch& b) { return a.scaling == b.scaling && a.factor == b.factor; }

// Returns whether all options are equal. A new option does not compile until it is named here.
bool same(const ModelOptions& a, const ModelOptions& b) {
  const auto& [path, dtype, weights, weights_lock, backend, device, cuda_graphs, tensor_parallel, threads,
               context_length, rope_scaling, int4_floats, gates, channel_worth] = a;
  return path == b.path && dtype == b.dtype && weights == b.weights && weights_lock == b.weights_lock &&
         backend == b.backend && device == b.device && cuda_graphs == b.cuda_graphs &&
         tensor_parallel == b.tensor_parallel && threads == b.threads && context_length == b.context_length &&
         rope_scaling == b.rope_scaling && int4_floats == b.int4_floats && gates == b.gates &&
         channel_worth == b.channel_worth;
}

TEST(OptionsMessage, CarriesEveryOption) {
  const std::vector<std::function<void(ModelOptions&)>> changes = {
      [](auto& o) { o.path = "folder with \"quotes\"/\xff.gguf"; },  // a path is any bytes
      [](auto& o) { o.dtype = DataType::kF32; },
      [](auto& o) { o.weights = WeightFormat::kInt4; },
      [](auto& o) { o.weights_lock = WeightsLock::kOn; },
      [](auto& o) { o.backend = Backend::kTorch; },
      [](auto& o) { o.device = "cuda:3"; },
      [](auto& o) { o.cuda_graphs = CudaGraphs::kOff; },
      [](auto& o) { o.tensor_parallel = 4; },
      [](auto& o) { o.threads = 7; },
      [](auto& o) { o.context_length = int64_t{1} << 40; },
      [](auto& o) { o.rope_scaling.scaling = RopeScaling::kYarn; },
      [](auto& o) { o.rope_scaling.factor = 2.5; },
      [](auto& o) { o.int4_floats = true; },
      [](auto& o) {
        o.gates = {{"default", "a.safetensors"}, {"b", "c"}};
      },
      [](auto& o) {
        o.channel_worth = {{"w", "d.json"}};
      }};
  ModelOptions all;
  EXPECT_TRUE(same(read_options(options_message(all)), all));
  for (size_t i = 0; i < changes.size(); ++i) {
    ModelOptions one;
    changes[i](one);
    changes[i](all);
    EXPECT_FALSE(same(one, {})) << i;
    EXPECT_TRUE(same(read_options(options_message(one)), one)) << i;
  }
  EXPECT_TRUE(same(read_options(options_message(all)), all));
}

}  // namespace
}  // namespace smartkv
