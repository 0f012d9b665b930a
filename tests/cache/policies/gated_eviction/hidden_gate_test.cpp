#include "cache/policies/gated_eviction/hidden_gate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/state_io.h"
#include "kernels/bf16.h"
#include "kernels/thread_pool.h"
#include "tests/cache/cache_driver.h"
#include "tests/cache/policy_error.h"
#include "tests/cache/random_gate.h"

namespace smartkv {
namespace {

using testing::HasSubstr;

constexpr int64_t kWidth = 48, kHiddenHeads = 3;

// Returns random values that bf16 represents exactly.
std::vector<float> bf16_values(int64_t n, float deviation, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = from_bf16(to_bf16(normal(random)));
  return values;
}

std::vector<uint16_t> as_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), to_bf16);
  return rounded;
}

// Returns row `row` of weight [.., n] times x [n].
double product(const std::vector<float>& weight, int64_t row, const double* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += weight[static_cast<size_t>(row * n + i)] * x[i];
  return sum;
}

// Returns the scores of `gate` for all rows of x, which are computed in one call.
std::vector<float> scores_of(const HiddenGate& gate, const std::vector<float>& x, int threads = 2) {
  ThreadPool pool(threads);
  const auto n = std::ssize(x) / kWidth;
  std::vector<float> scores(static_cast<size_t>(n * kHiddenHeads));
  gate.score(pool, 0, as_bf16(x).data(), n, scores.data());
  return scores;
}

KvzapLayer kvzap_layer(const std::vector<int64_t>& widths, std::mt19937& random) {
  KvzapLayer layer;
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    const float deviation = 1 / std::sqrt(static_cast<float>(widths[i]));
    layer.maps.push_back(
        {bf16_values(widths[i + 1] * widths[i], deviation, random), bf16_values(widths[i + 1], 0.5f, random)});
  }
  return layer;
}

FastKvzipLayer fast_kvzip_layer(const FastKvzipShape& s, std::mt19937& random) {
  const int64_t queries = s.n_kv_heads * s.n_queries;
  FastKvzipLayer layer{.q = bf16_values(queries * s.dim * kWidth, 0.3f, random),
                       .q_bias = bf16_values(queries * s.dim, 0.3f, random),
                       .k = bf16_values(s.n_kv_heads * s.dim * kWidth, 0.3f, random),
                       .q_norm = bf16_values(s.dim, 1, random),
                       .k_norm = bf16_values(s.dim, 1, random),
                       .bases = bf16_values(s.n_kv_heads * s.n_bases * s.dim, 1, random),
                       .logit_bias = bf16_values(queries, 1, random)};
  return layer;
}

TEST(HiddenGate, KvzapIsAnMlpOrALinearMap) {
  std::mt19937 random(1);
  const std::vector<float> x = bf16_values(9 * kWidth, 1, random);
  for (const int64_t inner : {0, 22}) {
    const KvzapLayer layer = kvzap_layer(
        inner == 0 ? std::vector<int64_t>{kWidth, kHiddenHeads} : std::vector<int64_t>{kWidth, inner, kHiddenHeads},
        random);
    const auto gate = make_kvzap_gate(kWidth, kHiddenHeads, inner, {layer});
    const std::vector<float> found = scores_of(*gate, x);
    for (int64_t row = 0; row < 9; ++row) {
      std::vector<double> y(x.begin() + row * kWidth, x.begin() + (row + 1) * kWidth);
      for (const KvzapLayer::Map& map : layer.maps) {
        std::vector<double> next;
        for (int64_t i = 0; i < std::ssize(map.bias); ++i) {
          next.push_back(product(map.weight, i, y.data(), std::ssize(y)) + map.bias[static_cast<size_t>(i)]);
        }
        y = std::move(next);
        if (&map == &layer.maps.back()) continue;
        for (double& z : y) z = z / 2 * (1 + std::erf(z / std::sqrt(2.0)));
      }
      for (int64_t head = 0; head < kHiddenHeads; ++head) {
        EXPECT_NEAR(found[static_cast<size_t>(row * kHiddenHeads + head)], y[static_cast<size_t>(head)],
                    inner == 0 ? 1e-4 : 0.01);
      }
    }
  }
}

