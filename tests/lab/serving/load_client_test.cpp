// The load generator against a server with an engine that follows a script.
#include "lab/serving/load_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/server/test_server.h"

namespace smartkv::test {
namespace {

using ::testing::HasSubstr;

class LoadClientTest : public ::testing::Test {
 protected:
  LoadClientTest() { server_.engine.set_answer({"ab", "c"}, FinishReason::kLength); }
  LoadClient client(LoadOptions options = {}) const { return {url(), options}; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_.port); }

  TestServer server_;
};

TEST_F(LoadClientTest, SendsExactTokensAndReadsTheWholeAnswer) {
  const RequestOutcome outcome = client().send({{'x', 'y'}, 3});
  EXPECT_TRUE(outcome.completed()) << outcome.failure;
  EXPECT_EQ(outcome.output_tokens, 3);
  EXPECT_GT(outcome.first_token_s, 0);
  EXPECT_GE(outcome.last_token_s, outcome.first_token_s);
  const GenerationRequest seen = server_.engine.submitted().at(0);
  EXPECT_EQ(seen.prompt, (std::vector<TokenId>{'x', 'y'}));
  EXPECT_EQ(seen.max_tokens, 3);
  EXPECT_TRUE(seen.ignore_eos);
  EXPECT_EQ(seen.sampling.temperature, 0);
}

TEST_F(LoadClientTest, SendsAllAtOnce) {
  server_.engine.hold_after(1);
  const LoadClient load = client();
  const std::vector<ServingRequest> requests(8, {{'x'}, 3});
  auto outcomes = std::async(std::launch::async, [&] { return load.send_all(requests); });
  EXPECT_TRUE(server_.engine.wait_for_live_streams(8));
  server_.engine.release();
  for (const RequestOutcome& outcome : outcomes.get()) EXPECT_TRUE(outcome.completed()) << outcome.failure;
}

TEST_F(LoadClientTest, AnAnswerOfAnotherLengthHasFailed) {
  EXPECT_THAT(client().send({{'x'}, 4}).failure, HasSubstr("expected 4, found 3"));
}

TEST_F(LoadClientTest, AsksAgainAfterARefusal) {
  server_.engine.set_submit_error(RequestError(RequestError::Kind::kOverloaded, "", "full", 0));
  const LoadClient load = client();
  auto outcome = std::async(std::launch::async, [&] { return load.send({{'x'}, 3}); });
  while (server_.engine.refusals() == 0) std::this_thread::yield();
  server_.engine.set_submit_error(std::nullopt);
  const RequestOutcome last = outcome.get();
  EXPECT_TRUE(last.completed()) << last.failure;
  EXPECT_GE(last.retries, 1);
}

TEST_F(LoadClientTest, ARefusalIsAFailureWithoutRetries) {
  server_.engine.set_submit_error(RequestError(RequestError::Kind::kOverloaded, "", "full", 0));
  const RequestOutcome outcome = client({.retry = false}).send({{'x'}, 3});
  EXPECT_EQ(outcome.failure, "429: full");
  EXPECT_EQ(outcome.retries, 0);
}

TEST_F(LoadClientTest, WhatNeverFitsIsNotAskedAgain) {
  server_.engine.set_submit_error(RequestError(RequestError::Kind::kTooLarge, "prompt", "never fits"));
  EXPECT_THAT(client().send({{'x'}, 3}).failure, HasSubstr("413: never fits"));
}

TEST_F(LoadClientTest, TakesAddressesWithAndWithoutTheApiPath) {
  EXPECT_TRUE(LoadClient(url() + "/v1/", {}).send({{'x'}, 3}).completed());
  EXPECT_THROW(LoadClient("localhost:80", {}), std::invalid_argument);
  EXPECT_THROW(LoadClient(url() + "/other", {}), std::invalid_argument);
}

TEST_F(LoadClientTest, NothingAnswers) {
  const int port = [] {
    TestServer gone;
    return gone.port;
  }();
  EXPECT_THROW(LoadClient("http://127.0.0.1:" + std::to_string(port), {}), std::runtime_error);
}

TEST_F(LoadClientTest, ReadsAGauge) {
  const LoadClient load = client();
  PeakGauge peak(load, "smartkv:kv_bytes_budget");
  EXPECT_EQ(peak.stop(), static_cast<double>(server_.engine.stats().kv_bytes_budget));
  PeakGauge none(load, "smartkv:no_such_gauge");
  EXPECT_EQ(none.stop(), std::nullopt);
}

TEST(MetricValue, ReadsPrometheusText) {
  const std::string text =
      "# HELP a_total x\na_total{m=\"}\",code=\"200\"} 3\na_total{code=\"429\"} 1e1\na_total_more{} 9\nb "
      "1.5\nc{x=\"y\"} nonsense\n";
  EXPECT_EQ(metric_value(text, "a_total"), 13);
  EXPECT_EQ(metric_value(text, "b"), 1.5);
  EXPECT_EQ(metric_value(text, "c"), std::nullopt);
  EXPECT_EQ(metric_value(text, "a"), std::nullopt);
}

}  // namespace
}  // namespace smartkv::test
