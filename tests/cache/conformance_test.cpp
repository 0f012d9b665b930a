// Requirements that every policy must meet, checked for each row of the registry.
#include <malloc.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cache/policy.h"
#include "cache/state_io.h"
#include "cache/stores/staged_sequence.h"
#include "kernels/cpu_level.h"
#include "kernels/indexed_rows.h"
#include "tests/cache/cache_driver.h"
#include "tests/cache/conformance_backend.h"
#include "tests/cache/poisoned_backend.h"
#include "tests/cache/random_gate.h"
#include "tests/cache/random_sensitivity.h"

namespace smartkv {
namespace {

using Shape = ConformanceShape;
using Outputs = std::vector<std::vector<float>>;

double norm(const std::vector<float>& x) { return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0)); }

// Succeeds if both have equal bits. If the backend is not batch-invariant, they may differ by rounding. A failure names
// the first token that differs.
testing::AssertionResult same(const Outputs& found, const Outputs& expected, bool batch_invariant) {
  if (found.size() != expected.size()) {
    return testing::AssertionFailure() << found.size() << " tokens instead of " << expected.size();
  }
  for (size_t t = 0; t < found.size(); ++t) {
    if (found[t] == expected[t]) continue;
    std::vector<float> difference = found[t];
    for (size_t i = 0; i < difference.size(); ++i) difference[i] -= expected[t][i];
    const double error = norm(difference) / norm(expected[t]);
    if (!batch_invariant && error < 0.02) continue;  // rounding to bf16, and choices that differ because of it
    return testing::AssertionFailure() << "token " << t << " differs by " << error << " of its size";
  }
  return testing::AssertionSuccess();
}

// The policy's name, or with the name of a trial POLICY_TRIAL.
std::string full_name(const PolicyRow& row, const PolicyTrial& trial) {
  return std::string(row.name) + (trial.name.empty() ? "" : "_") + std::string(trial.name);
}

// Returns whether contents decide how many bytes the sequences of a policy hold.
bool by_contents(const std::string& name) {
  for (const PolicyRow& row : policy_registry()) {
    for (const PolicyTrial& trial : row.trials) {
      if (full_name(row, trial) == name) return trial.by_contents;
    }
  }
  return false;
}

// Returns small settings of a policy, so that a thousand tokens are compressed often.
nlohmann::json spec_of(const std::string& name) {
  for (const PolicyRow& row : policy_registry()) {
    nlohmann::json spec = {{"policy", row.name}};
    for (const PolicyTrial& trial : row.trials) {
      if (full_name(row, trial) != name) continue;
      spec.update(nlohmann::json::parse(trial.parameters));
      return spec;
    }
    if (row.name == name) return spec;
  }
  throw std::invalid_argument(name);
}

// Returns the gates that trials name (PolicyRow::trials): of hidden states, of heads, or of lifespans.
std::shared_ptr<const Gate> gate_named(const CacheShape& shape, const std::string& name) {
  if (name == "hidden") return random_hidden_gate(shape, kTestHiddenSize);
  if (name == "heads") return random_head_gate(shape);
  return random_gate(shape);
}

