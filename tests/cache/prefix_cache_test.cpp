#include "cache/prefix_cache.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <numeric>

#include "cache/policy.h"
#include "tests/cache/cache_driver.h"

namespace smartkv {
namespace {

using Tokens = std::vector<int32_t>;

// Returns n tokens: `shared` tokens that all salts have in common, then tokens that only `salt` has.
Tokens tokens_of(int64_t n, int64_t shared, int32_t salt) {
  Tokens tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 0);
  for (auto i = static_cast<size_t>(shared); i < tokens.size(); ++i)
    tokens[i] = 10'000 * (salt + 1) + static_cast<int32_t>(i);
  return tokens;
}

class PrefixCacheTest : public testing::Test {
 protected:
  std::unique_ptr<KvCachePolicy> policy(const nlohmann::json& spec) { return make_policy(context_, spec); }

  // Computes the tokens [tokens(), end) of a prompt that diverges from all others at `shared`, in passes of at most
  // `chunk` tokens. Commits at boundaries only.
  void compute(SequenceCache* cache, int64_t end, int64_t shared, uint32_t salt, int64_t chunk = 96) {
    while (cache->tokens() < end) {
      const int64_t at = cache->tokens(), stop = at < shared ? std::min(end, shared) : end;
      const int64_t n = std::min({chunk, stop - at, cache->next_boundary() - at});
      driver_.pass(cache, n, at < shared ? 0 : salt);
      if (cache->tokens() == cache->next_boundary()) cache->commit(cache->tokens());
    }
  }
  // Returns a state from which prompts can resume. It is computed as far as the probe queries at the prompt's end
  // allow, and not committed there.
  std::unique_ptr<SequenceCache> state(const KvCachePolicy& policy, int64_t prompt, int64_t shared, uint32_t salt) {
    std::unique_ptr<SequenceCache> cache = policy.new_sequence(prompt);
    while (true) {
      const TokenRange probes = cache->probes(prompt - cache->tokens());
      const int64_t end = probes.empty() || cache->next_boundary() < prompt ? prompt : probes.first;
      const int64_t n = std::min({int64_t{96}, end - cache->tokens(), cache->next_boundary() - cache->tokens(),
                                  cache->tokens() < shared ? shared - cache->tokens() : INT64_MAX});
      if (n <= 0) return cache;
      driver_.pass(cache.get(), n, cache->tokens() < shared ? 0 : salt);
      if (cache->tokens() == prompt) return cache;
      if (cache->tokens() == cache->next_boundary()) cache->commit(cache->tokens());
    }
  }
  // Stores the state of a prompt of 100 tokens, tokens_of(100, 0, 0), under "key".
  void keep_prompt(const KvCachePolicy& policy, PrefixCache* prefixes) {
    auto cache = policy.new_sequence(100);
    compute(cache.get(), 100, 100, 0);
    prefixes->insert("key", tokens_of(100, 0, 0), std::move(cache), 10);
  }