TEST(HiddenGate, FastKvzipIsTheShareOfATokensOwnKey) {
  std::mt19937 random(2);
  const FastKvzipShape s{kWidth, kHiddenHeads, 2, 16, 5};
  const FastKvzipLayer layer = fast_kvzip_layer(s, random);
  const auto gate = make_fast_kvzip_gate(s, {layer});
  const std::vector<float> x = bf16_values(7 * kWidth, 1, random), found = scores_of(*gate, x);
  const auto projected = [&](const std::vector<float>& weight, const std::vector<float>& bias,
                             const std::vector<float>& norm, int64_t first, const double* row) {
    std::vector<double> y;
    double squares = 0;
    for (int64_t i = 0; i < s.dim; ++i) {
      y.push_back(product(weight, first + i, row, kWidth) + (bias.empty() ? 0 : bias[static_cast<size_t>(first + i)]));
      squares += y.back() * y.back();
    }
    for (size_t i = 0; i < y.size(); ++i) y[i] *= norm[i] / std::sqrt(squares / static_cast<double>(s.dim) + 1e-6);
    return y;
  };
  std::set<float> different;
  for (int64_t t = 0; t < 7; ++t) {
    const std::vector<double> row(x.begin() + t * kWidth, x.begin() + (t + 1) * kWidth);
    for (int64_t head = 0; head < kHiddenHeads; ++head) {
      const std::vector<double> key = projected(layer.k, {}, layer.k_norm, head * s.dim, row.data());
      double mean = 0;
      for (int64_t q = head * s.n_queries; q < (head + 1) * s.n_queries; ++q) {
        const std::vector<double> query = projected(layer.q, layer.q_bias, layer.q_norm, q * s.dim, row.data());
        const double own = std::exp(std::inner_product(key.begin(), key.end(), query.begin(), 0.0) / 4 +
                                    layer.logit_bias[static_cast<size_t>(q)]);
        double all = own;
        for (int64_t b = 0; b < s.n_bases; ++b) {
          all += std::exp(product(layer.bases, head * s.n_bases + b, query.data(), s.dim) / 4);
        }
        mean += own / all / static_cast<double>(s.n_queries);
      }
      EXPECT_NEAR(found[static_cast<size_t>(t * kHiddenHeads + head)], mean, 1e-4);
      different.insert(found[static_cast<size_t>(t * kHiddenHeads + head)]);
    }
  }
  EXPECT_GT(different.size(), 15u);
}

TEST(HiddenGate, AScoreDependsOnNothingButItsToken) {
  std::mt19937 random(3);
  const FastKvzipShape s{kWidth, kHiddenHeads, 2, 16, 5};
  const std::vector<float> x = bf16_values(100 * kWidth, 1, random);
  for (const auto& gate : {make_kvzap_gate(kWidth, kHiddenHeads, 22, {kvzap_layer({kWidth, 22, kHiddenHeads}, random)}),
                           make_fast_kvzip_gate(s, {fast_kvzip_layer(s, random)})}) {
    const std::vector<float> together = scores_of(*gate, x);
    EXPECT_EQ(scores_of(*gate, x, 1), together);
    for (const int64_t t : {0, 17, 99}) {
      const std::vector<float> alone = scores_of(*gate, {x.begin() + t * kWidth, x.begin() + (t + 1) * kWidth});
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + t * kHiddenHeads)) << t;
    }
    EXPECT_GT(gate->bytes(), 2 * kWidth * kHiddenHeads);
  }
}