// Returns the contents of all segments, byte by byte: one string for each layer, segment and KV head.
std::vector<std::string> contents(const SequenceCache& cache, const CacheShape& shape, int64_t n_layers,
                                  kernels::KvBackend& backend) {
  std::vector<std::string> result;
  const auto append = [&](const void* page, int64_t offset, int64_t bytes, std::string* text) {
    text->resize(text->size() + static_cast<size_t>(bytes));
    backend.download(static_cast<const std::byte*>(page) + offset, static_cast<size_t>(bytes),
                     text->data() + text->size() - static_cast<size_t>(bytes));
  };
  for (int64_t layer = 0; layer < n_layers; ++layer) {
    std::vector<kernels::KvSegment> segments;
    cache.view(layer, 0, &segments);
    for (const kernels::KvSegment& segment : segments) {
      std::vector<float> k(static_cast<size_t>(kernels::kPageTokens * shape.head_dim)), v(k.size());
      for (int64_t head = 0; head < shape.n_kv_heads; ++head) {
        std::string& text = result.emplace_back();
        if (!segment.is_of(head)) continue;
        if (segment.format == kernels::KvSegment::Format::kCut) {
          append(segment.k, head * segment.head_stride, segment.head_stride, &text);
          continue;
        }
        if (segment.format != kernels::KvSegment::Format::kDense) {
          append(segment.k, head * segment.head_stride,
                 kernels::quantized_offsets(segment.quantized, shape.head_dim).total, &text);
          if (!segment.is_indexed()) continue;
          const int64_t bytes = kernels::indexed_rows_bytes(shape.type, shape.head_dim, segment.row_bits);
          append(segment.v, head * bytes, bytes, &text);
          continue;
        }
        const kernels::PageRead read{segment, head, 1, 0, segment.tokens, k.data(), v.data()};
        backend.read(shape.type, shape.head_dim, {&read, 1});
        backend.finish();
        const size_t bytes = static_cast<size_t>(segment.tokens * shape.head_dim) * sizeof(float);
        text.append(reinterpret_cast<const char*>(k.data()), bytes);
        text.append(reinterpret_cast<const char*>(v.data()), bytes);
        if (segment.bias == nullptr) continue;
        text.append(reinterpret_cast<const char*>(segment.bias + head * kernels::kPageTokens),
                    static_cast<size_t>(segment.tokens) * sizeof(float));
      }
    }
  }
  return result;
}

using Parameter = std::tuple<std::string, Shape>;

class Conformance : public testing::TestWithParam<Parameter> {
 protected:
  Conformance() { policy_ = make_policy(context(), spec_of(std::get<0>(GetParam()))); }

  PolicyContext context() {
    PolicyContext context{shape_, pool_, &threads_};
    context.rope = [](int64_t position, float* cos, float* sin) {
      for (int64_t j = 0; j < std::get<1>(GetParam()).head_dim / 2; ++j) {
        cos[j] = std::cos(static_cast<float>(position) / static_cast<float>(j + 1));
        sin[j] = std::sin(static_cast<float>(position) / static_cast<float>(j + 1));
      }
    };
    context.window = std::get<1>(GetParam()).window;
    context.load_gate = [this](const std::string& name) { return gate_named(shape_, name); };
    context.load_sensitivity = [this] { return random_sensitivity(shape_); };
    return context;
  }
  testing::AssertionResult same(const Outputs& found, const Outputs& expected) const {
    return smartkv::same(found, expected, backend_->batch_invariant());
  }
  CacheDriver driver() { return driver_on(backend_); }
  CacheDriver driver_on(std::shared_ptr<kernels::KvBackend> backend) {
    const Shape& shape = std::get<1>(GetParam());
    return CacheDriver(shape_, shape.n_heads, std::move(backend), 0, 0, shape.window);
  }
  std::vector<std::string> contents(const SequenceCache& cache) {
    return smartkv::contents(cache, shape_, context().n_layers(), *backend_);
  }

  ThreadPool threads_{2};
  CacheShape shape_{2, std::get<1>(GetParam()).n_kv_heads, std::get<1>(GetParam()).head_dim, kernels::KvType::kBf16};
  std::shared_ptr<kernels::KvBackend> backend_ = conformance_backend(&threads_);
  std::shared_ptr<PagePool> pool_ = PagePool::create(shape_, backend_, 0);
  std::unique_ptr<KvCachePolicy> policy_;
};

TEST_P(Conformance, EqualsTheFullCacheUntilSomethingIsCompressed) {
  const auto full = make_policy(context(), nullptr);
  const auto expected = full->new_sequence(0), cache = policy_->new_sequence(0);
  const int64_t n = std::min<int64_t>(cache->next_boundary() - 1, 300);
  EXPECT_TRUE(same(driver().run(cache.get(), n, 64), driver().run(expected.get(), n, 64)));
  EXPECT_EQ(cache->stats().tokens_kept, n);
}