  CacheShape shape_{2, 1, 64, kernels::KvType::kBf16};
  ThreadPool threads_{2};
  PolicyContext context_{shape_, PagePool::create(shape_), &threads_};
  CacheDriver driver_{shape_, 2, &threads_};
};

TEST_F(PrefixCacheTest, AHitGivesEveryBitOfComputingAnew) {
  const nlohmann::json specs[] = {"full",
                                  {{"policy", "k8v8"}, {"prompt_stride", 512}},  // no boundary between 700 and 800
                                  {{"policy", "k4v4"}, {"prompt_stride", 512}},
                                  {{"policy", "mixed_precision"}, {"horizon", 1024}, {"prompt_stride", 512}},
                                  {{"policy", "streaming"}, {"tokens", 256}},
                                  {{"policy", "snapkv"}, {"tokens", 320}}};
  for (const nlohmann::json& spec : specs) {
    SCOPED_TRACE(spec.dump());
    const auto policy = this->policy(spec);
    for (const int64_t shared : {700, 760}) {
      PrefixCache prefixes(int64_t{1} << 30);
      auto first = state(*policy, 800, shared, 1);
      Tokens tokens = tokens_of(800, shared, 1);
      tokens.resize(static_cast<size_t>(first->tokens()));
      prefixes.insert("key", tokens, std::move(first), 1);
      const int64_t prompt = 830;
      const auto found = prefixes.find("key", *policy, tokens_of(prompt, shared, 2));
      ASSERT_NE(found, nullptr) << shared;
      EXPECT_EQ(found->tokens(), shared);
      const auto anew = policy->new_sequence(prompt);
      compute(anew.get(), shared, shared, 2);
      for (SequenceCache* cache : {found.get(), anew.get()}) compute(cache, prompt, shared, 2);
      EXPECT_EQ(driver_.pass(found.get(), 1, 2), driver_.pass(anew.get(), 1, 2));
    }
  }
}

// A policy that compresses while the prompt is computed cannot roll back. find() then reports where the prompts
// diverge, so that a state can be stored there.
TEST_F(PrefixCacheTest, SaysWhereAStateWouldHaveHelped) {
  const auto policy = this->policy({{"policy", "streaming"}, {"tokens", 256}, {"prefill", "streaming"}});
  PrefixCache prefixes(int64_t{1} << 30);
  auto first = state(*policy, 800, 700, 1);
  prefixes.insert("key", tokens_of(800, 700, 1), std::move(first), 1);
  int64_t diverges_at = 0;
  EXPECT_EQ(prefixes.find("key", *policy, tokens_of(830, 700, 2), &diverges_at), nullptr);
  EXPECT_EQ(diverges_at, 700);
  auto second = policy->new_sequence(830);
  compute(second.get(), diverges_at, 700, 2);
  prefixes.insert("key", tokens_of(700, 700, 0), second->fork(), 1);
  const auto found = prefixes.find("key", *policy, tokens_of(900, 700, 3), &diverges_at);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->tokens(), 700);
  const auto anew = policy->new_sequence(900);
  compute(anew.get(), 700, 700, 3);
  for (SequenceCache* cache : {found.get(), anew.get()}) compute(cache, 900, 700, 3);
  EXPECT_EQ(driver_.pass(found.get(), 1, 3), driver_.pass(anew.get(), 1, 3));
}

// Questions about one text must resume from the state at its end, even if later states could be cut back to there.
TEST_F(PrefixCacheTest, OfEquallyLongOnesItFindsTheOneWherePromptsPart) {
  const auto full = policy("full");
  PrefixCache prefixes(int64_t{1} << 30);
  const auto insert = [&](int64_t n, int32_t salt) {
    auto cache = full->new_sequence(n);
    compute(cache.get(), n, 200, static_cast<uint32_t>(salt));
    return prefixes.insert("key", tokens_of(n, 200, salt), std::move(cache), 1);
  };
  insert(260, 1);
  const PrefixCache::Held text = insert(200, 0);
  insert(240, 2);
  const PrefixCache::Covered covered = prefixes.covers("key", tokens_of(250, 200, 3));
  EXPECT_EQ(covered.tokens, 200);
  EXPECT_EQ(covered.state, text);
}

TEST_F(PrefixCacheTest, FindsTheLongestUsableState) {
  const auto full = policy("full");
  PrefixCache prefixes(int64_t{1} << 30);
  for (const auto& [n, shared, salt] : {std::tuple{200, 0, 1}, {300, 150, 1}, {400, 250, 2}}) {
    auto cache = full->new_sequence(n);
    compute(cache.get(), n, n, 0);
    prefixes.insert("key", tokens_of(n, shared, salt), std::move(cache), 1);
  }
  EXPECT_EQ(prefixes.n_states(), 3);
  const auto cached = [&](const Tokens& prompt) -> int64_t {
    const auto found = prefixes.find("key", *full, prompt);
    return found == nullptr ? 0 : found->tokens();
  };
  EXPECT_EQ(cached(tokens_of(500, 250, 2)), 400);  // resumes from the end of the last state
  EXPECT_EQ(cached(tokens_of(500, 500, 0)), 250);  // diverges from it in the middle
  EXPECT_EQ(cached(tokens_of(300, 150, 1)), 299);  // the prompt's last token is never covered
  EXPECT_EQ(cached(tokens_of(180, 180, 0)), 179);
  EXPECT_EQ(cached(tokens_of(500, 0, 1)), 200);
  EXPECT_EQ(cached(tokens_of(500, 20, 7)), 0);  // too short to be worth it
  EXPECT_EQ(cached(tokens_of(500, 0, 9)), 0);
  EXPECT_EQ(prefixes.find("other key", *full, tokens_of(500, 250, 2)), nullptr);
}

