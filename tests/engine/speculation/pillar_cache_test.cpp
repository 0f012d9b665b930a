#include "engine/speculation/pillar_cache.h"

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cache/cache_driver.h"

namespace smartkv {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Records the probe queries that the mirror is shown.
class Watcher final : public ForwardingCache {
 public:
  explicit Watcher(SequenceCache* cache) : ForwardingCache({cache}) {}
  void observe(int64_t layer, const Probe& probe) override {
    masses[static_cast<size_t>(layer)].assign(probe.mass.begin(), probe.mass.end());
    position = probe.position;
    ForwardingCache::observe(layer, probe);
  }
  std::unique_ptr<SequenceCache> fork() const override { return nullptr; }
  std::unique_ptr<SequenceCache> resume(int64_t) const override { return nullptr; }

  std::vector<float> masses[2];
  int64_t position = -1;
};

class PillarCacheTest : public testing::Test {
 protected:
  std::unique_ptr<SequenceCache> target(const json& spec = "full") {
    return policies_.emplace_back(make_policy(context_, spec))->new_sequence(0);
  }
  std::unique_ptr<SequenceCache> draft(int64_t tokens, int64_t prompt_tokens) {
    const json spec = {{"policy", "pillar_attn"}, {"tokens", tokens}};
    return policies_.emplace_back(make_pillar_policy(context_, spec, 4))->new_sequence(prompt_tokens);
  }
  static PillarCache* pillar(const std::unique_ptr<SequenceCache>& draft) {
    return static_cast<PillarCache*>(draft.get());
  }
  // Returns the attention outputs of the next token, which is rolled back.
  std::vector<std::vector<float>> next(SequenceCache* cache) {
    auto seen = driver_.pass(cache, 1);
    cache->truncate(cache->tokens() - 1);
    return seen;
  }

  ThreadPool pool_{2};
  CacheShape shape_{2, 2, 64, kernels::KvType::kBf16};
  PolicyContext context_{shape_, PagePool::create(shape_), &pool_};
  std::vector<std::unique_ptr<KvCachePolicy>> policies_;
  CacheDriver driver_{shape_, 4, &pool_};
};

TEST_F(PillarCacheTest, KeepsWhatTheVerifiedTokenAttendedToMost) {
  const auto full = target(), small = draft(192, 700);
  PillarMirror mirror(full.get(), pillar(small));
  Watcher watcher(&mirror);
  driver_.run(&watcher, 700, 128);
  EXPECT_EQ(watcher.position, 699);
  driver_.pass(&watcher, 5);
  EXPECT_EQ(watcher.position, 700);  // the first of the verified tokens
  for (int64_t layer = 0; layer < 2; ++layer) {
    for (int64_t head = 0; head < 2; ++head) {
      const float* mass = watcher.masses[layer].data() + head * 701;
      std::vector<int64_t> order(700 - PillarCache::kRecent);
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return mass[a] > mass[b]; });
      order.resize(192 - PillarCache::kRecent);
      for (int64_t i = 700 - PillarCache::kRecent; i < 705; ++i) order.push_back(i);
      std::sort(order.begin(), order.end());
      EXPECT_EQ(small->positions(layer, head), order);
    }
  }
  EXPECT_EQ(small->stats().tokens, 705);
  EXPECT_EQ(small->stats().tokens_kept, 192 + 5);
}

TEST_F(PillarCacheTest, WithRoomForAllItIsTheTargetsCache) {
  const auto plain = target(), full = target(), all = draft(4096, 300);
  PillarMirror mirror(full.get(), pillar(all));
  driver_.run(&mirror, 300, 128);
  int64_t end = 300;
  for (const int64_t accepted : {0, 4, 1, 3, 0, 2}) {
    driver_.pass(all.get(), 4, 1);  // drafts four tokens
    all->truncate(end);
    driver_.pass(&mirror, 5);
    end += accepted + 1;
    mirror.truncate(end);
    mirror.commit(end);
    driver_.run(plain.get(), end, 128);
    EXPECT_EQ(all->tokens(), end);
    EXPECT_EQ(next(all.get()), next(plain.get()));
  }
}

TEST_F(PillarCacheTest, ItsBytesStayWithinTheBounds) {
  const auto full = target(), small = draft(256, 900);
  const int64_t most = policies_.back()->max_bytes(900, 960);
  PillarMirror mirror(full.get(), pillar(small));
  const auto pass = [&](SequenceCache* cache, int64_t n) {
    const int64_t before = context_.pool->bytes_in_use(), growth = mirror.max_growth(n);
    driver_.pass(cache, n, cache == small.get() ? 1 : 0);
    EXPECT_LE(context_.pool->bytes_in_use() - before, growth);
    EXPECT_LE(small->stats().bytes, most);
  };
  for (int64_t end = 0; end < 900; end += 100) {
    pass(&mirror, 100);
    mirror.commit(mirror.tokens());
  }
  std::unique_ptr<SequenceCache> other;
  for (int64_t end = 900; end < 960; end += 3) {
    pass(small.get(), 4);
    small->truncate(end);
    if (end % 2 == 0) other = small->fork();  // shares pages with `small`
    pass(&mirror, 5);
    mirror.truncate(end + 3);
    mirror.commit(end + 3);
  }
  EXPECT_LT(small->stats().bytes, full->stats().bytes / 2);
}