TEST_P(Conformance, OutputDoesNotDependOnChunks) {
  for (const int64_t prompt : {1, 700}) {
    const auto whole = policy_->new_sequence(prompt), pieces = policy_->new_sequence(prompt),
               single = policy_->new_sequence(prompt);
    const auto expected = driver().run(whole.get(), 900, 512);
    EXPECT_TRUE(same(driver().run(pieces.get(), 900, 29), expected)) << prompt;
    EXPECT_TRUE(same(driver().run(single.get(), 900, 1), expected)) << prompt;
    EXPECT_EQ(pieces->stats().bytes, whole->stats().bytes);
    EXPECT_EQ(pieces->stats().tokens_kept, whole->stats().tokens_kept);
  }
}

TEST_P(Conformance, RejectedDraftsLeaveNoTrace) {
  const auto plain = policy_->new_sequence(1), speculating = policy_->new_sequence(1);
  const auto expected = driver().run(plain.get(), 600, 1);
  std::vector<std::vector<float>> outputs;
  CacheDriver drafts = driver();
  while (speculating->tokens() < 600) {
    const int64_t at = speculating->tokens(), room = std::min<int64_t>(600, speculating->next_boundary()) - at;
    if (room > 3) {  // two tokens stay, two others are rolled back
      for (auto& output : drafts.pass(speculating.get(), 2)) outputs.push_back(std::move(output));
      if (speculating->probes(2).empty()) {
        drafts.pass(speculating.get(), 2, 77);
        speculating->truncate(at + 2);
      }
    } else {
      for (auto& output : drafts.pass(speculating.get(), 1)) outputs.push_back(std::move(output));
    }
    speculating->commit(speculating->tokens());
  }
  EXPECT_TRUE(same(outputs, expected));
}

TEST_P(Conformance, ForksGoTheirOwnWays) {
  const auto cache = policy_->new_sequence(1), alone = policy_->new_sequence(1);
  driver().run(cache.get(), 500, 64);
  const auto fork = cache->fork();
  CacheDriver other = driver();
  other.pass(fork.get(), std::min<int64_t>(20, fork->next_boundary() - fork->tokens()), 5);
  fork->commit(fork->tokens());
  driver().run(fork.get(), 800, 64);
  driver().run(alone.get(), 500, 64);
  EXPECT_TRUE(same(driver().run(cache.get(), 800, 64), driver().run(alone.get(), 800, 64)));
}

// A sequence must read neither the unused slots of its pages nor released memory. Both are poisoned here.
TEST_P(Conformance, ReadsItsOwnTokensOnlyAtEveryCpuLevel) {
  const kernels::CpuLevel initial = kernels::cpu_level();
  for (int i = 0; i <= static_cast<int>(initial); ++i) {
    const auto level = static_cast<kernels::CpuLevel>(i);
    if (backend_->name() != "cpu" && level != initial) continue;
    kernels::set_cpu_level(level);
    const auto poisoned = std::make_shared<PoisonedBackend>(conformance_backend(&threads_));
    PolicyContext context = this->context();
    context.pool = PagePool::create(shape_, poisoned, 0);
    const auto expected = policy_->new_sequence(100),
               cache = make_policy(context, spec_of(std::get<0>(GetParam())))->new_sequence(100);
    CacheDriver reader = driver_on(poisoned);
    EXPECT_TRUE(same(reader.run(cache.get(), 450, 29), driver().run(expected.get(), 450, 29))) << name(level);
  }
  kernels::set_cpu_level(initial);
}

