// The arithmetic of a serving benchmark, its report, and a case against a server without a model.
#include "lab/serving/serving_benchmark.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/command_runner.h"
#include "tests/server/test_server.h"

namespace smartkv::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RequestOutcome completed(int64_t tokens, double first, double last) {
  return {.failure = {},
          .prompt_tokens = 10,
          .output_tokens = tokens,
          .cached_tokens = 4,
          .retries = 1,
          .first_token_s = first,
          .last_token_s = last};
}

ServingRun run_with(double tokens_per_s) {
  ServingRun run;
  run.requests = 2;
  run.tokens_per_s = tokens_per_s;
  run.wall_s = 1;
  return run;
}

const ServingCase kCase{.name = "x",
                        .what = "2 + 3 tokens",
                        .requests = 2,
                        .prompt_tokens = 2,
                        .output_tokens = 3,
                        .kv_cache_bytes = 96000000};

TEST(Percentile, LiesBetweenTheNearestValues) {
  EXPECT_EQ(percentile({}, 0.5), 0);
  EXPECT_EQ(percentile({7}, 0.99), 7);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_EQ(percentile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(percentile({1, 2, 3}, 1), 3);
  EXPECT_DOUBLE_EQ(percentile({0, 100}, 0.99), 99);
}

TEST(Summarize, CountsOnlyTokensOfCompletedRequests) {
  RequestOutcome failed;
  failed.failure = "429: full";
  failed.output_tokens = 1000;
  failed.last_token_s = 100;
  const ServingRun run = summarize(std::vector<RequestOutcome>{completed(11, 1, 2), failed, completed(5, 3, 4)});
  EXPECT_EQ(run.requests, 3);
  EXPECT_EQ(run.failed, 1);
  EXPECT_EQ(run.failure, "429: full");
  EXPECT_EQ(run.retries, 2);
  EXPECT_EQ(run.wall_s, 4);
  EXPECT_EQ(run.tokens_per_s, 4);
  EXPECT_EQ(run.first_token_p50_s, 2);
  EXPECT_DOUBLE_EQ(run.per_token_p50_s, (0.1 + 0.25) / 2);
  EXPECT_EQ(run.prompt_tokens, 20);
  EXPECT_EQ(run.cached_tokens, 8);
}

TEST(ServingRows, RatiosArePairedByRepetition) {
  const std::vector<std::string> servers = {"full", "balanced", "balanced, prefix_cache_bytes=0"};
  const std::vector<size_t> base = {0, 1, 1};
  const std::vector<std::vector<ServingRun>> runs = {{run_with(10), run_with(20), run_with(40)},
                                                     {run_with(30), run_with(40), run_with(160)},
                                                     {run_with(10), run_with(20), run_with(40)}};
  const auto rows = serving_rows(kCase, servers, base, runs);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["ratio"], 1.0);
  EXPECT_EQ(rows[1]["tokens_per_s"], 40.0);
  EXPECT_EQ(rows[1]["tokens_per_s_min"], 30.0);
  EXPECT_EQ(rows[1]["ratio"], 3.0);
  EXPECT_EQ(rows[1]["ratio_min"], 2.0);
  EXPECT_FALSE(rows[1].contains("base_ratio"));
  EXPECT_EQ(rows[2]["base_ratio"], 3.0);
}

TEST(ServingReport, ShowsWhatIsKnownAndWhatFailed) {
  ServingRun known = run_with(10), failed;
  known.preemptions = 3;
  known.kv_bytes_peak = 12500000;
  failed.requests = failed.failed = 2;
  failed.failure = "413: <never> fits";
  const std::vector<std::string> servers = {"full", "peer & co"};
  ServingReport report;
  report.rows =
      serving_rows(kCase, servers, std::vector<size_t>{0, 1}, std::vector<std::vector<ServingRun>>{{known}, {failed}});
  const ServingReport again = ServingReport::from_json(report.to_json());
  EXPECT_EQ(again.rows, report.rows);
  const std::string table = again.to_table();
  EXPECT_THAT(table, HasSubstr("12.5"));
  EXPECT_THAT(table, HasSubstr("x, peer & co: failed: 413: <never> fits"));
  EXPECT_THAT(table, Not(HasSubstr("delay")));
  const std::string svg = report.to_svg();
  EXPECT_TRUE(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("peer &amp; co"));
  EXPECT_THAT(svg, HasSubstr("96 MB of KV cache"));
  EXPECT_THAT(svg, HasSubstr(">failed<"));
}

std::string text_of_lines() {
  std::string text;
  for (int i = 0; i < 300; ++i) text += std::to_string(i) + " ";
  return text;
}

TEST(RunServingCase, DrivesAServer) {
  TestServer server;
  server.engine.set_answer({"a", "bcd"}, FinishReason::kLength);  // the warm-up request asks for 4 tokens
  const PromptSource prompts(text_of_lines(), server.engine.tokenizer_);
  const LoadClient client("http://127.0.0.1:" + std::to_string(server.port), {});
  ServingCase one = kCase;
  one.output_tokens = 4;
  const ServingRun run = run_serving_case(client, one, prompts, 0);
  EXPECT_EQ(run.failed, 0) << run.failure;
  EXPECT_GT(run.tokens_per_s, 0);
  EXPECT_TRUE(run.kv_bytes_peak.has_value());
  EXPECT_EQ(server.engine.submitted().size(), 3u);

  one.ahead_tokens = 100;
  const ServingRun fairness = run_serving_case(client, one, prompts, 0);
  EXPECT_EQ(fairness.failed, 0) << fairness.failure;
  EXPECT_EQ(fairness.requests, 6);  // two alone, two behind, two ahead
  EXPECT_GT(fairness.delay, 0);
  EXPECT_EQ(fairness.tokens_per_s, 0);
}

int bench(std::vector<const char*> arguments, std::string* error) {
  arguments.insert(arguments.begin(), {"bench", "--serving"});
  test::Ran ran = test::run(std::move(arguments));
  *error = std::move(ran.error);
  return ran.code;
}

TEST(BenchServing, RefusesWrongUsage) {
  std::string error;
  const auto refuses = [&](std::vector<const char*> arguments, const char* message) {
    EXPECT_EQ(bench(std::move(arguments), &error), kUsageError);
    EXPECT_THAT(error, HasSubstr(message));
  };
  refuses({}, "--model is required");
  refuses({"--model", "m", "--cases", "a,z"}, "found \"z\"");
  refuses({"--model", "m", "--policies", "k4v4@x"}, "--policies");
  refuses({"--model", "m", "--kv-cache-bytes", "many"}, "--kv-cache-bytes");
  refuses({"--model", "m", "--serve-option", "no_such=1"}, "no option \"no_such\"");
  refuses({"--model", "m", "--serve-option", "max_sequences=x"}, "max_sequences");
  refuses({"--model", "m", "--peer", "http://localhost:1"}, "--peer-name: expected one for each");
  refuses({"--model", "m", "--quality"}, "--quality");
}

}  // namespace
}  // namespace smartkv::test