TEST_F(PrefixCacheTest, WhatCanBeCutBackFurtherStays) {
  const auto full = policy("full");
  PrefixCache prefixes(int64_t{1} << 30);
  for (const int64_t committed : {200, 0, 200}) {
    auto cache = full->new_sequence(200);
    compute(cache.get(), 200, 200, 0);
    cache->commit(committed);
    prefixes.insert("key", tokens_of(200, 0, 1), std::move(cache), 10);
    const auto found = prefixes.find("key", *full, tokens_of(250, 0, 1));
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->tokens(), 200);
  }
  EXPECT_EQ(prefixes.bytes(), 10);
  Tokens parts = tokens_of(250, 0, 1);
  parts[150] = 1;
  const auto found = prefixes.find("key", *full, parts);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->tokens(), 150);
}

TEST_F(PrefixCacheTest, TheLeastRecentlyUsedGoFirstAndMemoryComesBack) {
  const auto full = policy("full");
  PrefixCache prefixes(30);
  for (int32_t salt = 0; salt < 3; ++salt) {
    auto cache = full->new_sequence(100);
    compute(cache.get(), 100, 100, 0);
    prefixes.insert("key", tokens_of(100, 0, salt), std::move(cache), 10);
  }
  EXPECT_EQ(prefixes.bytes(), 30);
  EXPECT_NE(prefixes.find("key", *full, tokens_of(120, 0, 0)), nullptr);
  auto cache = full->new_sequence(100);
  compute(cache.get(), 100, 100, 0);
  prefixes.insert("key", tokens_of(100, 0, 3), std::move(cache), 10);
  EXPECT_EQ(prefixes.bytes(), 30);
  EXPECT_EQ(prefixes.find("key", *full, tokens_of(120, 0, 1)), nullptr);
  for (const int32_t salt : {0, 2, 3}) EXPECT_NE(prefixes.find("key", *full, tokens_of(120, 0, salt)), nullptr) << salt;
  while (prefixes.evict(PrefixCache::Evict::kAny)) {
  }
  EXPECT_EQ(prefixes.n_states(), 0);
  EXPECT_EQ(prefixes.bytes(), 0);
  EXPECT_EQ(context_.pool->bytes_in_use(), 0);
}

TEST_F(PrefixCacheTest, WhatIsHeldGoesLast) {
  const auto full = policy("full");
  PrefixCache prefixes(int64_t{1} << 30);
  for (int32_t salt = 0; salt < 2; ++salt) {
    auto cache = full->new_sequence(100);
    compute(cache.get(), 100, 100, 0);
    prefixes.insert("key", tokens_of(100, 0, salt), std::move(cache), 10);
  }
  const size_t group = PrefixCache::group_of("key", tokens_of(120, 0, 0));
  const uint64_t version = prefixes.version(group);
  const PrefixCache::Covered covered = prefixes.covers("key", tokens_of(120, 0, 0));
  EXPECT_EQ(covered.tokens, 100);
  ASSERT_NE(covered.state, nullptr);
  prefixes.covers("key", tokens_of(120, 0, 1));  // now the more recently used one
  EXPECT_EQ(prefixes.version(group), version);
  EXPECT_TRUE(prefixes.evict(PrefixCache::Evict::kUnheld));
  EXPECT_EQ(prefixes.version(group), version);  // the evicted state is of another group
  EXPECT_EQ(prefixes.covers("key", tokens_of(120, 0, 1)).tokens, 0);
  EXPECT_FALSE(prefixes.evict(PrefixCache::Evict::kUnheld));
  const auto going_on = prefixes.find("key", *full, tokens_of(120, 0, 0));  // shares the state's pages
  ASSERT_NE(going_on, nullptr);
  const std::shared_ptr<const bool> running = covered.state->running;
  EXPECT_FALSE(prefixes.evict(PrefixCache::Evict::kUnused));
  going_on->reserve(20);  // copies the second of two pages, so half of the bytes stay shared
  EXPECT_FALSE(prefixes.evict(PrefixCache::Evict::kUnused));
  EXPECT_NE(covered.state->cache, nullptr);
  EXPECT_TRUE(prefixes.evict(PrefixCache::Evict::kAny));
  EXPECT_EQ(covered.state->cache, nullptr);
}