// A sequence that computes NaN leaves it in freed pages. Sequences that reuse these pages must not see it.
TEST_P(Conformance, FreedPagesHarmNobody) {
  const auto pool = PagePool::create(shape_, backend_);  // keeps freed pages
  PolicyContext reusing = context();
  reusing.pool = pool;
  const auto policy = make_policy(reusing, spec_of(std::get<0>(GetParam())));
  const int64_t width = shape_.n_kv_heads * shape_.head_dim;
  for (const uint32_t poison : {0x7fc00000u, 0x7f800001u, 0xffbfffffu, 0x7f800000u}) {
    const auto broken = policy->new_sequence(1000);
    const int64_t n = std::min<int64_t>(500, broken->next_boundary());
    const std::vector<float> rows(static_cast<size_t>(n * width), std::bit_cast<float>(poison));
    broken->reserve(n);
    for (int64_t layer = 0; layer < context().n_layers(); ++layer) {
      if (layer < shape_.n_layers) show_random_hidden(broken.get(), shape_, layer, n);
      broken->write(layer, {rows.data(), rows.data(), width, 0, n});
      backend_->apply_writes();
    }
    broken->advance(n);
  }
  const auto expected = policy_->new_sequence(100), cache = policy->new_sequence(100);
  EXPECT_TRUE(same(driver().run(cache.get(), 450, 29), driver().run(expected.get(), 450, 29)));
}

// A state in the prefix cache must survive when the server forgets the policy of its request.
TEST_P(Conformance, CachesOutliveTheirPolicy) {
  const auto expected = policy_->new_sequence(1), cache = policy_->new_sequence(1);
  driver().run(cache.get(), 500, 64);
  const auto outputs = driver().run(expected.get(), 800, 64);
  policy_.reset();
  const auto fork = cache->fork();
  const std::vector<std::vector<float>> rest(outputs.begin() + 500, outputs.end());
  EXPECT_TRUE(same(driver().run(fork.get(), 800, 64), rest));
  cache->resume(501);
}

TEST_P(Conformance, StaysWithinItsBoundAndCountsWhatTheHeapOrTheDeviceGave) {
  for (const int64_t prompt : {1, 1000}) {
    const bool on_heap = backend_->name() == "cpu";
    const auto in_use = [&] {
      malloc_trim(0);
      const struct mallinfo2 info = mallinfo2();
      return static_cast<double>(on_heap ? info.uordblks + info.hblkhd : conformance_device_bytes(*backend_));
    };
    CacheDriver model = driver();
    {
      const auto warm = policy_->new_sequence(prompt);  // allocates scratch memory that stays
      model.run(warm.get(), 1200, 40);
    }
    const double before = in_use();
    const auto cache = policy_->new_sequence(prompt);
    while (cache->tokens() < 1200) {
      model.run(cache.get(), cache->tokens() + 40, 40);
      const CacheStats stats = cache->stats();
      ASSERT_LE(stats.bytes, policy_->max_bytes(prompt, cache->tokens())) << cache->tokens();
      ASSERT_EQ(stats.full_bytes - stats.window_bytes, (cache->tokens() + 63) / 64 * 64 * shape_.bytes_per_token());
      ASSERT_LE(stats.tokens_kept, cache->tokens());
    }
    const auto bytes = static_cast<double>(cache->stats().bytes);
    // The device holds everything except the policy's state. Its pool rounds small pages up to whole units.
    if (!on_heap) {
      EXPECT_LE(in_use() - before, 1.05 * bytes) << prompt;
      EXPECT_GT(in_use() - before, 0.7 * bytes) << prompt;
    } else if (before > 0) {  // sanitizers do not report the size of the heap
      EXPECT_NEAR(in_use() - before, bytes, 0.12 * bytes) << prompt;
    }
  }
}

TEST_P(Conformance, TruncatesToCommittedTokensOnly) {
  const auto cache = policy_->new_sequence(1);
  driver().run(cache.get(), 200, 64);
  driver().pass(cache.get(), 10);
  EXPECT_THROW(cache->truncate(199), CacheError);
  EXPECT_THROW(cache->truncate(211), CacheError);
  EXPECT_THROW(cache->commit(211), CacheError);
  cache->truncate(205);
  EXPECT_EQ(cache->tokens(), 205);
}

TEST_P(Conformance, WhatAProbeSawCannotBeTakenBack) {
  const auto cache = policy_->new_sequence(700);
  driver().run(cache.get(), 600, 64);
  const int64_t n = std::min<int64_t>(300, cache->next_boundary() - cache->tokens());
  const TokenRange probes = cache->probes(n);
  driver().pass(cache.get(), n);
  if (probes.empty()) {  // nothing was observed, so the whole pass can be rolled back
    cache->truncate(600);
    EXPECT_EQ(cache->tokens(), 600);
  } else {
    EXPECT_THROW(cache->truncate(probes.end - 1), CacheError);
  }
}

