// The life of requests: queueing, cancellation, errors and draining, and what the engine reports about it.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/engine/engine_fixture.h"

namespace smartkv {
namespace {

using ::testing::HasSubstr;

TEST_F(EngineTest, CancellingFreesTheMemoryBeforeTheNextStep) {
  Latch gate;
  hold_passes(&gate);
  start();
  const auto cancelled = engine->submit(make_request(100, 50, 1));
  gate.wait_for_pass();
  auto abandoned = engine->submit(make_request(100, 50, 2));
  const auto kept = engine->submit(make_request(100, 5, 3));
  gate.let_one_pass();
  gate.wait_for_pass();
  gate.let_one_pass();
  gate.wait_for_pass();
  EXPECT_EQ(engine->stats().requests_running, 3);
  const int64_t used = engine->stats().kv_bytes_used;
  EXPECT_GT(used, 0);
  cancelled->cancel();
  abandoned.reset();
  gate.let_one_pass();
  gate.wait_for_pass();  // only one request is left in the next step
  EXPECT_EQ(engine->stats().requests_running, 1);
  EXPECT_EQ(engine->stats().kv_bytes_used, used / 3);
  gate.open();
  EXPECT_EQ(read_all(*cancelled)[0].finish, FinishReason::kCancelled);
  EXPECT_EQ(read_all(*kept)[0].finish, FinishReason::kLength);
  EXPECT_EQ(engine->stats().kv_bytes_used, 0);
  EXPECT_EQ(engine->stats().kv_bytes_promised, 0);
  EXPECT_EQ(engine->stats().finished.at("abort"), 2);
}

TEST_F(EngineTest, SequencesBytesAndTokensAreCountedByPolicy) {
  Latch gate;
  hold_passes(&gate);
  start();
  auto streaming = make_request(100, 5, 1);
  streaming.kv_cache = {{"policy", "streaming"}, {"tokens", 256}};
  const auto streams = engine->submit_all({make_request(100, 5, 2), make_request(100, 5, 3), std::move(streaming)});
  for (int i = 0; i < 2; ++i) {
    gate.wait_for_pass();
    gate.let_one_pass();
  }
  gate.wait_for_pass();
  const EngineStats running = engine->stats();
  EXPECT_EQ(running.policies.size(), 2u);
  EXPECT_EQ(running.policies.at("full").sequences, 2);
  EXPECT_GT(running.policies.at("full").bytes, 0);
  EXPECT_EQ(running.policies.at("streaming").sequences, 1);
  EXPECT_EQ(running.policies.at("streaming").full_bytes, running.policies.at("full").full_bytes / 2);
  const TierUse& tiers = running.policies.at("full").tiers;
  EXPECT_GT(tiers.tokens[kExactTier], 0);
  EXPECT_EQ(tiers.bytes[kExactTier],
            static_cast<double>(2 * 2 * kernels::kPageTokens * fake_cache_shape().bytes_per_token()));
  gate.open();
  for (const auto& stream : streams) EXPECT_EQ(read_all(*stream)[0].finish, FinishReason::kLength);
  const EngineStats ended = engine->stats();
  for (const auto& [name, policy] : ended.policies) {
    EXPECT_EQ(policy.sequences, 0) << name;
    EXPECT_EQ(policy.bytes, 0) << name;
    EXPECT_EQ(policy.tiers.tokens[kExactTier], 0) << name;
  }
  EXPECT_EQ(ended.policies.at("full").prompt_tokens, 200u);
  EXPECT_EQ(ended.policies.at("full").generation_tokens, 10u);
  EXPECT_EQ(ended.policies.at("streaming").generation_tokens, 5u);
}

TEST_F(EngineTest, CancellingAWaitingRequestTakesItOutOfTheQueue) {
  options.max_sequences = 1;
  Latch gate;
  hold_passes(&gate);
  start();
  const auto running = engine->submit(make_request(3, 2, 1));
  gate.wait_for_pass();
  const auto waiting = engine->submit(make_request(3, 2, 2));
  EXPECT_EQ(engine->stats().requests_waiting, 1);
  waiting->cancel();
  gate.let_one_pass();
  gate.wait_for_pass();
  EXPECT_EQ(engine->stats().requests_waiting, 0);
  gate.open();
  EXPECT_EQ(read_all(*waiting)[0].finish, FinishReason::kCancelled);
  EXPECT_EQ(waiting->usage().timings.prefill_ms, 0);
  EXPECT_GT(waiting->usage().timings.queued_ms, 0);
  EXPECT_EQ(read_all(*running)[0].finish, FinishReason::kLength);
}

TEST_F(EngineTest, RequestsThatBelongTogetherStartInOnePass) {
  options.prefill_chunk = 100;
  start();
  const auto streams = engine->submit_all({make_request(20, 9, 1), make_request(30, 9, 2), make_request(40, 9, 3)});
  for (const auto& stream : streams) EXPECT_EQ(read_all(*stream)[0].finish, FinishReason::kLength);
  EXPECT_EQ(engine->stats().steps, 9);  // the first token of each comes with its prompt
}

TEST_F(EngineTest, OfRequestsThatBelongTogetherAllAreTakenOrNone) {
  options.max_sequences = 1;
  options.max_queue = 1;
  Latch gate;
  hold_passes(&gate);
  start();
  EXPECT_THROW(engine->submit_all({make_request(3, 2, 1), make_request(3, 2, 2), make_request(3, 2, 3)}), RequestError);
  GenerationRequest wrong = make_request(3, 2, 2);
  wrong.sampling.temperature = -1;
  EXPECT_THROW(engine->submit_all({make_request(3, 2, 1), wrong}), RequestError);
  EXPECT_EQ(engine->stats().rejected.at("overloaded"), 1);
  EXPECT_EQ(engine->stats().rejected.at("invalid"), 1);
  EXPECT_EQ(engine->stats().requests_running + engine->stats().requests_waiting, 0);
  const auto streams = engine->submit_all({make_request(3, 2, 1), make_request(3, 2, 2)});
  gate.open();
  for (const auto& stream : streams) EXPECT_EQ(read_all(*stream)[0].finish, FinishReason::kLength);
}

TEST_F(EngineTest, AFullQueueRefuses) {
  options.max_sequences = 1;
  options.max_queue = 2;
  Latch gate;
  hold_passes(&gate);
  start();
  std::vector<std::unique_ptr<GenerationStream>> streams;
  for (uint64_t seed = 0; seed < 3; ++seed) streams.push_back(engine->submit(make_request(3, 2, seed)));
  const RequestError error = refusal(make_request(3, 2, 4));
  EXPECT_EQ(error.kind, RequestError::Kind::kOverloaded);
  EXPECT_GE(error.retry_after_s, 1);
  EXPECT_THROW(engine->validate(make_request(3, 2, 4)), RequestError);
  EXPECT_EQ(engine->stats().rejected.at("overloaded"), 2);
  gate.open();
  for (const auto& stream : streams) EXPECT_EQ(read_all(*stream)[0].finish, FinishReason::kLength);
  EXPECT_EQ(generate(make_request(3, 2, 4)).finish, FinishReason::kLength);
}

TEST_F(EngineTest, WhatCanNeverFitIsRefusedWithTheNumbers) {
  const int64_t page = 64 * fake_cache_shape().bytes_per_token();
  options.kv_cache_bytes = 3 * page;
  start();
  EXPECT_EQ(generate(make_request(100, 28)).finish, FinishReason::kLength);
  const RequestError error = refusal(make_request(100, 100));
  EXPECT_EQ(error.kind, RequestError::Kind::kTooLarge);
  EXPECT_THAT(error.what(), HasSubstr(std::to_string(4 * page + kFakeVocab * 4)));
  EXPECT_THAT(error.what(), HasSubstr(std::to_string(options.kv_cache_bytes)));
  EXPECT_EQ(refusal(make_request(200, 2000)).kind, RequestError::Kind::kTooLarge);  // not even the prompt fits
}

TEST_F(EngineTest, ChoicesThatDoNotFitTogetherRunOneAfterTheOther) {
  options.kv_cache_bytes = int64_t{1} << 20;
  start();
  GenerationRequest request = make_request(100, 100);
  request.n = 4;
  const auto expected = read_all(*engine->submit(request), 4);
  engine.reset();
  model = std::make_unique<FakeModel>();
  options.kv_cache_bytes = 5 * 64 * fake_cache_shape().bytes_per_token();
  start();
  const auto stream = engine->submit(request);
  const auto results = read_all(*stream, 4);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(results[i].tokens, expected[i].tokens) << i;
  EXPECT_GT(stream->usage().timings.preemptions, 0);
}

TEST_F(EngineTest, ARequestForAllThatTheContextHoldsEndsWhereMemoryDoes) {
  options.prefix_cache_bytes = -1;  // only memory that running sequences do not need
  options.kv_cache_bytes = 3 * 64 * fake_cache_shape().bytes_per_token();
  start();
  const auto stream = engine->submit(make_request(100, 1000));
  const ChoiceResult result = read_all(*stream)[0];
  EXPECT_EQ(result.finish, FinishReason::kLength);
  EXPECT_GT(result.tokens.size(), 25u);
  EXPECT_LT(result.tokens.size(), 93u);  // logits take a part of the memory
  EXPECT_EQ(generate(make_request(100, 28)).finish, FinishReason::kLength);
}

// Far more than fits at once, of all kinds. Every answer must be the one that the request gets alone, and the memory
// limit must never be exceeded.
TEST_F(EngineTest, AnswersUnderMemoryPressureAreThoseOfPlenty) {
  const auto request_of = [](uint64_t seed) {
    GenerationRequest request =
        make_request(5 + static_cast<int64_t>(seed * 37 % 150), 20 + static_cast<int64_t>(seed * 53 % 200), seed);
    request.n = 1 + static_cast<int32_t>(seed % 3 == 0);
    if (seed % 4 == 1) request.speculative = {{"method", "ngram"}, {"adaptive", false}};
    if (seed % 4 == 2) request.kv_cache = {{"policy", "streaming"}, {"tokens", 256}};
    if (seed % 5 == 4) request.logprobs = 2;
    if (seed % 5 == 2) request.prompt_logprobs = 1;
    return request;
  };
  constexpr uint64_t kRequests = 24;
  start();
  std::vector<std::vector<ChoiceResult>> expected;
  std::vector<size_t> prompt_logprobs;
  for (uint64_t seed = 0; seed < kRequests; ++seed) {
    const auto stream = engine->submit(request_of(seed));
    expected.push_back(read_all(*stream, request_of(seed).n));
    prompt_logprobs.push_back(stream->prompt_logprobs().size());
  }
  engine.reset();
  options.kv_cache_bytes = 14 * 64 * fake_cache_shape().bytes_per_token();
  options.prefill_chunk = 32;
  model = std::make_unique<FakeModel>();
  int64_t most = 0;
  model->on_forward = [&](std::span<const SequenceInput>) { most = std::max(most, engine->stats().kv_bytes_used); };
  start();
  std::vector<std::unique_ptr<GenerationStream>> streams;
  for (uint64_t seed = 0; seed < kRequests; ++seed) streams.push_back(engine->submit(request_of(seed)));
  int64_t preemptions = 0;
  for (uint64_t seed = 0; seed < kRequests; ++seed) {
    const auto results = read_all(*streams[seed], request_of(seed).n);
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].finish, expected[seed][i].finish);
      EXPECT_EQ(results[i].tokens, expected[seed][i].tokens) << "request " << seed << ", choice " << i;
      EXPECT_EQ(results[i].text, expected[seed][i].text);
      EXPECT_EQ(results[i].logprobs.size(), expected[seed][i].logprobs.size());
    }
    EXPECT_EQ(streams[seed]->prompt_logprobs().size(), prompt_logprobs[seed]);
    preemptions += streams[seed]->usage().timings.preemptions;
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_EQ(engine->stats().preemptions, static_cast<uint64_t>(preemptions));
  EXPECT_GT(engine->stats().recomputed_tokens, 0);
  EXPECT_LE(most, options.kv_cache_bytes);
  EXPECT_EQ(engine->stats().kv_bytes_used, 0);
}

