// A request's output: independent of the batch, cut where it must be, and with the log probabilities asked for.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/engine/engine_fixture.h"

namespace smartkv {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

class EngineChunks : public EngineTest, public ::testing::WithParamInterface<int64_t> {};

TEST_P(EngineChunks, SeededOutputDoesNotDependOnTheBatchOrTheChunks) {
  const auto request = [](uint64_t seed) {
    GenerationRequest made = make_request(5 + static_cast<int64_t>(seed) * 11, 30, seed);
    made.sampling.top_p = 0.95f;
    made.sampling.frequency_penalty = 0.3f;
    return made;
  };
  std::vector<std::vector<TokenId>> alone;
  {
    start();
    for (uint64_t seed = 0; seed < 16; ++seed) alone.push_back(generate(request(seed)).tokens);
    model = std::make_unique<FakeModel>();
  }
  options.prefill_chunk = GetParam();
  start();
  std::vector<std::unique_ptr<GenerationStream>> streams;
  for (uint64_t seed = 0; seed < 16; ++seed) streams.push_back(engine->submit(request(seed)));
  for (size_t i = 0; i < streams.size(); ++i) {
    const ChoiceResult result = read_all(*streams[i])[0];
    EXPECT_EQ(result.finish, FinishReason::kLength);
    EXPECT_EQ(result.tokens, alone[i]) << "request " << i;
  }
  EXPECT_EQ(engine->stats().kv_bytes_used, 0);
  EXPECT_EQ(engine->stats().kv_bytes_promised, 0);
}

INSTANTIATE_TEST_SUITE_P(Sizes, EngineChunks, ::testing::Values(1, 7, 512));

TEST_F(EngineTest, ChoicesShareThePromptAndDrawTheirOwnNumbers) {
  start();
  GenerationRequest request = make_request(70, 20, 9);
  const std::vector<TokenId> single = generate(request).tokens;
  request.n = 4;
  const auto stream = engine->submit(request);
  const auto results = read_all(*stream, 4);
  EXPECT_EQ(results[0].tokens, single);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_THAT(results[i].tokens, SizeIs(20));
    for (size_t j = 0; j < i; ++j) EXPECT_NE(results[i].tokens, results[j].tokens);
  }
  const RequestUsage usage = stream->usage();
  EXPECT_EQ(usage.completion_tokens, 80);
  EXPECT_EQ(usage.timings.prefill_chunks, 1);
  EXPECT_EQ(usage.timings.decode_passes, 19);
  EXPECT_EQ(usage.kv_cache.tokens, 4 * (70 + 19));
  EXPECT_EQ(usage.kv_cache.policy, "full");
  EXPECT_EQ(engine->stats().kv_bytes_used, 0);
}

TEST_F(EngineTest, GreedyChoicesAreEqual) {
  start();
  GenerationRequest request = make_request(7, 12);
  request.sampling.temperature = 0;
  request.n = 3;
  const auto results = read_all(*engine->submit(request), 3);
  EXPECT_EQ(results[1].tokens, results[0].tokens);
  EXPECT_EQ(results[2].tokens, results[0].tokens);
}

TEST_F(EngineTest, AnUnseededRequestReportsItsSeed) {
  start();
  GenerationRequest request = make_request(5, 10);
  request.sampling.seed.reset();
  const auto stream = engine->submit(request);
  const auto tokens = read_all(*stream)[0].tokens;
  request.sampling.seed = stream->usage().seed;
  EXPECT_EQ(generate(request).tokens, tokens);
}

// Makes the fake model prefer these tokens, one after another, so that the text is known.
void say(FakeModel* model, std::vector<TokenId> tokens) {
  auto next = std::make_shared<size_t>(0);
  auto current = std::make_shared<TokenId>(0);
  model->on_forward = [=](std::span<const SequenceInput>) { *current = tokens.at((*next)++); };
  model->bias = [=](TokenId token) { return token == *current ? 100.0f : 0.0f; };
}

TEST_F(EngineTest, EndOfSequenceStopsAndIsNotShown) {
  say(model.get(), {8, 9, kFakeEos});
  start();
  const ChoiceResult result = generate(make_request(3, 10));
  EXPECT_EQ(result.text, "hi");
  EXPECT_THAT(result.tokens, ElementsAre(8, 9, kFakeEos));
  EXPECT_EQ(result.finish, FinishReason::kStop);
  EXPECT_FALSE(result.stop_string);
}

TEST_F(EngineTest, IgnoreEosGoesOn) {
  say(model.get(), {8, kFakeEos, 9});
  start();
  GenerationRequest request = make_request(3, 3);
  request.ignore_eos = true;
  const ChoiceResult result = generate(request);
  EXPECT_EQ(result.text, "hi");
  EXPECT_EQ(result.finish, FinishReason::kLength);
}

