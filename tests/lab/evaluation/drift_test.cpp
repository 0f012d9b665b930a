#include "lab/evaluation/drift.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/evaluation/shadow_cache.h"
#include "tests/lab/evaluation/evaluation_fixture.h"

namespace smartkv {
namespace {

constexpr const char* kStreaming = R"({"policy":"streaming","tokens":192})";
constexpr const char* kSnapKv = R"({"policy":"snapkv","tokens":192,"window":64})";

DriftOptions drift_options() {
  DriftOptions options;
  options.context = 480;
  options.windows = 1;
  options.share = 0.05;
  return options;
}

TEST(Drift, OfTheFullCacheIsZeroInEveryLayer) {
  const TinyEvaluation tiny;
  const auto report = measure_drift(tiny.model, parse_policy_list("full"), tiny.text(500), drift_options());
  ASSERT_EQ(report.rows.size(), 4u);  // three layers and their mean
  for (const auto& row : report.rows) {
    EXPECT_EQ(row["error"], 0.0);
    EXPECT_EQ(row["jaccard"], 1.0);
  }
  EXPECT_EQ(report.rows[0]["samples"], 24);
  EXPECT_EQ(report.rows[3]["layer"], "all");
}

TEST(Drift, SeesWhatEvictionLoses) {
  const TinyEvaluation tiny;
  const auto report = measure_drift(tiny.model, parse_policy_list(std::string(kStreaming) + "," + kSnapKv),
                                    tiny.text(500), drift_options());
  ASSERT_EQ(report.rows.size(), 12u);
  for (const size_t row : {size_t{7}, size_t{11}}) {
    EXPECT_GT(report.rows[row]["error"].get<double>(), 0.0);
    EXPECT_GT(report.rows[row]["jaccard"].get<double>(), 0.0);
    EXPECT_LT(report.rows[row]["jaccard"].get<double>(), 1.0);
  }
}

TEST(Drift, FailsOnANan) {
  const TinyEvaluation tiny;
  const std::vector<PolicySpec> specs = {{"full", "full"}, {"the broken one", "broken"}};
  try {
    measure_drift(tiny.model, specs, tiny.text(500), drift_options());
    FAIL() << "no error";
  } catch (const EvaluationError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("\"the broken one\""));
  }
}

// In the first layer, keys do not depend on the cache. So a follower must hold what it would hold alone.
TEST(ShadowCache, ShowsFollowersTheirOwnProbes) {
  TinyEvaluation tiny;
  const auto text = tiny.text(480);
  const auto full = tiny.model.make_policy("full"), snapkv = tiny.model.make_policy(nlohmann::json::parse(kSnapKv));
  const auto alone = snapkv->new_sequence(1);
  feed(*tiny.llama, *alone, text, 0, nullptr);
  std::vector<std::vector<LayerDrift>> drift(1, std::vector<LayerDrift>(3));
  std::vector<std::unique_ptr<SequenceCache>> followers;
  const SequenceCache* follower = followers.emplace_back(snapkv->new_sequence(1)).get();
  const kernels::AttentionShape shape{4, 2, 32, 0.1767767f, kernels::KvType::kF32};
  ShadowCache shadow({shape, {20}}, *tiny.llama->kv_backend(), full->new_sequence(1), std::move(followers), &drift);
  feed(*tiny.llama, shadow, text, 0, nullptr);
  std::vector<kernels::KvSegment> expected, found;
  alone->view(0, 0, &expected);
  follower->view(0, 0, &found);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].tokens, expected[i].tokens);
    const auto* a = static_cast<const float*>(found[i].k);
    const auto* b = static_cast<const float*>(expected[i].k);
    for (int64_t j = 0; j < found[i].tokens; ++j)
      EXPECT_EQ(a[j], b[j]) << "segment " << i << ", token " << j;  // the first channel
  }
}

}  // namespace
}  // namespace smartkv