TEST_F(EngineTest, APromptThatBeginsAlikeIsNotComputedTwice) {
  options.prefix_cache_bytes = -1;
  start();
  GenerationRequest first = make_request(200, 10, 1), second = first;
  second.prompt.back() = 3;
  second.prompt.push_back(4);
  second.sampling.seed = 2;
  const auto run = [this](const GenerationRequest& request, int64_t cached) {
    const auto stream = engine->submit(request);
    const auto results = read_all(*stream, request.n);
    EXPECT_EQ(stream->usage().cached_tokens, cached);
    return results;
  };
  run(first, 0);
  GenerationRequest salted = second;
  salted.cache_salt = "somebody else";
  const auto expected = run(salted, 0)[0].tokens;
  EXPECT_EQ(run(second, 199)[0].tokens, expected);
  EXPECT_EQ(run(second, 200)[0].tokens, expected);
  second.n = 3;
  EXPECT_EQ(run(second, 200)[0].tokens, expected);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.prefix_cache_queries, 200 + 4 * 201);
  EXPECT_EQ(stats.prefix_cache_hits, 199 + 2 * 200);
  EXPECT_GT(stats.prefix_cache_bytes, 0);
}

TEST_F(EngineTest, UsageSaysWhereAPromptDivergedAndWhyNoMoreWasFound) {
  options.prefix_cache_bytes = -1;
  start();
  GenerationRequest first = make_request(200, 10, 1), second = first, salted = first;
  const auto usage = [this](const GenerationRequest& request) {
    const auto stream = engine->submit(request);
    read_all(*stream, request.n);
    return stream->usage();
  };
  first.message_starts = {0, 50, 120};
  EXPECT_EQ(usage(first).prefix_miss, "never_stored");
  second.message_starts = first.message_starts;
  for (size_t i = 100; i < second.prompt.size(); ++i) ++second.prompt[i];
  const RequestUsage diverged = usage(second);
  EXPECT_EQ(diverged.prefix_miss, "never_stored");
  EXPECT_EQ(diverged.diverged_at, 100);
  EXPECT_EQ(diverged.diverged_message, 1);
  EXPECT_EQ(diverged.cached_tokens, 100);
  salted.cache_salt = "me";
  EXPECT_EQ(usage(salted).prefix_miss, "salt");
  EXPECT_EQ(usage(first).prefix_miss, "none");
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.prefix_cache_misses.at("never_stored"), 2u);
  EXPECT_EQ(stats.prefix_cache_misses.at("salt"), 1u);
  EXPECT_FALSE(stats.prefix_cache_misses.contains("none"));
  const std::vector<PrefixListing> prefixes = engine->prefixes(1000);
  EXPECT_EQ(static_cast<int64_t>(prefixes.size()), stats.prefix_cache_states);
  EXPECT_EQ(engine->prefixes(1).size(), 1u);
}

