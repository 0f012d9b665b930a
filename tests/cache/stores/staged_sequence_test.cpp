#include "cache/stores/staged_sequence.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "cache/stores/slot_store.h"
#include "tests/cache/cache_driver.h"
#include "tests/cache/stores/named_scorer.h"

namespace smartkv {
namespace {

// A store that takes every token that reaches it and shows none of them.
class Collector final : public TokenStore {
 public:
  struct Taken {
    std::vector<float> k, v;
  };
  using Tokens = std::vector<std::map<int32_t, Taken>>;  // by layer and KV head

  Collector(const CacheShape& shape, Tokens* taken) : shape_(shape), taken_(taken) {}
  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<Collector>(*this); }
  int64_t entries(int64_t) const override { return 0; }
  void view(int64_t, std::vector<kernels::KvSegment>*) const override {}
  void positions(int64_t, int64_t, std::vector<int64_t>*) const override {}
  void take(const StageView&, int64_t layer, EvictedTokens* tokens) override {
    for (int64_t head = 0; head < shape_.n_kv_heads; ++head) {
      int32_t last = -1;
      for (const EvictedTokens::Token& token : tokens->of(head)) {
        EXPECT_GT(token.position, last);
        last = token.position;
        const Taken taken = read(tokens->place(head, token));
        auto& of_head = (*taken_)[static_cast<size_t>(layer * shape_.n_kv_heads + head)];
        EXPECT_TRUE(of_head.emplace(token.position, taken).second) << "twice: " << token.position;
      }
      tokens->leave(head, {});
    }
  }
  StoreBytes bytes_at(const StageView&, const Moment&) const override { return {}; }
  void save(StateWriter*) const override {}
  void load(const StageView&, StateReader*) override {}
  void add_stats(const StageView&, CacheStats*) const override {}

 private:
  // Returns the contents of a place that the CPU's backend can read.
  Taken read(const kernels::TokenPlace& place) const {
    const auto dim = static_cast<size_t>(shape_.head_dim);
    Taken taken{std::vector<float>(dim), std::vector<float>(dim)};
    if (place.slot == kernels::TokenPlace::kRow) {
      std::copy_n(static_cast<const float*>(place.k), dim, taken.k.begin());
      std::copy_n(static_cast<const float*>(place.v), dim, taken.v.begin());
    } else {
      const kernels::PageRead job = read_of(place, taken.k.data(), taken.v.data());
      kernels::make_cpu_kv_backend(nullptr)->read(shape_.type, shape_.head_dim, {&job, 1});
    }
    return taken;
  }

  CacheShape shape_;
  Tokens* taken_;
};

class StagedSequenceTest : public testing::Test {
 protected:
  ThreadPool threads_{2};
  CacheShape shape_{2, 3, 64, kernels::KvType::kBf16};
  PolicyContext context_{shape_, PagePool::create(shape_), &threads_};
};

TEST_F(StagedSequenceTest, WhatAStoreDoesNotHoldReachesTheNext) {
  for (const char* scorer : {"random", "attention"}) {
    for (const bool exact : {false, true}) {
      EvictionOptions options{.tokens = 448, .sinks = 4, .window = 128, .exact_prefill = exact, .hand_on = true};
      Collector::Tokens taken(static_cast<size_t>(shape_.n_layers * shape_.n_kv_heads));
      std::vector<std::unique_ptr<TokenStore>> stores;
      stores.push_back(SlotStoreFactory(options, named_scorer(scorer)).create(context_));
      stores.push_back(std::make_unique<Collector>(shape_, &taken));
      Boundaries boundaries = options.boundaries();
      boundaries.prompt_tokens = 700;
      StagedSequence cache(context_, boundaries, std::move(stores));
      CacheDriver(shape_, 9, &threads_).run(&cache, 1000, 512);
      for (int64_t layer = 0; layer < shape_.n_layers; ++layer) {
        for (int64_t head = 0; head < shape_.n_kv_heads; ++head) {
          std::vector<int64_t> positions = cache.positions(layer, head);
          const auto& lost = taken[static_cast<size_t>(layer * shape_.n_kv_heads + head)];
          EXPECT_FALSE(lost.empty());
          for (const auto& [position, token] : lost) positions.push_back(position);
          std::sort(positions.begin(), positions.end());
          std::vector<int64_t> all(1000);
          std::iota(all.begin(), all.end(), int64_t{0});
          ASSERT_EQ(positions, all) << scorer << ", layer " << layer << ", head " << head;
        }
      }
    }
  }
}

TEST_F(StagedSequenceTest, TokensReachTheNextStoreAsTheyWereWritten) {
  EvictionOptions options{.tokens = 320, .sinks = 4, .window = 64, .exact_prefill = false, .hand_on = true};
  Collector::Tokens taken(static_cast<size_t>(shape_.n_layers * shape_.n_kv_heads));
  std::vector<std::unique_ptr<TokenStore>> stores;
  stores.push_back(SlotStoreFactory(options, named_scorer("random")).create(context_));
  stores.push_back(std::make_unique<Collector>(shape_, &taken));
  StagedSequence cache(context_, options.boundaries(), std::move(stores));
  CacheDriver(shape_, 9, &threads_).run(&cache, 900, 64);
  Collector::Tokens all(taken.size());
  std::vector<std::unique_ptr<TokenStore>> only;
  only.push_back(std::make_unique<Collector>(shape_, &all));
  StagedSequence collected(context_, options.boundaries(), std::move(only));
  CacheDriver(shape_, 9, &threads_).run(&collected, 900, 64);
  for (size_t i = 0; i < taken.size(); ++i) {
    ASSERT_GT(taken[i].size(), 400u);
    for (const auto& [position, token] : taken[i]) {
      EXPECT_EQ(token.k, all[i].at(position).k);
      EXPECT_EQ(token.v, all[i].at(position).v);
    }
  }
}

}  // namespace
}  // namespace smartkv
