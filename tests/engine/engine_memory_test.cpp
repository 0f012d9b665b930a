// Memory that requests share: one request's memory is free again for the next, and the engine's own records do not
// depend on requests.
#include <gmock/gmock.h>

#include <thread>

#include "tests/allocations.h"
#include "tests/engine/engine_fixture.h"

namespace smartkv {
namespace {

// Allocations of this thread that succeed before one fails. Later ones succeed again. Negative: none fails.
thread_local int64_t allocations_to_failure = -1;

bool fails_in_turn() { return allocations_to_failure >= 0 && allocations_to_failure-- == 0; }

class EngineMemoryTest : public EngineTest {
 protected:
  static constexpr int64_t kRowBytes = kFakeVocab * 4;
  int64_t page_bytes() const { return kernels::kPageTokens * fake_cache_shape().bytes_per_token(); }
  // Returns a request for the log probabilities of its prompt, without an answer.
  static GenerationRequest make_echo(int64_t prompt, uint64_t seed) {
    GenerationRequest request = make_request(prompt, 0, seed);
    request.prompt_logprobs = 1;
    return request;
  }
};

TEST_F(EngineMemoryTest, StatesOutliveThePoliciesThatAreForgotten) {
  options.prefix_cache_bytes = -1;
  options.model.context_length = 2048;
  start();
  GenerationRequest first = make_request(700, 5, 1);
  first.kv_cache = "k4v4";
  first.speculative = {{"method", "self"}, {"tokens", 2}, {"adaptive", false}};
  const ChoiceResult expected = generate(first);
  for (int tokens = 401; tokens < 541; ++tokens) {
    GenerationRequest other = make_request(5, 1, 2);
    other.kv_cache = {{"policy", "streaming"}, {"tokens", tokens}};
    other.speculative = {{"method", "self"}, {"tokens", 2}, {"kv_cache", other.kv_cache}};
    EXPECT_EQ(generate(other).finish, FinishReason::kLength);
  }
  const auto stream = engine->submit(first);
  EXPECT_EQ(read_all(*stream)[0].tokens, expected.tokens);
  EXPECT_GT(stream->usage().cached_tokens, 0);
}

TEST_F(EngineMemoryTest, LogitsOfEchoRequestsAreBoundedAndReturned) {
  options.kv_cache_bytes = 9 * page_bytes() + kRowBytes;
  model->on_forward = [this](std::span<const SequenceInput> batch) {
    int64_t rows = 0, growth = 0;
    for (const SequenceInput& input : batch) {
      rows += input.n_logits;
      growth += input.cache->max_growth(static_cast<int64_t>(input.tokens.size()));
    }
    EXPECT_LE(rows * kRowBytes + growth + engine->stats().kv_bytes_used, options.kv_cache_bytes);
  };
  start();
  const GenerationRequest all = make_request(400, 168, 99);
  const ChoiceResult expected = generate(all);
  std::vector<GenerationRequest> echoes;
  for (uint64_t seed = 0; seed < 12; ++seed) echoes.push_back(make_echo(60, seed));
  for (const auto& stream : engine->submit_all(echoes)) {
    EXPECT_EQ(read_all(*stream)[0].finish, FinishReason::kLength);
    EXPECT_EQ(stream->prompt_logprobs().size(), 59u);
  }
  EXPECT_EQ(generate(all).tokens, expected.tokens);
}

TEST_F(EngineMemoryTest, ManySequencesLeaveTheWholeCacheToTheNext) {
  options.kv_cache_bytes = 9 * page_bytes() + kRowBytes;
  start();
  const GenerationRequest all = make_request(400, 168, 99);
  const ChoiceResult expected = generate(all);
  std::vector<std::unique_ptr<GenerationStream>> streams;
  for (uint64_t seed = 0; seed < 32; ++seed) streams.push_back(engine->submit(make_request(3, 4, seed)));
  for (const auto& stream : streams) EXPECT_EQ(read_all(*stream)[0].finish, FinishReason::kLength);
  EXPECT_EQ(generate(all).tokens, expected.tokens);
}

TEST_F(EngineMemoryTest, SpeculationDoesNotShortenAnAnswer) {
  options.kv_cache_bytes = 9 * page_bytes() + kRowBytes;
  model->memory = 1;  // its output repeats, so that much is drafted
  start();
  GenerationRequest all = make_request(400, 168, 99);
  all.sampling.temperature = 0;
  const ChoiceResult expected = generate(all);
  all.speculative = {{"method", "ngram"}, {"adaptive", false}, {"tokens", 32}};
  const auto stream = engine->submit(all);
  EXPECT_EQ(read_all(*stream)[0].tokens, expected.tokens);
  EXPECT_GT(stream->usage().speculation.drafted, 0);
}

// The preempted request is recomputed in one chunk from its prompt on, and samples from the chunk's last row.
TEST_F(EngineMemoryTest, AnEchoRequestThatIsPreemptedKeepsItsAnswer) {
  std::vector<GenerationRequest> requests;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    requests.push_back(make_request(20 + static_cast<int64_t>(seed), 200, seed));
    requests.back().prompt_logprobs = 1;
    requests.back().logprobs = 1;
  }
  start();
  std::vector<ChoiceResult> expected;
  for (const GenerationRequest& request : requests) expected.push_back(generate(request));
  engine.reset();
  model = std::make_unique<FakeModel>();
  options.kv_cache_bytes = 10 * page_bytes();
  start();
  const auto streams = engine->submit_all(requests);
  int64_t preemptions = 0;
  for (size_t i = 0; i < streams.size(); ++i) {
    EXPECT_EQ(read_all(*streams[i])[0].tokens, expected[i].tokens) << i;
    EXPECT_EQ(streams[i]->prompt_logprobs().size(), requests[i].prompt.size() - 1);
    preemptions += streams[i]->usage().timings.preemptions;
  }
  EXPECT_GT(preemptions, 0);
}

TEST_F(EngineMemoryTest, APromptThatIsPreemptedHalfwayCountsOnce) {
  options.kv_cache_bytes = 10 * page_bytes();
  options.prefill_chunk = 32;
  start();
  std::vector<GenerationRequest> requests;
  uint64_t prompts = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const uint64_t prompt = 100 + 40 * seed;
    requests.push_back(make_request(static_cast<int64_t>(prompt), 100, seed));
    prompts += prompt;
  }
  for (const auto& stream : engine->submit_all(requests)) EXPECT_EQ(read_all(*stream)[0].finish, FinishReason::kLength);
  const EngineStats stats = engine->stats();
  EXPECT_GT(stats.preemptions, 0u);
  EXPECT_GT(stats.recomputed_tokens, 0u);
  EXPECT_EQ(stats.prompt_tokens, prompts);
  EXPECT_EQ(stats.policies.at("full").prompt_tokens, prompts);
}

