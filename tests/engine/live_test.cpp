// The engine's reports about its sequences while it works.
#include <future>

#include "tests/engine/engine_fixture.h"

namespace smartkv {
namespace {

using State = LiveSequence::State;

class LiveTest : public EngineTest {
 protected:
  ~LiveTest() override {
    gate.open();
    engine.reset();  // its passes use the gate
  }
  // The engine answers between two passes, so this lets passes through until the answer is there.
  std::vector<LiveSequence> ask(std::optional<int64_t> layer) {
    auto answer = std::async(std::launch::async, [this, layer] { return engine->live(layer); });
    while (answer.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) gate.let_one_pass();
    return answer.get();
  }
  Latch gate;
};

TEST_F(LiveTest, NothingLivesInAnIdleEngine) {
  start();
  EXPECT_TRUE(engine->live({}).empty());
  generate(make_request(10, 3));
  EXPECT_TRUE(engine->live({}).empty());
}

TEST_F(LiveTest, LiveSequencesAreToldBetweenPasses) {
  options.max_sequences = 2;
  hold_passes(&gate);
  start();
  GenerationRequest request = make_request(100, 900);
  request.n = 2;
  request.first_choice = 4;
  request.ignore_eos = true;
  request.kv_cache = {{"policy", "streaming"}, {"tokens", 192}};
  const auto stream = engine->submit(request);
  gate.wait_for_pass();
  const auto waiting = engine->submit(make_request(5, 5, 2));
  gate.let_one_pass();
  gate.wait_for_pass();
  const std::vector<LiveSequence> live = ask(0);
  ASSERT_EQ(live.size(), 3u);
  EXPECT_EQ(live[0].id, request.id);
  EXPECT_EQ(live[0].choice, 4);
  EXPECT_EQ(live[1].choice, 5);
  EXPECT_EQ(live[0].policy, "streaming");
  EXPECT_EQ(live[0].speculation, "off");
  EXPECT_EQ(live[0].prompt_tokens, 100);
  EXPECT_EQ(live[0].state, State::kDecoding);
  EXPECT_EQ(live[0].computed_tokens, live[0].prompt_tokens + live[0].output_tokens - 1);
  EXPECT_EQ(live[0].cache.tokens, live[0].computed_tokens);
  EXPECT_GT(live[0].cache.bytes, 0);
  ASSERT_FALSE(live[0].spans.empty());
  EXPECT_EQ(live[0].spans.back().end, live[0].computed_tokens);
  EXPECT_EQ(live[2].state, State::kWaiting);
  EXPECT_EQ(live[2].cache.bytes, 0);
  stream->cancel();
  waiting->cancel();
}

TEST_F(LiveTest, LiveSequencesAreToldWithoutSpansUnlessALayerIsNamed) {
  hold_passes(&gate);
  start();
  GenerationRequest request = make_request(10, 900);
  request.ignore_eos = true;
  const auto stream = engine->submit(request);
  gate.wait_for_pass();
  const std::vector<LiveSequence> live = ask({});
  ASSERT_EQ(live.size(), 1u);
  EXPECT_TRUE(live[0].spans.empty());
  EXPECT_EQ(live[0].tiers[kExactTier], static_cast<double>(live[0].computed_tokens));
  stream->cancel();
}

TEST_F(LiveTest, AnUnknownLayerIsRefused) {
  start();
  for (const int64_t layer : {-1, 1}) {
    try {
      engine->live(layer);
      ADD_FAILURE() << "taken";
    } catch (const RequestError& error) {
      EXPECT_EQ(error.param, "layer");
      EXPECT_STREQ(error.what(), ("layer: expected an integer from 0 to 0, found " + std::to_string(layer)).c_str());
    }
  }
}

}  // namespace
}  // namespace smartkv