// Bytes that a running sequence shares with a stored prompt must be counted once.
TEST_F(EngineTest, HeldAndKeptBytesStayWithinTheBudget) {
  options.prefix_cache_bytes = -1;
  options.kv_cache_bytes = 1000 * fake_cache_shape().bytes_per_token();
  int64_t most_used = 0, most_total = 0;
  model->on_forward = [&](std::span<const SequenceInput>) {
    const EngineStats stats = engine->stats();
    most_used = std::max(most_used, stats.kv_bytes_used);
    most_total = std::max(most_total, stats.kv_bytes_used + stats.prefix_cache_bytes);
  };
  start();
  GenerationRequest first = make_request(640, 4, 1), second = first;
  second.prompt.push_back(4);
  second.max_tokens = 200;
  read_all(*engine->submit(first));
  EXPECT_GT(engine->stats().prefix_cache_bytes, options.kv_cache_bytes / 2);
  most_used = most_total = 0;
  const auto stream = engine->submit(second);
  read_all(*stream);
  EXPECT_GT(stream->usage().cached_tokens, 0);
  EXPECT_GT(most_used, options.kv_cache_bytes / 2);
  EXPECT_LE(most_total, options.kv_cache_bytes);
}

TEST_F(EngineTest, AnAnswerLeavesThePromptToBeCutBack) {
  options.prefix_cache_bytes = -1;
  start();
  GenerationRequest request =
      make_request(200, 1, 1);  // its only token is in no pass: the cache ends where the prompt does
  generate(request);
  request.prompt[150] = 30;
  const auto stream = engine->submit(request);
  read_all(*stream);
  EXPECT_EQ(stream->usage().cached_tokens, 150);
}

