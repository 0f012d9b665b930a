// Steady-state decode allocates nothing: every allocation of this program is counted.
#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "cache/policy.h"
#include "engine/model/llama.h"
#include "tests/engine/model/tiny_llama.h"

namespace {

std::atomic<int64_t> allocations{0};

void* counted(size_t size, size_t alignment) {
  ++allocations;
  void* p = alignment <= alignof(std::max_align_t) ? std::malloc(size == 0 ? 1 : size)
                                                   : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

void* operator new(size_t size) { return counted(size, 1); }
void* operator new[](size_t size) { return counted(size, 1); }
// std::stable_sort's; its memory goes through operator delete below, too.
void* operator new(size_t size, const std::nothrow_t&) noexcept { return counted(size, 1); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return counted(size, 1); }
void* operator new(size_t size, std::align_val_t alignment) { return counted(size, static_cast<size_t>(alignment)); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }

namespace smartkv {
namespace {

class Allocation : public testing::TestWithParam<const char*> {};

TEST_P(Allocation, DecodeInsideAPageAllocatesNothing) {
  const TinyWeights weights(tiny_config());
  ThreadPool pool(2);
  const LlamaOptions options{std::string(GetParam()) == "f32" ? "f32" : "bf16", GetParam(), 0};
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
  const int64_t before = allocations;
  for (int i = 0; i < 40; ++i) model->forward(inputs, logits.data());
  EXPECT_EQ(allocations - before, 0);
}

INSTANTIATE_TEST_SUITE_P(Types, Allocation, testing::Values("f32", "bf16", "int8", "int4"));

}  // namespace
}  // namespace smartkv