// The shorter state shares all its pages with the longer one, for which only waiting sequences ask.
TEST_F(PrefixCacheTest, WhatNobodyRunsWithIsOfUseToThoseWhoRun) {
  const auto full = policy("full");
  PrefixCache prefixes(int64_t{1} << 30);
  auto cache = full->new_sequence(200);
  compute(cache.get(), 128, 128, 0);
  prefixes.insert("key", tokens_of(128, 128, 0), cache->fork(), 10);
  compute(cache.get(), 140, 140, 0);
  cache->commit(140);  // so it cannot be cut back to the shorter one's tokens
  prefixes.insert("key", tokens_of(140, 140, 0), std::move(cache), 10);
  const PrefixCache::Covered shorter = prefixes.covers("key", tokens_of(200, 128, 1));
  const PrefixCache::Covered longer = prefixes.covers("key", tokens_of(200, 140, 1));
  EXPECT_EQ(shorter.tokens, 128);
  EXPECT_EQ(longer.tokens, 140);
  EXPECT_FALSE(prefixes.evict(PrefixCache::Evict::kUnheld));
  EXPECT_TRUE(prefixes.evict(PrefixCache::Evict::kUnused));
  EXPECT_TRUE(prefixes.evict(PrefixCache::Evict::kUnused));
  EXPECT_EQ(context_.pool->bytes_in_use(), 0);
}

TEST_F(PrefixCacheTest, WhatIsHeldGoesIfItFreesMemory) {
  const auto full = policy("full");
  PrefixCache prefixes(int64_t{1} << 30);
  keep_prompt(*full, &prefixes);
  const PrefixCache::Covered covered = prefixes.covers("key", tokens_of(120, 0, 0));
  const PrefixCache::Held waiting = covered.state, another = covered.state;
  const std::shared_ptr<const bool> running = covered.state->running;
  EXPECT_FALSE(prefixes.evict(PrefixCache::Evict::kUnheld));
  std::shared_ptr<const bool> owed = covered.state->owed;
  EXPECT_FALSE(prefixes.evict(PrefixCache::Evict::kUnused));
  owed.reset();
  EXPECT_TRUE(prefixes.evict(PrefixCache::Evict::kUnused));
  EXPECT_EQ(covered.state->cache, nullptr);
  EXPECT_EQ(context_.pool->bytes_in_use(), 0);
}

// Preempting a sequence would free little if the state of its prompt stayed while it waits.
TEST_F(PrefixCacheTest, WhatOnlyOneThatLostItsMemoryWantsGoesFirst) {
  const auto full = policy("full");
  PrefixCache prefixes(int64_t{1} << 30);
  keep_prompt(*full, &prefixes);
  const PrefixCache::Held lost = prefixes.covers("key", tokens_of(120, 0, 0)).state;
  EXPECT_FALSE(prefixes.evict(PrefixCache::Evict::kUnheld));
  const std::shared_ptr<const bool> owed = lost->owed;
  PrefixCache::Held other = lost;
  EXPECT_FALSE(prefixes.evict(PrefixCache::Evict::kUnheld));
  EXPECT_FALSE(prefixes.evict(PrefixCache::Evict::kUnused));
  other.reset();
  EXPECT_TRUE(prefixes.evict(PrefixCache::Evict::kUnheld));
  EXPECT_EQ(context_.pool->bytes_in_use(), 0);
}

// A state that a sequence left, and with which it shares no pages now, must not keep other sequences from running.
TEST_F(PrefixCacheTest, WhatOnlyRunnersHoldGoesOnceItsPagesAreNobodyElses) {
  const auto full = policy("full");
  PrefixCache prefixes(int64_t{1} << 30);
  auto cache = full->new_sequence(100);
  compute(cache.get(), 100, 100, 0);
  const PrefixCache::Held left = prefixes.insert("key", tokens_of(100, 0, 0), cache->fork(), 10);
  const std::shared_ptr<const bool> running = left->running;
  EXPECT_FALSE(prefixes.evict(PrefixCache::Evict::kUnheld));
  cache.reset();
  EXPECT_TRUE(prefixes.evict(PrefixCache::Evict::kUnheld));
  EXPECT_EQ(context_.pool->bytes_in_use(), 0);
}

