// Policies over KV heads that are divided among tensor-parallel ranks, which are threads here. The ranks must decide as
// one rank with all heads does, and must stay within the bounds of bytes that rank 0 reports.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cache/policy.h"
#include "tests/cache/cache_driver.h"
#include "tests/cache/random_gate.h"
#include "tests/cache/random_sensitivity.h"

namespace smartkv {
namespace {

constexpr int64_t kLayers = 2, kModelDim = 64, kGroup = 2, kPrompt = 500, kEnd = 900;

// The data that the ranks, which are threads here, exchange, and where they wait for each other.
struct Meeting {
  explicit Meeting(std::vector<int64_t> heads)
      : of_ranks(std::move(heads)), told(of_ranks.size()), all_told(std::ssize(told)), all_heard(std::ssize(told)) {}
  std::vector<int64_t> of_ranks;
  std::vector<std::vector<std::byte>> told;
  std::barrier<> all_told, all_heard;
};

class ThreadHeads final : public ModelHeads {
 public:
  ThreadHeads(Meeting* meeting, int64_t rank) : ModelHeads(meeting->of_ranks, rank), meeting_(meeting) {}
  std::vector<std::vector<std::byte>> exchange(std::span<const std::byte> own) override {
    meeting_->told[static_cast<size_t>(rank())].assign(own.begin(), own.end());
    meeting_->all_told.arrive_and_wait();
    std::vector<std::vector<std::byte>> all = meeting_->told;
    meeting_->all_heard.arrive_and_wait();
    return all;
  }