// The question must find the text wherever it diverges from it, before or after a boundary nearby.
TEST_F(EngineTest, AnotherQuestionAboutATextFindsIt) {
  options.prefix_cache_bytes = -1;
  options.model.context_length = 2048;
  for (const nlohmann::json& policy : {nlohmann::json("full"), nlohmann::json{{"policy", "snapkv"}, {"tokens", 256}},
                                       nlohmann::json{{"policy", "streaming"}, {"tokens", 256}}}) {
    for (const int64_t prompt : {1010, 1024, 1035, 1090, 1100}) {
      model = std::make_unique<FakeModel>();
      start();
      GenerationRequest request = make_request(static_cast<int32_t>(prompt), 5, 1);
      request.kv_cache = policy;
      generate(request);
      request.prompt[static_cast<size_t>(prompt - 60)] = 3;
      const auto stream = engine->submit(request);
      read_all(*stream);
      EXPECT_GE(stream->usage().cached_tokens, prompt - 128) << policy << " " << prompt;
    }
  }
}

TEST_F(EngineTest, APromptWaitsForOneThatComputesWhatBothNeed) {
  options.prefix_cache_bytes = -1;
  options.model.context_length = 2048;
  GenerationRequest request = make_request(900, 5, 1), other = request;
  for (size_t i = 700; i < other.prompt.size(); ++i) other.prompt[i] = 3;
  start();
  const ChoiceResult expected = generate(request), expected_other = generate(other);
  engine.reset();
  model = std::make_unique<FakeModel>();
  Latch gate;
  hold_passes(&gate);
  start();
  const auto first = engine->submit(request);
  gate.wait_for_pass();  // it is computing its first 512 tokens
  std::vector<std::unique_ptr<GenerationStream>> alike;
  for (int i = 0; i < 3; ++i) alike.push_back(engine->submit(request));
  const auto parts = engine->submit(other);
  gate.open();
  EXPECT_EQ(read_all(*first)[0].tokens, expected.tokens);
  EXPECT_EQ(first->usage().cached_tokens, 0);
  for (const auto& stream : alike) {
    EXPECT_EQ(read_all(*stream)[0].tokens, expected.tokens);
    EXPECT_EQ(stream->usage().cached_tokens, 899);
  }
  EXPECT_EQ(read_all(*parts)[0].tokens, expected_other.tokens);
  EXPECT_EQ(parts->usage().cached_tokens, 700);
  // Each page once: 10 that both prompts share, 4 more of each, and the last page of each state.
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.prefix_cache_states, 6);
  EXPECT_EQ(stats.prefix_cache_bytes, (10 + 2 * 4 + 6) * kernels::kPageTokens * fake_cache_shape().bytes_per_token());
}