// A step that fails is repeated. If it fails again, the oldest request ends and the others continue.
TEST_F(EngineMemoryTest, AnExceptionDoesNotEndTheEngine) {
  start();
  std::vector<ChoiceResult> expected;
  for (uint64_t seed = 0; seed < 3; ++seed) expected.push_back(generate(make_request(50, 40, seed)));
  for (const int failures : {1, 2}) {
    engine.reset();
    model = std::make_unique<FakeModel>();
    Latch gate;
    hold_passes(&gate);
    start();
    const auto streams =
        engine->submit_all({make_request(50, 40, 0), make_request(50, 40, 1), make_request(50, 40, 2)});
    gate.wait_for_pass();
    served->failures = failures;
    gate.open();
    std::vector<ChoiceResult> results;
    for (const auto& stream : streams) results.push_back(read_all(*stream)[0]);
    EXPECT_EQ(served->failures, 0);
    int ended = 0;
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].finish == FinishReason::kOutOfMemory) {
        ++ended;
        EXPECT_THAT(results[i].error, testing::HasSubstr("no memory"));
      } else {
        EXPECT_EQ(results[i].tokens, expected[i].tokens) << i;
      }
    }
    EXPECT_EQ(ended, failures - 1);
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.finished.at("error"), static_cast<uint64_t>(ended));
    EXPECT_EQ(stats.finished.at("length"), static_cast<uint64_t>(3 - ended));
    EXPECT_EQ(stats.e2e_latency.count, 3u);
    EXPECT_EQ(stats.requests_running + stats.requests_waiting, 0);
    EXPECT_EQ(generate(make_request(50, 40, 2)).tokens, expected[2].tokens);
  }
}

