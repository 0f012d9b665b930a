// Compares the state that the prefix cache finds with a search through all states.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cache/policy.h"
#include "cache/prefix_cache.h"
#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

using Tokens = std::vector<int32_t>;

// A cache that only counts tokens. It cannot resume for prompts with a length that is a multiple of `refused`.
class CountingCache final : public SequenceCache {
 public:
  CountingCache(int number, int64_t tokens, int64_t committed, int64_t refused)
      : id(number), tokens_(tokens), committed_(committed), refused_(refused) {}

  int64_t tokens() const override { return tokens_; }
  int64_t committed() const override { return committed_; }
  void reserve(int64_t) override {}
  void write(int64_t, const KvRows&) override {}
  void view(int64_t, int64_t, std::vector<kernels::KvSegment>*) const override {}
  void advance(int64_t n) override { tokens_ += n; }
  void truncate(int64_t n) override { tokens_ = n; }
  void commit(int64_t n) override { committed_ = n; }
  int64_t max_growth(int64_t) const override { return 0; }
  std::vector<int64_t> positions(int64_t, int64_t) const override { return {}; }
  std::unique_ptr<SequenceCache> fork() const override { return std::make_unique<CountingCache>(*this); }
  std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const override {
    return prompt_tokens % refused_ == 0 ? nullptr : fork();
  }
  CacheStats stats() const override { return {tokens_, tokens_, 1, 0, 1}; }

  const int id;

 private:
  int64_t tokens_, committed_, refused_;
};

// A state in a plain list of all states.
struct Listed {
  Tokens tokens;
  int id;
  int64_t committed, refused;
  uint64_t used;
};

struct Model {
  std::vector<Listed> states;
  uint64_t clock = 0;

  struct Match {
    Listed* state;
    int64_t n;
  };
  // Returns the states that share tokens with the prompt, in the order of preference.
  std::vector<Match> matches(const Tokens& prompt) {
    std::vector<Match> result;
    for (Listed& state : states) {
      const auto most = std::min(state.tokens.size(), prompt.size() - 1);
      const auto same =
          std::mismatch(prompt.begin(), prompt.begin() + static_cast<int64_t>(most), state.tokens.begin()).first;
      const int64_t n = same - prompt.begin();
      if (n >= PrefixCache::kLeastTokens && n >= state.committed) result.push_back({&state, n});
    }
    std::sort(result.begin(), result.end(), [](const Match& a, const Match& b) {
      if (a.n != b.n) return a.n > b.n;
      if (a.state->tokens.size() != b.state->tokens.size()) return a.state->tokens.size() < b.state->tokens.size();
      return a.state->used > b.state->used;
    });
    return result;
  }
};

// Returns a prompt that begins like earlier ones and diverges from them at any point from token 24 on.
Tokens random_tokens(std::mt19937* random, int64_t n) {
  Tokens tokens;
  for (int64_t i = 0; i < n; ++i) {
    const bool parts = i >= 24 && (*random)() % 16 == 0;
    tokens.push_back(parts ? static_cast<int32_t>(1 + (*random)() % 3) : 0);
  }
  return tokens;
}