// After a prefix hit, the draft must draft as it does without one. Its own cache cannot be cut back, so the second
// prompt stores a state where it diverges from the first.
TEST_F(EngineTest, ADraftThatTheTargetsPassesFillGoesOnFromAPrefixToo) {
  options.model.context_length = 2048;
  for (const int64_t prompt : {900, 1090}) {
    GenerationRequest text = make_request(static_cast<int32_t>(prompt), 5, 1);
    text.speculative = {{"method", "self"}, {"tokens", 4}, {"adaptive", false}};
    GenerationRequest question = text;
    question.max_tokens = 40;
    for (auto i = static_cast<size_t>(prompt - 60); i < question.prompt.size(); ++i) question.prompt[i] = 3;
    GenerationRequest other = question;
    other.prompt[static_cast<size_t>(prompt - 60)] = 4;
    std::vector<ChoiceResult> answers;
    std::vector<SpeculationUsage> drafts;
    for (const int64_t bytes : {0, -1}) {
      options.prefix_cache_bytes = bytes;
      model = std::make_unique<FakeModel>();
      start();
      generate(text);
      generate(other);
      const auto stream = engine->submit(question);
      answers.push_back(read_all(*stream)[0]);
      drafts.push_back(stream->usage().speculation);
      EXPECT_EQ(stream->usage().cached_tokens > prompt / 2, bytes != 0);
      engine.reset();
    }
    EXPECT_EQ(answers[0].tokens, answers[1].tokens);
    EXPECT_GT(drafts[0].drafted, 0);
    EXPECT_EQ(drafts[0].drafted, drafts[1].drafted);
    EXPECT_EQ(drafts[0].accepted_at, drafts[1].accepted_at);
  }
}

TEST_F(EngineTest, AConversationGoesOnFromItsLastTurn) {
  options.prefix_cache_bytes = -1;
  start();
  GenerationRequest request = make_request(100, 20, 1);
  const ChoiceResult answer = generate(request);
  request.prompt.insert(request.prompt.end(), answer.tokens.begin(), answer.tokens.end());
  request.prompt.insert(request.prompt.end(), {5, 6, 7});
  const auto stream = engine->submit(request);
  read_all(*stream);
  EXPECT_EQ(stream->usage().cached_tokens, 119);  // the last token was in no pass
}

TEST_F(EngineTest, APromptSurvivesARestart) {
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / ("prefixes." + std::to_string(getpid()));
  options.prefix_cache_bytes = -1;
  options.prefix_cache_dir = directory;
  for (const nlohmann::json& policy : {nlohmann::json("full"), nlohmann::json{{"policy", "streaming"}, {"tokens", 256}},
                                       nlohmann::json{{"policy", "snapkv"}, {"tokens", 256}}}) {
    GenerationRequest request = make_request(600, 10, 1);
    request.kv_cache = policy;
    start();
    const ChoiceResult expected = generate(request);
    engine.reset();
    for (const int64_t least : {500, 0}) {
      model = std::make_unique<FakeModel>();
      if (least == 0) std::filesystem::remove_all(directory);
      start();
      const auto stream = engine->submit(request);
      EXPECT_EQ(read_all(*stream)[0].tokens, expected.tokens) << policy;
      EXPECT_GE(stream->usage().cached_tokens, least) << policy;
      EXPECT_EQ(stream->usage().cached_tokens > 0, least > 0) << policy;
      engine.reset();
    }
    std::filesystem::remove_all(directory);
    model = std::make_unique<FakeModel>();
  }
}

// A container's user may find such a directory if the volume belongs to root.
TEST_F(EngineTest, ADirectoryForPrefixesThatCannotBeUsedIsLeftAlone) {
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / ("no_directory." + std::to_string(getpid()));
  std::ofstream(file) << "a file";
  options.prefix_cache_bytes = -1;
  for (const std::filesystem::path& directory : {file, file / "below", std::filesystem::path("/proc/self/prefixes")}) {
    options.prefix_cache_dir = directory;
    model = std::make_unique<FakeModel>();
    testing::internal::CaptureStderr();
    start();
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find("prefix_cache_dir: expected a writable directory, found " + directory.string()),
              std::string::npos)
        << log;
    const ChoiceResult first = generate(make_request(600, 10, 1));
    const auto again = engine->submit(make_request(600, 10, 1));
    EXPECT_EQ(read_all(*again)[0].tokens, first.tokens);
    EXPECT_GE(again->usage().cached_tokens, 500);  // prompts are still stored in memory
    engine.reset();
  }
  std::filesystem::remove(file);
}

