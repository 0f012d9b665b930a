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
    engine.reset();
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(EngineLogTest, DebugTellsStepsPreemptionsAndCompactions) {
  set_log_level(LogLevel::kDebug);
  const std::string log = log_of_a_tight_run();
  set_log_level(LogLevel::kInfo);
  EXPECT_THAT(log, ContainsRegex("debug step decoding=1 prompts=0 tokens=1 admitted=0 preempted=[0-9] waiting=[0-9]"));
  EXPECT_THAT(log,
              ContainsRegex("debug preempted id=test-1 choice=[123] recomputes=[0-9]+ needed_by=test-1 needed_bytes="));
  EXPECT_THAT(log,
              ContainsRegex("debug compacted id=test-1 choice=0 policy=streaming tokens=[0-9]+ tokens_kept=[0-9]+ "));
}

TEST_F(EngineLogTest, InfoTellsNothingOfThem) { EXPECT_THAT(log_of_a_tight_run(), Not(ContainsRegex(" debug "))); }

}  // namespace
}  // namespace smartkv
