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
    EXPECT_GT(stream->usage().timings.preemptions, 0);
    recomputed = engine->stats().recomputed_tokens;
    engine.reset();
    return ::testing::internal::GetCapturedStderr();
  }

  uint64_t recomputed = 0;
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

TEST_F(EngineLogTest, WhatItSaysIsRecomputedIsCounted) {
  std::string log = log_of_a_tight_run();
  uint64_t said = 0;
  for (size_t at = log.find("recomputes="); at != log.npos; at = log.find("recomputes=", at + 1)) {
    said += std::stoull(log.substr(at + 11));
  }
  EXPECT_EQ(said, recomputed);
}

}  // namespace
}  // namespace smartkv