TEST_F(EngineTest, PrefixesMakeRoomForRunningSequences) {
  options.prefix_cache_bytes = -1;
  options.kv_cache_bytes = 9 * 64 * fake_cache_shape().bytes_per_token();
  start();
  for (uint64_t seed = 0; seed < 6; ++seed) generate(make_request(130, 10, seed));
  EXPECT_GT(engine->stats().prefix_cache_states, 0);
  EXPECT_EQ(generate(make_request(400, 50, 9)).finish, FinishReason::kLength);
  EXPECT_EQ(engine->stats().preemptions, 0u);
  EXPECT_LE(engine->stats().kv_bytes_used, options.kv_cache_bytes);
}

TEST_F(EngineTest, SamplingOnThePoolGivesTheSameTokens) {
  start();
  std::vector<std::vector<TokenId>> expected;
  for (uint64_t seed = 0; seed < 12; ++seed) expected.push_back(generate(make_request(5, 30, seed)).tokens);
  engine.reset();
  model = std::make_unique<FakeModel>();
  threads = 4;
  start();
  std::vector<std::unique_ptr<GenerationStream>> streams;
  for (uint64_t seed = 0; seed < 12; ++seed) streams.push_back(engine->submit(make_request(5, 30, seed)));
  for (uint64_t seed = 0; seed < 12; ++seed) EXPECT_EQ(read_all(*streams[seed])[0].tokens, expected[seed]);
}

TEST_F(EngineTest, InvalidRequestsNameTheField) {
  start();
  const auto expect = [&](const char* field, const std::function<void(GenerationRequest*)>& change) {
    GenerationRequest request = make_request(3, 4);
    change(&request);
    const RequestError error = refusal(request);
    EXPECT_EQ(error.kind, RequestError::Kind::kInvalid) << field;
    EXPECT_EQ(error.param, field);
    EXPECT_THAT(error.what(), HasSubstr(field));
  };
  expect("prompt", [](auto* r) { r->prompt.clear(); });
  expect("prompt", [](auto* r) { r->prompt[1] = 64; });
  expect("n", [](auto* r) { r->n = 33; });
  expect("max_tokens", [](auto* r) { r->max_tokens = -1; });
  expect("min_tokens", [](auto* r) { r->min_tokens = 5; });
  expect("temperature", [](auto* r) { r->sampling.temperature = -0.1f; });
  expect("top_p", [](auto* r) { r->sampling.top_p = -0.1f; });
  expect("top_k", [](auto* r) { r->sampling.top_k = -2; });
  expect("min_p", [](auto* r) { r->sampling.min_p = 1.1f; });
  expect("repetition_penalty", [](auto* r) { r->sampling.repetition_penalty = 0; });
  expect("presence_penalty", [](auto* r) { r->sampling.presence_penalty = 2.1f; });
  expect("frequency_penalty", [](auto* r) { r->sampling.frequency_penalty = std::nanf(""); });
  expect("logit_bias", [](auto* r) { r->sampling.logit_bias = {{64, 1.0f}}; });
  expect("stop", [](auto* r) { r->stop = {""}; });
  expect("stop_token_ids", [](auto* r) { r->stop_token_ids = {-1}; });
  expect("kv_cache", [](auto* r) { r->kv_cache = "no-such-policy"; });
  expect("speculative.method", [](auto* r) { r->speculative = {{"method", "draft_model"}}; });
  EXPECT_EQ(engine->stats().rejected.at("invalid"), 17);
  GenerationRequest allowed = make_request(3, 4);
  allowed.kv_cache = {{"policy", "full"}};
  allowed.speculative = {{"method", "off"}};
  EXPECT_EQ(generate(allowed).finish, FinishReason::kLength);
}

TEST_F(EngineTest, AnErrorInSamplingEndsThatRequestOnly) {
  start();
  GenerationRequest broken = make_request(20, 10, 1);
  broken.prompt[10] = kFakeNan;
  broken.n = 2;
  const auto good = engine->submit(make_request(20, 10, 2));
  const auto bad = engine->submit(broken);
  for (const ChoiceResult& result : read_all(*bad, 2)) {
    EXPECT_EQ(result.finish, FinishReason::kError);
    EXPECT_THAT(result.error, HasSubstr("NaN"));
  }
  EXPECT_EQ(read_all(*good)[0].finish, FinishReason::kLength);
  EXPECT_EQ(engine->stats().finished.at("error"), 1);
  EXPECT_EQ(engine->stats().kv_bytes_used, 0);
}