// Each allocation of the engine thread fails in turn while four requests run: one is forked, one is constrained and two
// have drafts. A request that ends early must say why. Every other one must get the tokens that it gets without a
// failure. Each request is counted once.
TEST_F(EngineMemoryTest, EachAllocationOfAStepMayFail) {
  options.prefix_cache_bytes = -1;
  std::vector<GenerationRequest> requests;
  for (uint64_t seed = 0; seed < 4; ++seed) requests.push_back(make_request(60 + static_cast<int64_t>(seed), 12, seed));
  requests[0].n = 2;
  requests[1].grammar = "root ::= [a-z]{5} [k-p]+";
  requests[1].logprobs = 1;
  requests[2].speculative = {{"method", "ngram"}, {"ngram_min", 1}, {"tokens", 4}, {"adaptive", false}};
  requests[3].speculative = {{"method", "self"}, {"tokens", 3}, {"adaptive", false}};
  requests[3].kv_cache = "k4v4";
  const auto run = [&] {
    std::vector<ChoiceResult> results;
    const auto streams = engine->submit_all(requests);
    for (size_t i = 0; i < streams.size(); ++i) {
      for (ChoiceResult& result : read_all(*streams[i], requests[i].n)) results.push_back(std::move(result));
    }
    return results;
  };
  start();
  const std::vector<ChoiceResult> expected = run();
  ::testing::internal::CaptureStderr();  // each failure logs a line
  allocation_fails = fails_in_turn;
  int ended = 0;
  for (const int pass : {1, 2, 5}) {
    bool met = true;
    for (int64_t n = 0; met; ++n) {
      ASSERT_LT(n, 20'000);
      engine.reset();
      model = std::make_unique<FakeModel>();
      int passes = 0;
      met = false;
      model->on_forward = [&, n](std::span<const SequenceInput>) {  // on the engine thread
        if (++passes == pass) allocations_to_failure = n;
        if (passes == pass + 3) {
          met = allocations_to_failure < 0;
          allocations_to_failure = -1;
        }
      };
      start();
      const std::vector<ChoiceResult> results = run();
      for (size_t i = 0; i < results.size(); ++i) {
        if (results[i].finish == FinishReason::kOutOfMemory) {
          ++ended;
          EXPECT_NE(results[i].error, "");
        } else {
          ASSERT_EQ(results[i].tokens, expected[i].tokens)
              << "choice " << i << ", allocation " << n << " after pass " << pass;
          EXPECT_EQ(results[i].text, expected[i].text);
        }
      }
      const EngineStats stats = engine->stats();
      uint64_t finished = 0;
      for (const auto& [reason, count] : stats.finished) finished += count;
      ASSERT_EQ(finished, requests.size()) << "allocation " << n << " after pass " << pass;
      EXPECT_EQ(generate(requests[3]).tokens, expected.back().tokens);
    }
  }
  allocation_fails = nullptr;
  ::testing::internal::GetCapturedStderr();
  EXPECT_GT(ended, 100);
}

// A cancelled request ends whenever its reader leaves, before or after the engine has seen it.
TEST_F(EngineMemoryTest, NoCancellationIsMissed) {
  model->on_forward = [](std::span<const SequenceInput>) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  start();
  for (int round = 0; round < 200; ++round) {
    std::vector<std::unique_ptr<GenerationStream>> streams;
    for (uint64_t seed = 0; seed < 8; ++seed) streams.push_back(engine->submit(make_request(3, 1000, seed)));
    for (const auto& stream : streams) stream->cancel();
    for (const auto& stream : streams) EXPECT_EQ(read_all(*stream)[0].finish, FinishReason::kCancelled);
  }
  EXPECT_EQ(engine->stats().requests_running, 0);
}

}  // namespace
}  // namespace smartkv
