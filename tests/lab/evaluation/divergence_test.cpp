#include "lab/evaluation/divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/lab/evaluation/evaluation_fixture.h"

namespace smartkv {
namespace {

using testing::AllOf;
using testing::HasSubstr;

DivergenceOptions divergence_options(int64_t context, int64_t windows) {
  DivergenceOptions options;
  options.context = context;
  options.windows = windows;
  return options;
}

template <typename Function>
std::string evaluation_error(const Function& function) {
  try {
    function();
  } catch (const EvaluationError& error) {
    return error.what();
  }
  return "";
}

TEST(Divergence, OfTheFullCacheFromItselfIsExactlyZero) {
  const TinyEvaluation tiny;
  const std::vector<PolicySpec> specs = {{"full", "full"}, {"again", "full"}};
  const auto report = measure_divergence(tiny.model, specs, tiny.text(1500), divergence_options(300, 3));
  ASSERT_EQ(report.rows.size(), 2u);
  const auto& row = report.rows[1];
  EXPECT_EQ(row["policy"], "again");
  EXPECT_EQ(row["counted_tokens"], 900);
  EXPECT_EQ(row["kl_mean"], 0.0);
  EXPECT_EQ(row["kl_max"], 0.0);
  EXPECT_NEAR(row["same_top_percent"].get<double>(), 100, 1e-9);
  EXPECT_NEAR(row["same_top5_percent"].get<double>(), 100, 1e-9);
  EXPECT_EQ(row["perplexity"], report.rows[0]["perplexity"]);
  EXPECT_EQ(row["change_percent"], 0.0);
  EXPECT_EQ(row["change_error"], 0.0);
  EXPECT_EQ(row["ratio"], 1.0);
  EXPECT_NEAR(row["bits_per_value"].get<double>(), 32.0 * 320 / 300, 1e-9);  // 5 whole pages
}

TEST(Divergence, CountsOnlyWhatFollowsFrom) {
  const TinyEvaluation tiny;
  const auto text = tiny.text(700);
  const std::vector<PolicySpec> specs = {{"full", "full"}};
  DivergenceOptions late = divergence_options(300, 2);
  late.from = 100;
  EXPECT_EQ(measure_divergence(tiny.model, specs, text, late).rows[0]["counted_tokens"], 400);
  late.from = 300;
  EXPECT_THAT(evaluation_error([&] { measure_divergence(tiny.model, specs, text, late); }), HasSubstr("300"));
}

TEST(Divergence, SeesWhatEvictionLoses) {
  const TinyEvaluation tiny;
  const std::vector<PolicySpec> specs = parse_policy_list(R"({"policy":"streaming","tokens":192})");
  const auto report = measure_divergence(tiny.model, specs, tiny.text(1100), divergence_options(512, 2));
  EXPECT_GT(report.rows[1]["kl_mean"].get<double>(), 0.0);
  EXPECT_LT(report.rows[1]["tokens_kept"].get<double>(), 200.0);
  EXPECT_LT(report.rows[1]["bits_per_value"].get<double>(), 16.0);
  EXPECT_GT(report.rows[1]["bits_per_value_mean"].get<double>(), report.rows[1]["bits_per_value"].get<double>());
}

TEST(Divergence, AFailureNamesPolicyWindowAndToken) {
  const TinyEvaluation tiny;
  const std::vector<PolicySpec> specs = {{"full", "full"}, {"the broken one", "broken"}};
  EXPECT_THAT(
      evaluation_error([&] { measure_divergence(tiny.model, specs, tiny.text(700), divergence_options(300, 2)); }),
      AllOf(HasSubstr("\"the broken one\""), HasSubstr("window 0"), HasSubstr("token 192")));
}

TEST(Divergence, RefusesATextOrAContextThatDoesNotFit) {
  const TinyEvaluation tiny;
  const std::vector<PolicySpec> specs = {{"full", "full"}};
  EXPECT_THAT(
      evaluation_error([&] { measure_divergence(tiny.model, specs, tiny.text(600), divergence_options(300, 2)); }),
      AllOf(HasSubstr("601"), HasSubstr("600")));
  EXPECT_THAT(
      evaluation_error([&] { measure_divergence(tiny.model, specs, tiny.text(600), divergence_options(513, 1)); }),
      AllOf(HasSubstr("512"), HasSubstr("513")));
}

}  // namespace
}  // namespace smartkv