// Admission relies on stable_bytes(): forks must continue to share that much.
TEST_F(PrefixCacheTest, LastingBytesStayShared) {
  const std::pair<nlohmann::json, bool> specs[] = {
      {"full", true},
      {"k4v4", true},
      {"k8v8", true},
      {{{"policy", "mixed_precision"}, {"bits", 4.5}, {"horizon", 1024}}, true},
      {{{"policy", "streaming"}, {"tokens", 256}}, false},
      {{{"policy", "snapkv"}, {"tokens", 320}}, false}};
  for (const auto& [spec, lasts] : specs) {
    SCOPED_TRACE(spec.dump());
    const auto policy = this->policy(spec);
    const auto cache = policy->new_sequence(650);
    compute(cache.get(), 650, 650, 0);
    cache->commit(650);
    const int64_t lasting = cache->stable_bytes();
    EXPECT_EQ(lasting > 0, lasts);
    const auto fork = cache->fork();
    compute(fork.get(), 1600, 650, 1);
    EXPECT_GE(fork->stats().shared_bytes, lasting);
  }
}

// A state that a sequence will resume from is worth more than one that no sequence has asked for yet.
TEST_F(PrefixCacheTest, BeyondTheCapANewStateGoesBeforeOneThatIsHeld) {
  const auto full = policy("full");
  PrefixCache prefixes(100);
  const auto insert = [&](int32_t salt) {
    auto cache = full->new_sequence(100);
    compute(cache.get(), 100, 0, static_cast<uint32_t>(salt));
    return prefixes.insert("key", tokens_of(100, 0, salt), std::move(cache), 60);
  };
  const PrefixCache::Held held = insert(1);
  EXPECT_EQ(insert(2), nullptr);
  EXPECT_NE(held->cache, nullptr);
  EXPECT_EQ(prefixes.bytes(), 60);
}

// Looks up a prompt that shares `shared` tokens with others of its salt, and returns what the cache says about it.
class PrefixReasonsTest : public PrefixCacheTest {
 protected:
  PrefixCache::Lookup look_up(const std::string& key, const Tokens& prompt, PrefixCache::Lookup lookup = {}) {
    prefixes_.find(key, *full_, prompt, nullptr, nullptr, INT64_MAX, &lookup);
    return lookup;
  }
  void keep(const std::string& key, const Tokens& tokens, std::shared_ptr<Turn> turn = nullptr,
            bool committed = false) {
    auto cache = full_->new_sequence(static_cast<int64_t>(tokens.size()));
    compute(cache.get(), static_cast<int64_t>(tokens.size()), 0, 1);
    if (committed) cache->commit(cache->tokens());
    prefixes_.insert(key, tokens, std::move(cache), 10, std::move(turn));
  }

  std::unique_ptr<KvCachePolicy> full_ = policy("full");
  PrefixCache prefixes_{int64_t{1} << 30};
};

TEST_F(PrefixReasonsTest, SaysWhyNoMoreOfAPromptWasFound) {
  using Miss = PrefixCache::Miss;
  EXPECT_EQ(look_up("full\n", tokens_of(200, 0, 1)).miss, Miss::kNeverStored);
  keep("full\n", tokens_of(200, 0, 1), nullptr, true);
  PrefixCache::Lookup lookup = look_up("full\n", tokens_of(260, 0, 1));
  EXPECT_EQ(lookup.miss, Miss::kNeverStored);  // of the rest
  EXPECT_EQ(lookup.common, 200);
  EXPECT_EQ(look_up("full\n", tokens_of(201, 0, 1)).miss, Miss::kNone);
  Tokens diverging = tokens_of(260, 0, 1);
  diverging[150] = -1;  // the state is committed, so it cannot be cut back
  lookup = look_up("full\n", diverging);
  EXPECT_EQ(lookup.miss, Miss::kPolicy);
  EXPECT_EQ(lookup.common, 150);
  EXPECT_EQ(look_up("k4v4\n", tokens_of(260, 0, 1)).miss, Miss::kPolicy);
  EXPECT_EQ(look_up("full\nme", tokens_of(260, 0, 1)).miss, Miss::kSalt);
  EXPECT_TRUE(prefixes_.evict(PrefixCache::Evict::kAny));
  lookup = look_up("full\n", tokens_of(260, 0, 1));
  EXPECT_EQ(lookup.miss, Miss::kEvicted);
  EXPECT_EQ(lookup.common, 200);
}