TEST_F(EngineTest, AFailedPassEndsTheRequestAtFaultOnly) {
  start();
  const std::vector<TokenId> expected = generate(make_request(20, 10, 2)).tokens;
  engine.reset();
  model = std::make_unique<FakeModel>();
  start();
  GenerationRequest request = make_request(20, 10, 1);
  request.prompt[10] = kFakeThrow;
  const auto streams = engine->submit_all({make_request(20, 10, 2), request, make_request(20, 10, 3)});
  const ChoiceResult failed = read_all(*streams[1])[0];
  EXPECT_EQ(failed.finish, FinishReason::kError);
  EXPECT_THAT(failed.error, HasSubstr("cannot bear token 63"));
  EXPECT_EQ(read_all(*streams[0])[0].tokens, expected);
  EXPECT_EQ(read_all(*streams[2])[0].finish, FinishReason::kLength);
  EXPECT_EQ(engine->stats().kv_bytes_used, 0);
  EXPECT_EQ(engine->stats().finished.at("error"), 1);
}

// The tokens are recomputed in passes that end at boundaries. The last pass ends one known token before the end.
TEST_F(EngineTest, AnAnswerThatIsComputedAnewGoesOnFromABoundary) {
  const auto request_of = [](uint64_t seed) {
    GenerationRequest request = make_request(100, 150, seed);
    request.kv_cache = {{"policy", "random"}, {"tokens", 256}};
    return request;
  };
  bool failed = false;
  model->on_forward = [&](std::span<const SequenceInput> batch) {
    if (failed || batch.size() < 2 || batch[0].cache->tokens() != 192) return;  // a boundary
    failed = true;
    throw std::runtime_error("nobody's fault");
  };
  start();
  const auto streams = engine->submit_all({request_of(1), request_of(2)});
  std::vector<ChoiceResult> results;
  for (const auto& stream : streams) results.push_back(read_all(*stream)[0]);
  EXPECT_TRUE(failed);
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    const ChoiceResult& result = results[seed - 1];
    EXPECT_EQ(result.finish, FinishReason::kLength) << result.error;
    EXPECT_EQ(result.tokens, generate(request_of(seed)).tokens) << seed;
  }
}

TEST_F(EngineTest, APassThatRecomputesAnAnswerAndSamplesIsADecodePass) {
  bool failed = false;
  size_t recomputed = 0;  // tokens of that pass
  model->on_forward = [&](std::span<const SequenceInput> batch) {
    if (failed) {
      if (batch[0].n_logits > 0) recomputed = std::max(recomputed, batch[0].tokens.size());
    } else if (batch[0].cache->tokens() == 120) {
      failed = true;
      throw std::runtime_error("nobody's fault");
    }
  };
  start();
  const auto streams = engine->submit_all({make_request(100, 50, 1), make_request(100, 50, 2)});
  for (const auto& stream : streams) {
    EXPECT_EQ(read_all(*stream)[0].finish, FinishReason::kLength);
    // One for each token after the first, and the one that failed.
    EXPECT_EQ(stream->usage().timings.decode_passes, 49 + 1);
  }
  EXPECT_GT(recomputed, 1u);
}

// Memory that no running sequence uses is released, too: states of prompts, and pages kept for reuse.
TEST_F(EngineTest, WithoutMemoryTheRequestAtFaultEndsAndTheRestIsGivenBack) {
  options.prefix_cache_bytes = -1;
  model->on_forward = [](std::span<const SequenceInput> batch) {
    for (const SequenceInput& input : batch) {
      if (std::count(input.tokens.begin(), input.tokens.end(), kFakeThrow) > 0) throw std::bad_alloc();
    }
  };
  start();
  const std::vector<TokenId> expected = generate(make_request(200, 10, 2)).tokens;
  EXPECT_GT(engine->stats().prefix_cache_states, 0);
  GenerationRequest request = make_request(20, 10, 1);
  request.prompt[10] = kFakeThrow;
  const auto streams = engine->submit_all({request, make_request(20, 10, 3)});
  const ChoiceResult failed = read_all(*streams[0])[0];
  EXPECT_EQ(failed.finish, FinishReason::kOutOfMemory);
  EXPECT_THAT(failed.error, HasSubstr("memory"));
  EXPECT_EQ(read_all(*streams[1])[0].finish, FinishReason::kLength);
  EXPECT_EQ(engine->stats().finished.at("error"), 1);
  const auto again = engine->submit(make_request(200, 10, 2));
  EXPECT_EQ(read_all(*again)[0].tokens, expected);
  EXPECT_EQ(again->usage().cached_tokens, 0);
}

TEST_F(EngineTest, ASlowReaderGetsEverythingInFewEvents) {
  start();
  const std::vector<TokenId> expected = generate(make_request(5, 200, 7)).tokens;
  const auto stream = engine->submit(make_request(5, 200, 7));
  engine->drain();  // the last event is queued by then
  GenerationEvent event;
  ASSERT_EQ(stream->next(&event, kPatience), GenerationStream::Status::kEvent);
  EXPECT_EQ(event.tokens, expected);
  EXPECT_EQ(event.finish, FinishReason::kLength);
  EXPECT_EQ(stream->next(&event, kPatience), GenerationStream::Status::kEnd);
}