TEST_P(Conformance, StaysNearTheFullCache) {
  const std::string& name = std::get<0>(GetParam());
  const auto full = make_policy(context(), nullptr);
  const auto expected_cache = full->new_sequence(1), cache = policy_->new_sequence(1);
  const auto expected = driver().run(expected_cache.get(), 1000, 64), outputs = driver().run(cache.get(), 1000, 64);
  double error = 0, size = 0;
  for (size_t t = 0; t < outputs.size(); ++t) {
    for (size_t i = 0; i < outputs[t].size(); ++i) {
      ASSERT_TRUE(std::isfinite(outputs[t][i]));
      error += std::pow(outputs[t][i] - expected[t][i], 2);
      size += std::pow(expected[t][i], 2);
    }
  }
  const bool evicts = cache->stats().tokens_kept < 1000;
  // Attention to random keys is even. Evicting tokens changes the mean over them; quantizing hardly does.
  const bool far = name == "k2v2" || name == "calibrated_few_bits" || name == "calibrated_two_tiers" ||
                   name == "channel_packed" || name == "channel_packed_cut" || name == "mixed_precision_dropping" ||
                   name.starts_with("sparse");
  EXPECT_LT(std::sqrt(error / size), evicts ? 1.5 : far ? 0.5 : name == "k8v8" ? 0.01 : 0.25);
  if (name != "full" && name != "sparse") {
    const int64_t most =
        name == "channel_packed_cut" ? 9 : 7;  // tenths: three quarters of the channels, and the window
    const int64_t of_full = expected_cache->stats().policy_bytes();
    EXPECT_LT(cache->stats().policy_bytes(), of_full * most / 10 + of_full / 20);
  }
}

TEST_P(Conformance, AStateIsAFunctionOfItsTokens) {
  for (const int64_t prompt : {1, 300, 1000}) {
    const auto cache = policy_->new_sequence(prompt), again = policy_->new_sequence(prompt);
    driver().run(cache.get(), std::min<int64_t>(prompt, 700), 100);
    driver().run(cache.get(), 1100, 1);
    driver().run(again.get(), 1100, 512);
    EXPECT_TRUE(contents(*again) == contents(*cache)) << prompt;
    EXPECT_EQ(again->next_boundary(), cache->next_boundary());
    EXPECT_EQ(again->stats().bytes, cache->stats().bytes);
  }
}

// Also with one worker, so that what a boundary takes beside the compacted layers is not hidden by that of others.
TEST_P(Conformance, ThePoolCountsEveryByteAndGrowthBoundsIt) {
  PolicyContext one_worker = context();
  one_worker.threads = nullptr;
  const auto alone = make_policy(one_worker, spec_of(std::get<0>(GetParam())));
  for (const auto& [policy, prompt] : {std::pair(policy_.get(), int64_t{1}),
                                       {policy_.get(), 300},
                                       {policy_.get(), 1000},
                                       {alone.get(), 300},
                                       {alone.get(), 1000}}) {
    const int64_t others = pool_->bytes_in_use();
    CacheDriver model = driver();
    auto cache = policy->new_sequence(prompt);
    std::unique_ptr<SequenceCache> fork;
    std::minstd_rand random(static_cast<uint32_t>(prompt));
    int64_t exact = 0;
    while (cache->tokens() < 1200) {
      const int64_t at = cache->tokens();
      if (fork == nullptr) {
        ASSERT_EQ(pool_->bytes_in_use() - others, cache->stats().bytes) << at;
        ASSERT_EQ(cache->stats().shared_bytes, 0);
      }
      if (at > 650 && fork == nullptr) fork = cache->fork();
      if (at > 900 && at % 40 == 0) fork = cache->fork();  // the previous fork returns its pages
      const int64_t pieces = at < prompt ? 1 + static_cast<int64_t>(random()) % 200 : 1;
      const int64_t n = std::min(pieces, cache->next_boundary() - at), bound = cache->max_growth(n);
      const int64_t before = pool_->bytes_in_use();
      pool_->restart_peak();
      model.pass(cache.get(), n);
      cache->commit(at + n);
      ASSERT_LE(pool_->peak_bytes() - before, bound) << "prompt " << prompt << ", tokens " << at << " + " << n;
      if (fork == nullptr) {
        ASSERT_LE(pool_->peak_bytes() - others, policy->max_bytes(prompt, at + n)) << at << " + " << n;
      }
      if (at >= prompt) {
        ASSERT_LE(cache->stats().bytes, policy->max_bytes(0, at + n)) << at << " + " << n;
      }
      exact += bound == 0 ? 1 : 0;
    }
    EXPECT_GT(exact, prompt == 1000 ? 60 : 300);  // most steps of decoding need no memory
    EXPECT_GT(fork->stats().shared_bytes, 0);
    cache.reset();
    EXPECT_EQ(fork->stats().shared_bytes, 0);
    EXPECT_EQ(pool_->bytes_in_use() - others, fork->stats().bytes);
    fork.reset();
    EXPECT_EQ(pool_->bytes_in_use(), others);
  }
}