TEST_F(PillarCacheTest, AForkGoesOnAlone) {
  const auto full = target(), small = draft(192, 400);
  PillarMirror mirror(full.get(), pillar(small));
  driver_.run(&mirror, 400, 128);
  const auto before = next(small.get());
  const auto fork = small->fork(), target_fork = full->fork();
  EXPECT_EQ(next(fork.get()), before);
  PillarMirror other(target_fork.get(), pillar(fork));
  driver_.run(&other, 420, 5);
  EXPECT_EQ(next(small.get()), before);
  driver_.run(&mirror, 420, 5);
  EXPECT_EQ(next(small.get()), next(fork.get()));
}

TEST_F(PillarCacheTest, StartsBehindAPrefixThatWasFound) {
  const auto full = target();
  driver_.run(full.get(), 500, 128);
  const auto small = draft(192, 501);
  PillarMirror mirror(full.get(), pillar(small));
  EXPECT_EQ(small->tokens(), 500);
  driver_.run(&mirror, 501, 128);
  EXPECT_EQ(small->positions(0, 0).size(), 193u);
}

TEST_F(PillarCacheTest, OneQueryOfEachPassChooses) {
  const auto full = target(), small = draft(192, 100);
  PillarMirror mirror(full.get(), pillar(small));
  const auto chooses = [&](int64_t n) { return std::pair(mirror.probes(n).first, mirror.probes(n).end); };
  EXPECT_TRUE(mirror.probes(99).empty());
  EXPECT_EQ(chooses(100), std::pair(int64_t{99}, int64_t{100}));
  driver_.run(&mirror, 100, 50);
  EXPECT_EQ(chooses(1), std::pair(int64_t{100}, int64_t{101}));
  EXPECT_EQ(chooses(5), std::pair(int64_t{100}, int64_t{101}));
  // A pass that is longer than a draft recomputes a sequence.
  EXPECT_EQ(chooses(6), std::pair(int64_t{105}, int64_t{106}));
}

TEST_F(PillarCacheTest, RefusesTargetsWhoseRowsItCannotRead) {
  const auto packed = target("k4v4"), small = draft(192, 200);
  PillarMirror mirror(packed.get(), pillar(small));
  try {
    driver_.run(&mirror, 200, 64);
    ADD_FAILURE() << "expected a CacheError";
  } catch (const CacheError& error) {
    EXPECT_THAT(error.what(), HasSubstr("pillar_attn: expected a cache of 200 dense tokens"));
  }
  EXPECT_THROW(make_pillar_policy(context_, {{"policy", "pillar_attn"}, {"tokens", 64}}, 4), CacheError);
  EXPECT_THROW(make_pillar_policy(context_, {{"policy", "pillar_attn"}, {"window", 64}}, 4), CacheError);
}

// In layers with a window the draft reads what the target has, through rejected drafts and boundaries.
TEST_F(PillarCacheTest, DraftsReadTheTargetsWindows) {
  PolicyContext windowed = context_;
  windowed.window = {100, 1};
  CacheDriver driver(shape_, 4, windowed.pool->backend(), 0, 0, windowed.window);
  const auto full = make_policy(windowed, "full"),
             of_draft = make_pillar_policy(windowed, {{"policy", "pillar_attn"}, {"tokens", 1024}}, 4);
  const auto target = full->new_sequence(150);
  const auto draft = of_draft->new_sequence(150);
  driver.run(target.get(), 70, 64);  // as after a prefix hit
  PillarMirror mirror(target.get(), pillar(draft));
  while (mirror.tokens() < 400) {
    const int64_t at = mirror.tokens();
    driver.pass(&mirror, std::min<int64_t>({at < 150 ? 64 : 5, 400 - at, mirror.next_boundary() - at}));
    // The last token of a verification is rejected.
    if (at >= 150 && mirror.tokens() - at > 1 && mirror.tokens() < mirror.next_boundary()) {
      mirror.truncate(mirror.tokens() - 1);
    }
    mirror.commit(mirror.tokens());
    if (mirror.tokens() < 150) continue;
    // 1,024 tokens are all of them, so the draft computes what the target would.
    const auto fork = target->fork();
    EXPECT_EQ(driver.pass(draft.get(), 2), driver.pass(fork.get(), 2)) << at;
    draft->truncate(mirror.tokens());
    EXPECT_LE(draft->stats().bytes, of_draft->max_bytes(150, draft->tokens() + 2));
  }
}

}  // namespace
}  // namespace smartkv