TEST_F(EngineTest, MinTokensForbidsTheEndUntilThen) {
  model->bias = [](TokenId token) { return token == kFakeEos ? 100.0f : token >= kFakeNan ? -50.0f : 0.0f; };
  start();
  GenerationRequest request = make_request(3, 10);
  request.min_tokens = 4;
  const ChoiceResult result = generate(request);
  EXPECT_THAT(result.tokens, SizeIs(5));
  EXPECT_EQ(result.finish, FinishReason::kStop);
}

TEST_F(EngineTest, StopTokenIdsAndStopStrings) {
  const std::vector<TokenId> words = {15, 14, 5, 27, 20, 23, 15, 27};  // "one two "
  say(model.get(), words);
  start();
  GenerationRequest request = make_request(3, 8);
  request.stop = {"two", "zzz"};
  const ChoiceResult by_string = generate(request);
  EXPECT_EQ(by_string.text, "one ");
  EXPECT_EQ(by_string.stop_string, "two");
  EXPECT_EQ(by_string.finish, FinishReason::kStop);
  EXPECT_THAT(by_string.tokens, SizeIs(7));

  model = std::make_unique<FakeModel>();
  say(model.get(), words);
  start();
  request.stop = {" twist"};  // held back at the end, then shown
  request.stop_token_ids = {23};
  const ChoiceResult by_token = generate(request);
  EXPECT_EQ(by_token.text, "one t");
  EXPECT_EQ(by_token.finish, FinishReason::kStop);
}

TEST_F(EngineTest, StopStringsWaitForMinTokens) {
  say(model.get(), {1, 2, 1, 2, 1});
  start();
  GenerationRequest request = make_request(3, 5);
  request.stop = {"b"};
  request.min_tokens = 3;
  EXPECT_EQ(generate(request).text, "aba");
}

TEST_F(EngineTest, TextIsWholeCharacters) {
  say(model.get(), {28, 29, 1, 28});
  start();
  const auto stream = engine->submit(make_request(3, 4));
  std::vector<std::string> pieces;
  GenerationEvent event;
  while (stream->next(&event, kPatience) == GenerationStream::Status::kEvent) pieces.push_back(event.text);
  std::string text;
  for (const std::string& piece : pieces) {
    EXPECT_NE(piece, "\xC3");
    text += piece;
  }
  EXPECT_EQ(text,
            "\xC3\xA9"
            "a\xEF\xBF\xBD");
}

TEST_F(EngineTest, TheContextEndsTheOutput) {
  options.model.context_length = 40;
  start();
  const ChoiceResult result = generate(make_request(30, 500));
  EXPECT_EQ(result.finish, FinishReason::kLength);
  EXPECT_THAT(result.tokens, SizeIs(10));
  EXPECT_EQ(refusal(make_request(40, 1)).kind, RequestError::Kind::kContextLength);
  EXPECT_THAT(generate(make_request(39, 5)).tokens, SizeIs(1));
}

TEST_F(EngineTest, LogprobsAreOfTheModelsOwnDistribution) {
  start();
  GenerationRequest request = make_request(6, 5);
  request.sampling.temperature = 0;
  request.sampling.logit_bias = {{3, 60.0f}};
  request.logprobs = 2;
  const ChoiceResult result = generate(request);
  ASSERT_THAT(result.logprobs, SizeIs(5));
  for (const TokenLogprob& logprob : result.logprobs) {
    EXPECT_EQ(logprob.token, 3);
    ASSERT_THAT(logprob.top, SizeIs(2));
    EXPECT_GE(logprob.top[0].second, logprob.top[1].second);
    EXPECT_LE(logprob.logprob, logprob.top[0].second);
    EXPECT_GT(logprob.logprob, -20);
  }
}

TEST_F(EngineTest, PromptLogprobsDoNotDependOnTheChunks) {
  std::vector<std::vector<TokenLogprob>> results;
  for (const int64_t chunk : {1, 7, 512}) {
    options.prefill_chunk = chunk;
    model = std::make_unique<FakeModel>();
    start();
    GenerationRequest request = make_request(150, 0);
    request.prompt_logprobs = 1;
    const auto stream = engine->submit(request);
    const ChoiceResult result = read_all(*stream)[0];
    EXPECT_EQ(result.finish, FinishReason::kLength);
    EXPECT_TRUE(result.tokens.empty());
    results.push_back(stream->prompt_logprobs());
    ASSERT_THAT(results.back(), SizeIs(149));
    for (size_t i = 0; i < 149; ++i) {
      EXPECT_EQ(results.back()[i].token, request.prompt[i + 1]);
      EXPECT_EQ(results.back()[i].logprob, results[0][i].logprob);
      EXPECT_EQ(results.back()[i].top, results[0][i].top);
    }
  }
}

}  // namespace
}  // namespace smartkv