// Stores state their bytes for any number of tokens before the first one comes. Growth and the bounds of the policy are
// derived from that.
TEST_P(Conformance, HoldsTheBytesThatItsStoresState) {
  if (context().window.n_layers > 0) GTEST_SKIP() << "about a policy's stores alone";
  const bool exact = !by_contents(std::get<0>(GetParam()));
  for (const int64_t prompt : {1, 300, 1000}) {
    const auto fresh = policy_->new_sequence(prompt), cache = policy_->new_sequence(prompt);
    const auto& empty = dynamic_cast<const StagedSequence&>(*fresh);
    const auto& grown = dynamic_cast<const StagedSequence&>(*cache);
    CacheDriver model = driver();
    int64_t most = 0;
    while (cache->tokens() < 1200) {
      const int64_t at = cache->tokens(), end = at < prompt ? std::min(at + 37, prompt) : at + 1;
      const int64_t soon = std::min(end + 50, cache->next_boundary()), stated = grown.bytes_at(soon);
      model.run(cache.get(), end, 37);
      const int64_t held = cache->stats().bytes, bound = policy_->max_bytes(prompt, end);
      ASSERT_EQ(grown.bytes_at(end), held) << "prompt " << prompt << " at " << end;
      if (exact) {
        ASSERT_EQ(empty.bytes_at(end), held) << "prompt " << prompt << " at " << end;
      } else {
        ASSERT_LE(held, empty.bytes_at(end)) << "prompt " << prompt << " at " << end;
      }
      if (end == soon) {
        ASSERT_LE(held, stated) << "prompt " << prompt << " at " << end;
      }
      ASSERT_EQ(bound, fresh->stats().bytes + fresh->max_growth(end)) << "prompt " << prompt << " at " << end;
      ASSERT_GE(bound, std::max(most, empty.bytes_at(end))) << "prompt " << prompt << " at " << end;
      most = bound;
    }
  }
}

TEST_P(Conformance, GrowthBoundsManyBoundariesAtOnce) {
  CacheDriver model = driver();
  const auto cache = policy_->new_sequence(500);
  model.run(cache.get(), 130, 64);
  const int64_t before = pool_->bytes_in_use(), bound = cache->max_growth(870);
  pool_->restart_peak();
  model.run(cache.get(), 1000, 300);
  EXPECT_LE(pool_->peak_bytes() - before, bound);
}