TEST(PrefixLookup, FindsTheStateThatASearchThroughAllFinds) {
  CacheShape shape{1, 1, 16, kernels::KvType::kF32};
  ThreadPool threads(1);
  const PolicyContext context{shape, PagePool::create(shape), &threads};
  const auto policy = make_policy(context, "full");  // never asked, since no state is in a file
  for (const uint32_t seed : {1u, 2u, 3u}) {
    std::mt19937 random(seed);
    PrefixCache prefixes(int64_t{1} << 30, nullptr, INT64_MAX,
                         [](const PrefixCache::Candidate& of) { return static_cast<double>(of.used); });
    Model model;
    int found = 0, refusals = 0;
    for (int step = 0; step < 3000; ++step) {
      const Tokens tokens = random_tokens(&random, 33 + static_cast<int64_t>(random() % 80));
      const auto size = static_cast<int64_t>(tokens.size());
      const auto action = random() % 8;
      if (action < 3) {  // store one
        const int64_t tails[] = {0, 1, 16, size}, committed = size - tails[random() % 4],
                      refused = 2 + static_cast<int64_t>(random() % 3);
        const auto known =
            std::find_if(model.states.begin(), model.states.end(), [&](const Listed& s) { return s.tokens == tokens; });
        prefixes.insert("key", tokens, std::make_unique<CountingCache>(step, size, committed, refused), 1);
        ++model.clock;
        if (known == model.states.end()) {
          model.states.push_back({tokens, step, committed, refused, model.clock});
        } else {
          known->used = model.clock;
          if (known->committed > committed) *known = {tokens, step, committed, refused, model.clock};
        }
      } else if (action == 3 && model.states.size() > 60) {  // evict one
        ASSERT_TRUE(prefixes.evict(PrefixCache::Evict::kAny));
        model.states.erase(std::min_element(model.states.begin(), model.states.end(),
                                            [](const Listed& a, const Listed& b) { return a.used < b.used; }));
      } else if (action < 6) {
        const auto matches = model.matches(tokens);
        const PrefixCache::Covered covered = prefixes.covers("key", tokens);
        ASSERT_EQ(covered.tokens, matches.empty() ? 0 : matches[0].n) << step;
        if (matches.empty()) continue;
        ASSERT_EQ(dynamic_cast<const CountingCache&>(*covered.state->cache).id, matches[0].state->id) << step;
        matches[0].state->used = ++model.clock;
      } else {
        const int64_t most = random() % 3 == 0 ? 32 + static_cast<int64_t>(random() % 60) : INT64_MAX;
        const auto matches = model.matches(tokens);
        const auto usable = std::find_if(matches.begin(), matches.end(), [&](const Model::Match& match) {
          return std::min(match.n, most) >= match.state->committed && size % match.state->refused != 0;
        });
        PrefixCache::Held held;
        const auto cache = prefixes.find("key", *policy, tokens, nullptr, &held, most);
        ASSERT_EQ(cache != nullptr, usable != matches.end()) << step;
        refusals += usable != matches.begin() ? 1 : 0;
        if (cache == nullptr) continue;
        ASSERT_EQ(dynamic_cast<const CountingCache&>(*cache).id, usable->state->id) << step;
        ASSERT_EQ(cache->tokens(), std::min(usable->n, most)) << step;
        usable->state->used = ++model.clock;
        ++found;
      }
    }
    EXPECT_GT(found, 200);
    EXPECT_GT(refusals, 100);
    while (prefixes.n_states() > 0) ASSERT_TRUE(prefixes.evict(PrefixCache::Evict::kAny));
    EXPECT_EQ(prefixes.covers("key", random_tokens(&random, 100)).tokens, 0);
  }
}

