// Decoding in steady state must not allocate.
#include <gtest/gtest.h>

#include "cache/policy.h"
#include "engine/model/llama.h"
#include "tests/allocations.h"
#include "tests/engine/model/tiny_llama.h"

namespace smartkv {
namespace {

std::atomic<int64_t> n_allocations{0};

bool count_allocation() {
  ++n_allocations;
  return false;
}

class Allocation : public testing::TestWithParam<WeightFormat> {};

TEST_P(Allocation, DecodeInsideAPageAllocatesNothing) {
  const TinyWeights weights(tiny_config());
  ThreadPool pool(2);
  const ModelOptions options{.weights = GetParam()};
  const auto model = load_llama(weights, options, pool);
  const CacheShape shape = llama_cache_shape(weights.config(), options);
  const auto policy = make_policy({shape, PagePool::create(shape)}, nullptr);
  std::vector<std::unique_ptr<SequenceCache>> caches;
  std::vector<SequenceInput> inputs;
  const std::vector<TokenId> prompt(70, 5);
  const TokenId next = 9;
  for (int i = 0; i < 3; ++i) inputs.push_back({prompt, caches.emplace_back(policy->new_sequence(0)).get(), 1});
  std::vector<float> logits(static_cast<size_t>(3 * weights.config().vocab_size));
  model->forward(inputs, logits.data());
  for (SequenceInput& input : inputs) input.tokens = {&next, 1};
  model->forward(inputs, logits.data());
  n_allocations = 0;
  allocation_fails = count_allocation;
  for (int i = 0; i < 40; ++i) model->forward(inputs, logits.data());
  allocation_fails = nullptr;
  EXPECT_EQ(n_allocations, 0);
}

INSTANTIATE_TEST_SUITE_P(Types, Allocation,
                         testing::Values(WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8,
                                         WeightFormat::kInt4));

}  // namespace
}  // namespace smartkv