TEST_F(EngineTest, TimingsAndCountersAddUp) {
  options.prefill_chunk = 8;
  start();
  const auto stream = engine->submit(make_request(20, 6));
  read_all(*stream);
  const RequestUsage usage = stream->usage();
  const RequestTimings& timings = usage.timings;
  EXPECT_NEAR(timings.queued_ms + timings.prefill_ms + timings.decode_ms, timings.total_ms, 1e-6);
  EXPECT_GT(timings.prefill_ms, 0);
  EXPECT_GT(timings.decode_ms, 0);
  EXPECT_GT(timings.sample_ms, 0);
  EXPECT_LE(timings.model_ms + timings.sample_ms, timings.total_ms);
  EXPECT_EQ(timings.prefill_chunks, 3);
  EXPECT_EQ(timings.decode_passes, 5);
  EXPECT_EQ(usage.prompt_tokens, 20);
  EXPECT_EQ(usage.completion_tokens, 6);
  EXPECT_EQ(usage.kv_cache.tokens, 25);
  EXPECT_EQ(usage.kv_cache.bytes, 64 * fake_cache_shape().bytes_per_token());
  EXPECT_EQ(usage.kv_cache.tiers.tokens[kExactTier], 25);

  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.prompt_tokens, 20);
  EXPECT_EQ(stats.generation_tokens, 6);
  EXPECT_EQ(stats.steps, 8);
  EXPECT_EQ(stats.finished.at("length"), 1);
  EXPECT_EQ(stats.time_to_first_token.count, 1);
  EXPECT_EQ(stats.time_per_output_token.count, 5);
  EXPECT_EQ(stats.e2e_latency.count, 1);
  EXPECT_EQ(std::accumulate(stats.e2e_latency.counts.begin(), stats.e2e_latency.counts.end(), uint64_t{0}), 1);
}

TEST_F(EngineTest, DrainFinishesWhatRunsAndTakesNoMore) {
  Latch gate;
  hold_passes(&gate);
  start();
  const auto stream = engine->submit(make_request(5, 20));
  gate.wait_for_pass();
  std::thread drainer([&] { engine->drain(); });
  while (!engine->draining()) std::this_thread::yield();
  EXPECT_EQ(refusal(make_request(5, 20)).kind, RequestError::Kind::kDraining);
  gate.open();
  drainer.join();
  EXPECT_EQ(read_all(*stream)[0].finish, FinishReason::kLength);
}

TEST_F(EngineTest, StopCancelsWhatRuns) {
  start();
  std::vector<std::unique_ptr<GenerationStream>> streams;
  for (uint64_t seed = 0; seed < 8; ++seed) streams.push_back(engine->submit(make_request(5, 1000, seed)));
  engine->stop();
  EXPECT_EQ(engine->stats().kv_bytes_used, 0);
  EXPECT_EQ(engine->stats().requests_running, 0);
  for (const auto& stream : streams) EXPECT_NE(read_all(*stream)[0].finish, FinishReason::kNone);
  engine.reset();
  GenerationEvent event;
  EXPECT_EQ(streams[0]->next(&event, kPatience), GenerationStream::Status::kEnd);  // handles outlive the engine
}

TEST_F(EngineTest, AnIdleEngineUsesNoCpu) {
  start();
  generate(make_request(5, 5));
  const auto cpu_ms = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto ms = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
    };
    return ms(usage.ru_utime) + ms(usage.ru_stime);
  };
  const double before = cpu_ms();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_ms() - before, 50);
}

TEST_F(EngineTest, ManyClientsAtOnce) {
  options.max_sequences = 6;
  options.max_queue = 1000;
  start();
  std::vector<std::thread> clients;
  for (uint64_t client = 0; client < 8; ++client) {
    clients.emplace_back([this, client] {
      for (uint64_t i = 0; i < 5; ++i) {
        GenerationRequest request = make_request(10 + static_cast<int64_t>(client), 20, client * 10 + i);
        request.n = 1 + static_cast<int32_t>(i % 3);
        const auto stream = engine->submit(request);
        if ((client + i) % 4 == 0) {
          GenerationEvent event;
          stream->next(&event, kPatience);
          continue;  // leaves in the middle
        }
        for (const ChoiceResult& result : read_all(*stream, request.n)) {
          EXPECT_EQ(result.finish, FinishReason::kLength);
        }
        engine->stats();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  engine->drain();
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.kv_bytes_used, 0);
  EXPECT_EQ(stats.kv_bytes_promised, 0);
  EXPECT_EQ(stats.requests_running + stats.requests_waiting, 0);
}

}  // namespace
}  // namespace smartkv