class GatedCache : public testing::Test {
 protected:
  std::unique_ptr<KvCachePolicy> policy(const nlohmann::json& parameters) {
    nlohmann::json spec = parameters;
    if (!spec.contains("policy")) spec["policy"] = "gated_eviction";
    context_.load_gate = [this](const std::string&) { return gate_; };
    context_.rope = [](int64_t, float* cos, float* sin) {
      std::fill_n(cos, 16, 1.0f);
      std::fill_n(sin, 16, 0.0f);
    };
    return make_policy(context_, spec);
  }
  std::set<int64_t> kept(const SequenceCache& cache, int64_t layer, int64_t head) const {
    const std::vector<int64_t> positions = cache.positions(layer, head);
    std::set<int64_t> kept(positions.begin(), positions.end());
    kept.erase(SequenceCache::kOtherHead);
    return kept;
  }

  ThreadPool threads_{2};
  CacheShape shape_{2, 3, 32, kernels::KvType::kF32};
  PolicyContext context_{shape_, PagePool::create(shape_), &threads_};
  std::shared_ptr<const Gate> gate_ = random_hidden_gate(shape_, kTestHiddenSize);
};

TEST_F(GatedCache, KeepsTheTokensOfHighestScore) {
  constexpr int64_t kTokens = 700, kLeft = (kTokens - 64) / 64 * 64;  // The tail has the others.
  const auto& gate = dynamic_cast<const HiddenGate&>(*gate_);
  for (const auto& [sizes, prefill] : {std::pair("equal", "exact"), {"equal", "streaming"}, {"shared", "exact"}}) {
    const auto cache = policy({{"tokens", 384}, {"sizes", sizes}, {"prefill", prefill}})->new_sequence(kTokens);
    CacheDriver(shape_, 6, &threads_).run(cache.get(), kTokens, 128);
    for (int64_t layer = 0; layer < shape_.n_layers; ++layer) {
      std::vector<float> scores(kTokens * 3);
      gate.score(threads_, layer, as_bf16(random_hidden(layer, 0, kTokens)).data(), kTokens, scores.data());
      for (int64_t head = 0; head < shape_.n_kv_heads; ++head) {
        const std::set<int64_t> keeps = kept(*cache, layer, head);
        ASSERT_LT(keeps.size(), size_t{kTokens});
        float least_kept = INFINITY, most_lost = -INFINITY;
        for (int64_t position = 4; position < kLeft; ++position) {
          const float score = scores[static_cast<size_t>(position * 3 + head)];
          float& bound = keeps.contains(position) ? least_kept : most_lost;
          bound = keeps.contains(position) ? std::min(bound, score) : std::max(bound, score);
        }
        EXPECT_GE(least_kept, most_lost) << sizes << ", " << prefill << ", layer " << layer << ", head " << head;
      }
    }
  }
}

TEST_F(GatedCache, ASharedBudgetFollowsTheScoresOfHeads) {
  // A bias that is far above the others makes all tokens of a head more valuable.
  std::vector<KvzapLayer> layers;
  for (int64_t layer = 0; layer < shape_.n_layers; ++layer) {
    layers.push_back(
        {{{std::vector<float>(static_cast<size_t>(3 * kTestHiddenSize), 0.125f), {0, layer == 1 ? 100.0f : 0.0f, 0}}}});
  }
  gate_ = make_kvzap_gate(kTestHiddenSize, 3, 0, layers);
  const auto cache = policy({{"tokens", 384}})->new_sequence(700);
  CacheDriver(shape_, 6, &threads_).run(cache.get(), 700, 128);
  EXPECT_EQ(kept(*cache, 1, 1).size(), 700u);
  EXPECT_LT(kept(*cache, 1, 0).size(), 500u);
}

TEST_F(GatedCache, ThrowsIfHiddenStatesAreNotShown) {
  const auto cache = policy({{"tokens", 384}})->new_sequence(1);
  EXPECT_TRUE(cache->wants_hidden());
  const std::vector<float> rows(static_cast<size_t>(shape_.n_kv_heads * shape_.head_dim));
  cache->reserve(1);
  show_random_hidden(cache.get(), shape_, 0, 1);
  for (int64_t layer = 0; layer < shape_.n_layers; ++layer) {
    cache->write(layer, {rows.data(), rows.data(), std::ssize(rows), 0, 1});
  }
  try {
    cache->advance(1);
    FAIL() << "no error";
  } catch (const CacheError& error) {
    EXPECT_THAT(error.what(), HasSubstr("expected 1 tokens in each of 2 layers, found 1 in all"));
  }
}