 private:
  Meeting* meeting_;
};

// One pass and its commit.
struct Step {
  // Bytes of the pool: held before the pass, the bound of their growth in it, their peak, and max_bytes().
  int64_t held = 0, growth = 0, peak = 0, bound = 0;
};

struct Rank {
  std::vector<Step> steps;
  std::vector<std::vector<float>> outputs;
  CacheStats stats;
  int64_t in_use = 0;
  std::map<std::string, double> details;
};

// Runs a prompt and then decodes. Forks the cache at the first pass at or after token `forked_at` and keeps the fork to
// the end. With a null `meeting`, one rank has all heads.
Rank run(const nlohmann::json& spec, int64_t all_heads, Meeting* meeting, int64_t rank, int64_t forked_at) {
  CacheShape whole{kLayers, all_heads, kModelDim, kernels::KvType::kF32}, shape = whole;
  const std::shared_ptr<ThreadHeads> heads =
      meeting == nullptr ? nullptr : std::make_shared<ThreadHeads>(meeting, rank);
  if (heads != nullptr) shape.n_kv_heads = heads->of_rank(rank);
  const auto pool = PagePool::create(shape);
  PolicyContext context{shape, pool};
  context.rope = [](int64_t position, float* cos, float* sin) {
    for (int64_t i = 0; i < kModelDim / 2; ++i) {
      const float angle = static_cast<float>(position) * std::pow(1e-4f, static_cast<float>(2 * i) / kModelDim);
      cos[i] = std::cos(angle);
      sin[i] = std::sin(angle);
    }
  };
  context.load_gate = [whole](const std::string&) { return random_gate(whole); };
  context.load_sensitivity = [whole] { return random_sensitivity(whole); };
  context.heads = heads;
  CacheDriver driver(shape, kGroup * shape.n_kv_heads, pool->backend(), context.first_kv_head(), all_heads);
  const auto policy = make_policy(context, spec);
  const auto cache = policy->new_sequence(kPrompt);
  std::unique_ptr<SequenceCache> fork;
  Rank result;
  while (cache->tokens() < kEnd) {
    const int64_t at = cache->tokens(),
                  n = std::min({at < kPrompt ? int64_t{100} : int64_t{7}, kEnd - at, cache->next_boundary() - at});
    if (fork == nullptr && at >= forked_at) fork = cache->fork();
    Step step{pool->bytes_in_use(), cache->max_growth(n), 0, policy->max_bytes(kPrompt, at + n)};
    pool->restart_peak();
    for (auto& output : driver.pass(cache.get(), n)) result.outputs.push_back(std::move(output));
    cache->commit(cache->tokens());
    step.peak = pool->peak_bytes();
    result.steps.push_back(step);
  }
  result.stats = cache->stats();
  result.in_use = pool->bytes_in_use();
  result.details = cache->details();
  return result;
}

std::vector<Rank> run_ranks(const nlohmann::json& spec, const std::vector<int64_t>& of_ranks, int64_t forked_at) {
  int64_t all = 0;
  for (const int64_t n : of_ranks) all += n;
  Meeting meeting(of_ranks);
  std::vector<Rank> ranks(of_ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    threads.emplace_back([&, rank] { ranks[rank] = run(spec, all, &meeting, static_cast<int64_t>(rank), forked_at); });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

// Returns the outputs of a token from all ranks, in the order in which one rank with all heads returns them.
std::vector<float> joined(const std::vector<Rank>& ranks, size_t token) {
  std::vector<float> all;
  for (size_t layer = 0; layer < kLayers; ++layer) {
    for (const Rank& rank : ranks) {
      const std::vector<float>& output = rank.outputs[token];
      const auto n = static_cast<std::ptrdiff_t>(output.size() / kLayers);
      all.insert(all.end(), output.begin() + n * static_cast<std::ptrdiff_t>(layer),
                 output.begin() + n * static_cast<std::ptrdiff_t>(layer + 1));
    }
  }
  return all;
}

struct Case {
  const char* name;
  const char* spec;
};

class HeadsOfRanks : public testing::TestWithParam<std::tuple<Case, std::vector<int64_t>>> {
 protected:
  const nlohmann::json spec_ = nlohmann::json::parse(std::get<0>(GetParam()).spec);
  const std::vector<int64_t> of_ranks_ = std::get<1>(GetParam());
  // Whether KV heads may hold different numbers of tokens.
  bool shares_slots() const { return spec_["policy"] == "gated_eviction" || spec_["policy"] == "snapkv"; }
};

TEST_P(HeadsOfRanks, DecideAsOneRank) {
  const std::vector<Rank> ranks = run_ranks(spec_, of_ranks_, kEnd);
  int64_t heads = 0;
  for (const int64_t n : of_ranks_) heads += n;
  const Rank one = run(spec_, heads, nullptr, 0, kEnd);
  ASSERT_EQ(ranks[0].outputs.size(), one.outputs.size());
  for (size_t token = 0; token < one.outputs.size(); ++token) {
    const std::vector<float> found = joined(ranks, token);
    double difference = 0, size = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      difference += std::pow(static_cast<double>(found[i]) - one.outputs[token][i], 2);
      size += std::pow(static_cast<double>(one.outputs[token][i]), 2);
    }
    ASSERT_LT(std::sqrt(difference / size), 1e-4) << "token " << token;
  }
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.stats.tokens_kept, one.stats.tokens_kept);
    // The f32 sums run in another order. A loss sums squares of differences, so it shows some of their rounding errors.
    constexpr double kRounding = 5e-6;
    for (const auto& [name, value] : one.details)
      EXPECT_NEAR(rank.details.at(name), value, kRounding * std::abs(value)) << name;
  }
}

TEST_P(HeadsOfRanks, StayWithinWhatRank0SaysOfBytes) {
  for (const int64_t forked_at : {kEnd, int64_t{300}, int64_t{520}}) {
    const std::vector<Rank> ranks = run_ranks(spec_, of_ranks_, forked_at);
    const std::vector<Step>& said = ranks[0].steps;
    int64_t sum = 0, most = 0;
    for (const Rank& rank : ranks) {
      ASSERT_EQ(rank.steps.size(), said.size());
      for (size_t i = 0; i < said.size(); ++i) {
        // Only the ranks themselves know what they share with the fork. Rank 0 learns it after each pass.
        const int64_t held = forked_at < kEnd ? rank.steps[i].held : said[i].held;
        EXPECT_LE(rank.steps[i].peak, held + said[i].growth) << "step " << i << ", fork at " << forked_at;
        if (forked_at == kEnd) {
          EXPECT_LE(rank.steps[i].peak, said[i].bound) << "step " << i;
        }
      }
      sum += rank.in_use;
      most = std::max(most, rank.in_use);
    }
    if (forked_at != kEnd) continue;
    EXPECT_EQ(ranks[0].stats.bytes, ranks[0].in_use);
    EXPECT_EQ(ranks[0].in_use, most) << "what the rank that holds most counts";
    const auto all = static_cast<int64_t>(ranks.size()) * ranks[0].in_use;
    const bool alike = of_ranks_.front() == of_ranks_.back() && !shares_slots();
    EXPECT_TRUE(alike ? sum == all : sum <= all) << sum << " bytes of all ranks, of which rank 0 says " << all;
  }
}

const Case kCases[] = {
    {"gated_eviction", R"({"policy": "gated_eviction", "tokens": 256})"},
    {"gated_eviction_margin", R"({"policy": "gated_eviction", "tokens": 256, "importance_margin": 1})"},
    {"gated_eviction_packed", R"({"policy": "gated_eviction", "tokens": 384, "kept": "k4v4"})"},
    {"gated_eviction_bounded",
     R"({"policy": "gated_eviction", "tokens": 384, "kept": "k8v4", "prefill": "streaming"})"},
    {"snapkv", R"({"policy": "snapkv", "tokens": 256, "sizes": "shared"})"},
    {"snapkv_packed", R"({"policy": "snapkv", "tokens": 384, "sizes": "shared", "kept": "k4v4"})"},
    {"tova", R"({"policy": "tova", "tokens": 256})"},
    {"mixed_precision", R"({"policy": "mixed_precision", "bits": 5, "horizon": 1024})"},
    {"mixed_precision_dropping", R"({"policy": "mixed_precision", "bits": 2.6, "horizon": 1024, "least_bits": 0})"},
    {"mixed_precision_bytes", R"({"policy": "mixed_precision", "bytes": 600000})"},
    {"mixed_precision_forecast",
     R"({"policy": "mixed_precision", "bits": 5, "horizon": 1024, "forecast": true, "forecast_history": 64})"},
    {"channel_packed_cut",
     R"({"policy": "channel_packed", "key_channels": 48, "value_channels": 48, "update_every": 64, "stable_updates": 1,
                               "retention": 0.5, "least_overlap": 0, "most_margin_drift": 100, "most_kl": 100})"},
    {"channel_packed",
     R"({"policy": "channel_packed", "storage": "quantized", "key_channels": 48, "update_every": 64, "stable_updates": 1, "retention": 0.5,
                           "check_every": 256, "most_kl": 0.02})"},
    {"block_summary_adapts",
     R"({"policy": "block_summary", "tokens": 320, "window": 64, "salient": 2, "salient_most": 6, "salience": "novelty"})"},
    {"block_summary_sheds",
     R"({"policy": "block_summary", "window": 64, "block": 80, "level": 24, "salient": 8, "outliers": 20,
                               "salience": "novelty", "eps": 0.01})"},
};

INSTANTIATE_TEST_SUITE_P(Policies, HeadsOfRanks,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::Values(std::vector<int64_t>{2, 2}, std::vector<int64_t>{2, 1},
                                                          std::vector<int64_t>{1, 1, 1},
                                                          std::vector<int64_t>{2, 2, 1})),
                         [](const auto& item) {
                           std::string name = std::get<0>(item.param).name;
                           for (const int64_t n : std::get<1>(item.param)) name += "_" + std::to_string(n);
                           return name;
                         });

}  // namespace
}  // namespace smartkv