// Many states begin like the prompt but have committed tokens past where it diverges. The look-up must visit none of
// them.
TEST(PrefixLookup, TakesNoLongerWithManyStates) {
  const auto seconds = [](int states) {
    PrefixCache prefixes(int64_t{1} << 40);
    Tokens tokens(400, 0);
    for (int i = 0; i < states; ++i) {
      tokens[300] = 1 + i;
      prefixes.insert("key", tokens, std::make_unique<CountingCache>(i, 400, i % 2 == 0 ? 399 : 0, 7), 1);
    }
    const Tokens prompt(350, 0);
    double least = 1e9;
    for (int i = 0; i < 200; ++i) {
      const auto start = std::chrono::steady_clock::now();
      EXPECT_EQ(prefixes.covers("key", prompt).tokens, 300);
      least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return least;
  };
  EXPECT_LT(seconds(20000), 20 * seconds(20));  // for 1000 times as many states
}

// Every look-up changes the order of eviction, so the next eviction ranks all states again.
TEST(PrefixLookup, EvictingOneOfTenThousandStatesTakesMilliseconds) {
  PrefixCache prefixes(int64_t{1} << 40);
  CacheShape shape{1, 1, 16, kernels::KvType::kF32};
  ThreadPool threads(1);
  const PolicyContext context{shape, PagePool::create(shape), &threads};
  const auto policy = make_policy(context, "full");  // never asked, since no state is in a file
  Tokens tokens(400, 0);
  for (int i = 0; i < 10000; ++i) {
    tokens[20] = tokens[300] = 1 + i;
    prefixes.insert("key", tokens, std::make_unique<CountingCache>(i, 400, 0, 7), 1);
  }
  std::vector<double> look_ups, evictions;
  for (int i = 0; i < 50; ++i) {
    Tokens prompt = tokens;
    prompt[20] = prompt[300] = 1 + 37 * i;
    prompt.push_back(9);
    PrefixCache::Lookup lookup;
    const auto seconds = [](const auto& work) {
      const auto start = std::chrono::steady_clock::now();
      work();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    look_ups.push_back(seconds([&] { prefixes.find("key", *policy, prompt, nullptr, nullptr, INT64_MAX, &lookup); }));
    evictions.push_back(seconds([&] { EXPECT_TRUE(prefixes.evict(PrefixCache::Evict::kAny)); }));
  }
  std::nth_element(look_ups.begin(), look_ups.begin() + 25, look_ups.end());
  std::nth_element(evictions.begin(), evictions.begin() + 25, evictions.end());
  RecordProperty("look_up_us", static_cast<int>(1e6 * look_ups[25]));
  RecordProperty("eviction_us", static_cast<int>(1e6 * evictions[25]));
#ifndef __SANITIZE_ADDRESS__
  EXPECT_LT(look_ups[25], 1e-3);
  EXPECT_LT(evictions[25], 10e-3);
#endif
}

TEST(PrefixLookup, AShorterStateStandsForAnEvictedOneUntilItsConversationGoesOn) {
  std::map<int64_t, double> rates;  // by the state's tokens
  int64_t first_out = 0;            // tokens of the state that is evicted first
  PrefixCache prefixes(int64_t{1} << 40, nullptr, INT64_MAX, [&](const PrefixCache::Candidate& of) {
    rates[of.cache->tokens()] = of.rate;
    return of.cache->tokens() == first_out ? 0.0 : 1.0;
  });
  CacheShape shape{1, 1, 16, kernels::KvType::kF32};
  ThreadPool threads(1);
  const PolicyContext context{shape, PagePool::create(shape), &threads};
  const auto policy = make_policy(context, "full");  // never asked, since no state is in a file
  const auto ask = [&](int64_t n, bool stores, int32_t first = 1) {
    Tokens prompt(static_cast<size_t>(n), first);
    PrefixCache::Lookup lookup;
    prefixes.find("key", *policy, prompt, nullptr, nullptr, INT64_MAX, &lookup);
    if (stores) prefixes.insert("key", prompt, std::make_unique<CountingCache>(0, n, 0, 1'000'003), 1, lookup.turn);
  };
  const auto rate = [&](int64_t n) {
    prefixes.list_states(100);
    return rates.at(n);
  };
  const auto wait = [&] {
    for (int i = 0; i < 7; ++i) ask(40, false, 2);
  };
  int64_t n = 100;
  for (int turn = 0; turn < 12; ++turn, n += 10) {
    ask(n, true);
    wait();
  }
  const int64_t last = n - 10, before = last - 10;
  const double expected = rate(last), superseded = rate(before);
  EXPECT_GT(expected, 5 * superseded);
  first_out = last;
  ASSERT_TRUE(prefixes.evict(PrefixCache::Evict::kAny));
  EXPECT_EQ(rate(before), expected + superseded);
  ask(n, true);
  EXPECT_LT(rate(before), expected);
}

TEST(PrefixLookup, AStateIsNewsForThosePromptsOnlyThatMayBeginLikeIt) {
  PrefixCache prefixes(1000);
  const Tokens tokens(40, 5);
  Tokens longer(60, 5), other(60, 5);
  other[3] = 6;
  const size_t group = PrefixCache::group_of("key", longer), others = PrefixCache::group_of("key", other);
  ASSERT_NE(group, others);
  const uint64_t before = prefixes.version(group), others_before = prefixes.version(others);
  prefixes.insert("key", tokens, std::make_unique<CountingCache>(0, 40, 0, 7), 1);
  EXPECT_NE(prefixes.version(group), before);
  EXPECT_EQ(prefixes.version(others), others_before);
}

}  // namespace
}  // namespace smartkv