TEST_P(Conformance, ResumesWhereAFreshCacheWouldBe) {
  const auto fresh = policy_->new_sequence(900);
  const Outputs expected = driver().run(fresh.get(), 1000, 64);
  int64_t resumed = 0;
  for (const int64_t prompt : {200, 666, 1000}) {  // 666: one state ends exactly where its prompt ends
    const auto cache = policy_->new_sequence(prompt), other = policy_->new_sequence(900);
    for (int64_t at = 50; at < 900; at += 77) {
      driver().run(cache.get(), at, 64);
      driver().run(other.get(), at, 64);
      const auto next = cache->resume(900);
      if (next == nullptr) continue;
      ++resumed;
      EXPECT_TRUE(contents(*next) == contents(*other)) << prompt << " at " << at;
      ASSERT_EQ(next->next_boundary(), other->next_boundary());
      if (at < 600) continue;
      EXPECT_TRUE(same(driver().run(next.get(), 1000, 64), Outputs(expected.begin() + at, expected.end())))
          << prompt << " at " << at;
    }
  }
  EXPECT_GT(resumed, 8);
  EXPECT_THROW(fresh->resume(1000), CacheError);  // no token of the prompt would be left
}

TEST_P(Conformance, AStateThatWasSavedGoesOnAlike) {
  for (const auto& [prompt, at] : {std::pair<int64_t, int64_t>{1, 660}, {666, 600}, {700, 766}}) {
    const auto cache = policy_->new_sequence(prompt);
    driver().run(cache.get(), at, 100);
    StateWriter saved;
    ASSERT_TRUE(cache->save(&saved));
    const int64_t before = pool_->bytes_in_use();
    StateReader in(saved.data());
    const auto loaded = policy_->load(&in);
    EXPECT_EQ(in.left(), 0);
    EXPECT_EQ(pool_->bytes_in_use() - before, loaded->stats().bytes);
    EXPECT_EQ(loaded->tokens(), at);
    EXPECT_EQ(loaded->committed(), cache->committed());
    EXPECT_EQ(loaded->next_boundary(), cache->next_boundary());
    EXPECT_EQ(loaded->stats().bytes, cache->stats().bytes);
    EXPECT_EQ(loaded->details(), cache->details());
    ASSERT_TRUE(contents(*loaded) == contents(*cache)) << prompt << " at " << at;
    EXPECT_TRUE(same(driver().run(loaded.get(), 900, 64), driver().run(cache.get(), 900, 64)))
        << prompt << " at " << at;
    StateWriter again, never_saved;
    loaded->save(&again);
    cache->save(&never_saved);
    EXPECT_EQ(again.data(), never_saved.data()) << prompt << " at " << at;
  }
}

TEST_P(Conformance, RepresentsWhatItShows) {
  const auto cache = policy_->new_sequence(700);
  driver().run(cache.get(), 830, 512);
  std::vector<kernels::KvSegment> segments;
  cache->view(1, 0, &segments);
  int64_t entries = 0;
  for (const kernels::KvSegment& segment : segments) entries += segment.tokens;
  for (int64_t head = 0; head < shape_.n_kv_heads; ++head) {
    std::vector<int64_t> positions = cache->positions(1, head);
    ASSERT_EQ(static_cast<int64_t>(positions.size()), entries);
    EXPECT_EQ(positions.back(), 829);
    std::erase(positions, SequenceCache::kOtherHead);
    std::sort(positions.begin(), positions.end());
    EXPECT_EQ(std::adjacent_find(positions.begin(), positions.end()), positions.end());
    EXPECT_EQ(positions.front(), 0);
  }
}

std::vector<std::string> names() {
  std::vector<std::string> result;
  const auto backend = conformance_backend(nullptr);
  for (const PolicyRow& row : policy_registry()) {
    if (row.trials.empty()) result.emplace_back(row.name);
    for (const PolicyTrial& trial : row.trials) {
      if (trial.cuts_pages && !backend->cuts_pages()) continue;
      result.push_back(full_name(row, trial));
    }
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Policies, Conformance,
                         testing::Combine(testing::ValuesIn(names()), testing::ValuesIn(conformance_shapes())),
                         [](const auto& row) {
                           const Shape& shape = std::get<1>(row.param);
                           return std::get<0>(row.param) + (shape.window.n_layers > 0 ? "_windows" : "") +
                                  (shape.n_heads == shape.n_kv_heads ? "_mha_" : "_gqa_") +
                                  std::to_string(shape.head_dim);
                         });

}  // namespace
}  // namespace smartkv