TEST_F(GatedCache, SavedScoresThatEndEarlyAreRefused) {
  const auto of = policy({{"tokens", 384}});
  const auto cache = of->new_sequence(1);
  CacheDriver(shape_, 6, &threads_).run(cache.get(), 100, 50);
  StateWriter saved;
  cache->save(&saved);
  StateReader whole(saved.data()), cut(std::span(saved.data()).first(saved.data().size() - 1));
  EXPECT_EQ(of->load(&whole)->stats().bytes, cache->stats().bytes);
  EXPECT_THROW(of->load(&cut), CacheError);
}

TEST_F(GatedCache, OfHeadsKeepsRetrievalHeadsWholeAndTheLatestOfOthers) {
  gate_ = std::make_shared<HeadGate>(3, std::vector<float>{1, 0, 0, 0, 0.8f, 0});
  const auto cache = policy({{"tokens", 384}})->new_sequence(700);
  EXPECT_FALSE(cache->wants_hidden());
  CacheDriver(shape_, 6, &threads_).run(cache.get(), 700, 128);
  for (int64_t layer = 0; layer < 2; ++layer) {
    for (int64_t head = 0; head < 3; ++head) {
      const std::set<int64_t> keeps = kept(*cache, layer, head);
      if (head == layer) {
        EXPECT_EQ(keeps.size(), 700u);
        continue;
      }
      // Sinks, then a gap, then the latest tokens.
      EXPECT_LE(keeps.size(), 300u);
      EXPECT_TRUE(keeps.contains(3));
      EXPECT_FALSE(keeps.contains(4));
      const int64_t latest = 700 - (std::ssize(keeps) - 4);
      EXPECT_EQ(*std::next(keeps.begin(), 4), latest) << layer << ", " << head;
    }
  }
}

TEST_F(GatedCache, AGateOfHeadsNeedsSharedSizes) {
  gate_ = random_head_gate(shape_);
  policy({{"tokens", 384}});
  const std::string why = "expected a gate that ranks the tokens of a KV head, found DuoAttention";
  const nlohmann::json named = {{"policy", "gated_eviction"}, {"tokens", 384}, {"sizes", "equal"}, {"gate", "duo"}};
  EXPECT_THAT(policy_error(context_, named), HasSubstr(why));
  nlohmann::json learned = named;
  learned.erase("gate");
  EXPECT_EQ(make_policy(context_, learned)->stand_in(),
            "scorer attention, because the model has no gate and was not calibrated");
  learned["scorer"] = "learned";
  EXPECT_THAT(policy_error(context_, learned), HasSubstr(why));
  EXPECT_THAT(policy_error(context_, {{"policy", "block_summary"}, {"tokens", 448}, {"salient", 4}, {"gate", "duo"}}),
              HasSubstr(why));
}

TEST_F(GatedCache, SummariesKeepTheTokensOfHighestScore) {
  const auto cache =
      policy({{"policy", "block_summary"}, {"tokens", 448}, {"window", 64}, {"salient", 4}})->new_sequence(700);
  EXPECT_TRUE(cache->wants_hidden());
  CacheDriver(shape_, 6, &threads_).run(cache.get(), 900, 128);
  EXPECT_EQ(cache->tokens(), 900);
  EXPECT_GT(cache->details().at("outlier_entries"), 0);
}

TEST_F(GatedCache, AProcessWithSomeOfTheHeadsIsRefused) {
  shape_.n_kv_heads = 2;
  PolicyContext part{shape_, PagePool::create(shape_), &threads_};
  part.load_gate = [this](const std::string&) { return gate_; };
  EXPECT_THAT(policy_error(part, {{"policy", "gated_eviction"}, {"tokens", 384}}),
              HasSubstr("expected a process that holds all 3 KV heads for KVzap, linear, found one with 2"));
}

}  // namespace
}  // namespace smartkv