// Whether a prompt is stored under another client's salt must not show.
TEST_F(PrefixReasonsTest, TellsNothingAboutOtherSalts) {
  keep("full\nyou", tokens_of(200, 0, 1));
  for (const char* key : {"full\nme", "full\n", "k4v4\nme"}) {
    const PrefixCache::Lookup lookup = look_up(key, tokens_of(260, 0, 1));
    EXPECT_EQ(lookup.miss, PrefixCache::Miss::kNeverStored) << key;
    EXPECT_EQ(lookup.common, 0) << key;
  }
}

TEST_F(PrefixReasonsTest, AHintCountsForItsTime) {
  const auto now = std::chrono::steady_clock::now();
  PrefixCache::Lookup raised, expired, lowered, usual;
  raised.retention = {2, now + std::chrono::hours(1)};
  expired.retention = {4, now - std::chrono::hours(1)};
  lowered.retention = {0.5};
  int32_t salt = 0;
  for (PrefixCache::Lookup* lookup : {&raised, &expired, &lowered, &usual}) {
    const Tokens tokens = tokens_of(200, 0, ++salt);
    *lookup = look_up("key", tokens, *lookup);
    keep("key", tokens, lookup->turn);
  }
  const auto left = [&](int32_t of) { return prefixes_.covers("key", tokens_of(260, 0, of)).tokens > 0; };
  EXPECT_TRUE(prefixes_.evict(PrefixCache::Evict::kAny));
  EXPECT_FALSE(left(3));
  EXPECT_TRUE(prefixes_.evict(PrefixCache::Evict::kAny));
  EXPECT_TRUE(prefixes_.evict(PrefixCache::Evict::kAny));
  EXPECT_TRUE(left(1));
}

TEST_F(PrefixReasonsTest, AnOwnersStatesStayWithinItsLimit) {
  PrefixCache::Lookup own;
  own.owner = "alice";
  own.owner_bytes = 25;
  keep("key", tokens_of(200, 0, 9));
  for (int32_t salt = 1; salt <= 4; ++salt) {
    const Tokens tokens = tokens_of(200, 0, salt);
    PrefixCache::Lookup lookup = look_up("key", tokens, own);
    keep("key", tokens, lookup.turn);
    EXPECT_LE(lookup.turn->owner->bytes, 25);
  }
  EXPECT_EQ(prefixes_.n_states(), 3);  // two of alice's, and the one without an owner
  EXPECT_GT(prefixes_.covers("key", tokens_of(260, 0, 9)).tokens, 0);
}

TEST_F(PrefixReasonsTest, ListsStatesByTheirValue) {
  keep(R"({"policy":"full"})"
       "\nsalt",
       tokens_of(100, 0, 1));
  keep(R"({"policy":"full"})"
       "\n",
       tokens_of(640, 0, 2));
  const std::vector<PrefixListing> all = prefixes_.list_states(10);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_GE(all[0].value, all[1].value);
  for (const PrefixListing& one : all) {
    EXPECT_EQ(one.policy, R"({"policy":"full"})");  // without the salt
    EXPECT_TRUE(one.in_memory);
    EXPECT_FALSE(one.in_file);
    EXPECT_GT(one.bytes, 0);
    EXPECT_EQ(one.freed_bytes, one.bytes);
  }
  EXPECT_EQ(prefixes_.list_states(1).size(), 1u);
}

TEST_F(PrefixCacheTest, WhatIsLargerThanTheCapIsNotKept) {
  const auto full = policy("full");
  PrefixCache prefixes(9);
  auto cache = full->new_sequence(100);
  compute(cache.get(), 100, 100, 0);
  prefixes.insert("key", tokens_of(100, 0, 0), std::move(cache), 10);
  EXPECT_EQ(prefixes.n_states(), 0);
  EXPECT_EQ(context_.pool->bytes_in_use(), 0);
}

}  // namespace
}  // namespace smartkv
