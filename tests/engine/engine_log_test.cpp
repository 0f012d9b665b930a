// The lines of level debug, by which a user finds out why a request was slow or was preempted.
#include <gmock/gmock.h>

#include "engine/log.h"
#include "tests/engine/engine_fixture.h"

namespace smartkv {
namespace {

using ::testing::ContainsRegex;
using ::testing::Not;

class EngineLogTest : public EngineTest {
 protected:
  // Runs four choices, which grow to three or four pages each, in a memory of five. Returns what the engine logs.
  std::string log_of_a_tight_run() {
    options.kv_cache_bytes = 5 * 64 * fake_cache_shape().bytes_per_token();
    start();
    ::testing::internal::CaptureStderr();
    GenerationRequest request = make_request(100, 100);
    request.n = 4;
    request.ignore_eos = true;
    request.kv_cache = {{"policy", "streaming"}, {"tokens", 192}};
    const auto stream = engine->submit(std::move(request));
    read_all(*stream, 4);
    timings = stream->usage().timings;
    EXPECT_GT(timings.preemptions, 0);
    recomputed = engine->stats().recomputed_tokens;
    engine.reset();
    return ::testing::internal::GetCapturedStderr();
  }

  // Returns the sum of the numbers behind each `name` in the log.
  static double sum(const std::string& log, const std::string& name) {
    double result = 0;
    for (size_t at = log.find(name); at != log.npos; at = log.find(name, at + 1)) {
      result += std::stod(log.substr(at + name.size()));
    }
    return result;
  }

  uint64_t recomputed = 0;
  RequestTimings timings;
};

TEST_F(EngineLogTest, DebugTellsStepsAndCompactions) {
  set_log_level(LogLevel::kDebug);
  const std::string log = log_of_a_tight_run();
  set_log_level(LogLevel::kInfo);
  EXPECT_THAT(log, ContainsRegex("debug step decoding=1 prompts=0 tokens=1 admitted=0 preempted=[0-9] waiting=[0-9]"));
  EXPECT_THAT(log,
              ContainsRegex("debug compacted id=test-1 choice=0 policy=streaming tokens=[0-9]+ tokens_kept=[0-9]+ "));
}

TEST_F(EngineLogTest, InfoTellsPreemptionsAndNothingOfTheRest) {
  const std::string log = log_of_a_tight_run();
  EXPECT_THAT(log,
              ContainsRegex("info preempted id=test-1 choice=[123] recomputes=[0-9]+ needed_by=test-1 needed_bytes="));
  EXPECT_THAT(log, ContainsRegex("info resumed id=test-1 choice=[123] waited_ms="));
  EXPECT_THAT(log, Not(ContainsRegex(" debug ")));
}

TEST_F(EngineLogTest, WhatItSaysOfPreemptionsIsCounted) {
  const std::string log = log_of_a_tight_run();
  EXPECT_EQ(sum(log, "recomputes="), static_cast<double>(recomputed));
  EXPECT_EQ(timings.recomputed_tokens, static_cast<int64_t>(recomputed));
  EXPECT_NEAR(sum(log, "waited_ms="), timings.preempted_ms, 1e-3);
}

}  // namespace
}  // namespace smartkv
