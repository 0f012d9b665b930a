// Speculative decoding through the engine must give the output of plain decoding, whichever method drafts.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include "tests/engine/engine_fixture.h"

namespace smartkv {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Returns a draft model that agrees with the target most of the time.
std::unique_ptr<FakeModel> make_draft(int64_t memory) {
  auto draft = std::make_unique<FakeModel>();
  draft->memory = memory;
  draft->bias = [bias = draft->bias](TokenId token) { return bias(token) + (token % 3 == 0 ? 1.0f : 0.0f); };
  return draft;
}

class Speculation : public EngineTest {
 protected:
  // Starts an engine with all kinds of drafts. Short memories make outputs repeat, so that look-up finds drafts.
  void start_all(int64_t memory = 2) {
    model = std::make_unique<FakeModel>();
    model->memory = memory;
    draft_model = make_draft(memory);
    int4_model = make_draft(memory);
    start();
  }
  ChoiceResult run(const GenerationRequest& request, RequestUsage* usage = nullptr) {
    const auto stream = engine->submit(request);
    ChoiceResult result = read_all(*stream)[0];
    if (usage != nullptr) *usage = stream->usage();
    return result;
  }
};

struct Method {
  const char* name;
  json spec;
};

const std::vector<Method>& methods() {
  static const json streaming = {{"policy", "streaming"}, {"tokens", 192}, {"sinks", 4}};
  static const json watching = {{"policy", "snapkv"}, {"tokens", 256}, {"window", 32}};
  static const std::vector<Method> all = {
      {"ngram", {{"method", "ngram"}}},
      {"ngram_eager", {{"method", "ngram"}, {"ngram_min", 1}, {"tokens", 32}, {"adaptive", false}}},
      {"draft_model", {{"method", "draft_model"}}},
      {"draft_model_fixed", {{"method", "draft_model"}, {"tokens", 7}, {"adaptive", false}}},
      {"draft_model_streaming", {{"method", "draft_model"}, {"kv_cache", streaming}, {"adaptive", false}}},
      {"self_streaming", {{"method", "self"}, {"kv_cache", streaming}, {"tokens", 5}, {"adaptive", false}}},
      {"self_snapkv", {{"method", "self"}, {"kv_cache", watching}, {"tokens", 5}, {"adaptive", false}}},
      {"self_int4", {{"method", "self"}, {"weights", "int4"}, {"adaptive", false}}},
      {"auto", {{"method", "auto"}}},
      {"auto_fixed", {{"method", "auto"}, {"tokens", 6}, {"adaptive", false}}},
  };
  return all;
}

class SpeculationMethod : public Speculation, public ::testing::WithParamInterface<Method> {};

TEST_P(SpeculationMethod, GreedyOutputIsPlainDecodings) {
  start_all();
  for (const json& policy :
       {json(), json{{"policy", "streaming"}, {"tokens", 192}}, json{{"policy", "snapkv"}, {"tokens", 256}}}) {
    int64_t accepted = 0;
    for (uint64_t seed = 0; seed < 10; ++seed) {
      GenerationRequest request = make_request(3 + static_cast<int64_t>(seed) * 31, 200, seed);
      request.sampling.temperature = 0;
      request.kv_cache = policy;
      if (seed % 2 == 1) request.sampling.frequency_penalty = 0.4f;
      const std::vector<TokenId> plain = run(request).tokens;
      request.speculative = GetParam().spec;
      RequestUsage usage;
      EXPECT_EQ(run(request, &usage).tokens, plain) << "seed " << seed << ", policy " << policy;
      EXPECT_EQ(usage.completion_tokens, 200);
      EXPECT_EQ(usage.speculation.method, GetParam().spec["method"]);
      EXPECT_LE(usage.speculation.accepted, usage.speculation.drafted);
      accepted += usage.speculation.accepted;
    }
    // The fake draft model costs as much as the fake target, so whether it pays depends on the clock.
    EXPECT_TRUE(accepted > 0 || GetParam().spec.value("adaptive", true)) << policy;
  }
  EXPECT_EQ(engine->stats().kv_bytes_used, 0);
  EXPECT_EQ(engine->stats().kv_bytes_promised, 0);
}

TEST_P(SpeculationMethod, MixesInABatchWithAllOthers) {
  options.prefill_chunk = 16;
  start_all();
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<TokenId>> plain;
  for (uint64_t i = 0; i < 12; ++i) {
    GenerationRequest request = make_request(5 + static_cast<int64_t>(i) * 17, 60, i);
    request.sampling.temperature = 0;
    plain.push_back(run(request).tokens);
    request.speculative = i % 3 == 0 ? methods()[i % methods().size()].spec : i % 3 == 1 ? json() : GetParam().spec;
    requests.push_back(request);
  }
  std::vector<std::unique_ptr<GenerationStream>> streams;
  for (const GenerationRequest& request : requests) streams.push_back(engine->submit(request));
  for (size_t i = 0; i < streams.size(); ++i) EXPECT_EQ(read_all(*streams[i])[0].tokens, plain[i]) << i;
}

// With a memory of one token, the distribution of each token given its predecessor is known exactly.
TEST_P(SpeculationMethod, SamplesFromTheModelsDistribution) {
  start_all(1);
  GenerationRequest request = make_request(4, 1000);
  request.sampling.temperature = 1.3f;
  request.sampling.top_k = 6;
  request.sampling.top_p = 0.95f;
  request.speculative = GetParam().spec;
  std::map<TokenId, std::map<TokenId, double>> counts;
  int64_t accepted = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    request.sampling.seed = seed;
    RequestUsage usage;
    const std::vector<TokenId> tokens = run(request, &usage).tokens;
    for (size_t i = 1; i < tokens.size(); ++i) ++counts[tokens[i - 1]][tokens[i]];
    accepted += usage.speculation.accepted;
  }
  EXPECT_TRUE(accepted > 50 || GetParam().spec.value("adaptive", true)) << accepted;
  FakeModel reference;
  Sampler sampler;
  double sum = 0, degrees = 0;
  for (const auto& [previous, next] : counts) {
    std::vector<float> logits(kFakeVocab);
    reference.fill_logits({&previous, 1}, logits.data());
    const Distribution& expected = sampler.distribution(logits, {request.sampling, {}});
    double total = 0;
    for (const auto& [token, count] : next) total += count;
    for (const auto& [token, count] : next) EXPECT_GT(expected.probability(token), 0);
    for (const TokenId token : expected.tokens()) {
      const double wanted = total * expected.probability(token);
      if (wanted < 5) continue;
      const auto found = next.find(token);
      const double count = found == next.end() ? 0 : found->second;
      sum += (count - wanted) * (count - wanted) / wanted;
      ++degrees;
    }
    --degrees;
  }
  EXPECT_GT(degrees, 50);
  EXPECT_LT(sum, degrees + 4 * std::sqrt(2 * degrees) + 4);
}

// The answer must be the same alone and among others, and however much is drafted, which depends on the clock.
TEST_P(SpeculationMethod, ASeedGivesPlainDecodingsAnswerEveryTime) {
  options.prefill_chunk = 64;
  start_all();
  GenerationRequest request = make_request(20, 120, 3);
  request.sampling.temperature = 0.9f;
  request.sampling.top_p = 0.95f;
  request.sampling.presence_penalty = 0.2f;
  request.min_tokens = 30;
  request.stop_token_ids = {17};
  request.logprobs = 1;
  request.n = 3;
  const auto plain = read_all(*engine->submit(request), 3);
  EXPECT_NE(plain[0].tokens, plain[1].tokens);
  int64_t drafted = 0;
  for (int64_t i = 0; i < 10; ++i) {
    request.speculative = GetParam().spec;
    if (i % 2 == 1) request.speculative["tokens"] = 1 + 3 * i;
    std::vector<std::unique_ptr<GenerationStream>> others;
    for (int64_t other = 0; i >= 5 && other < 5; ++other) {
      GenerationRequest load = make_request(30 + 50 * other, 20 * i, static_cast<uint64_t>(100 + 10 * i + other));
      load.speculative = methods()[static_cast<size_t>(i + other) % methods().size()].spec;
      others.push_back(engine->submit(load));
    }
    const auto stream = engine->submit(request);
    const auto found = read_all(*stream, 3);
    drafted += stream->usage().speculation.drafted;
    for (size_t choice = 0; choice < 3; ++choice) {
      EXPECT_EQ(found[choice].tokens, plain[choice].tokens) << "run " << i << ", choice " << choice;
      EXPECT_EQ(found[choice].text, plain[choice].text);
      EXPECT_EQ(found[choice].finish, plain[choice].finish);
      ASSERT_EQ(found[choice].logprobs.size(), plain[choice].logprobs.size());
      for (size_t at = 0; at < plain[choice].logprobs.size(); ++at) {
        EXPECT_EQ(found[choice].logprobs[at].logprob, plain[choice].logprobs[at].logprob);
      }
    }
  }
  EXPECT_TRUE(drafted > 0 || GetParam().spec.value("adaptive", true));
}

INSTANTIATE_TEST_SUITE_P(All, SpeculationMethod, ::testing::ValuesIn(methods()),
                         [](const auto& tested) { return std::string(tested.param.name); });

// The cost of drafting varies. This may change how much is drafted, but not the answer.
TEST_F(Speculation, ASeedAnswersTheSameOnASlowMachine) {
  using std::chrono::microseconds;
  model = std::make_unique<FakeModel>();
  model->memory = 12;  // so that look-up finds little
  draft_model = make_draft(12);
  std::atomic<int64_t> target_delay = 0, draft_delay = 0;
  model->on_forward = [&](auto) { std::this_thread::sleep_for(microseconds(target_delay)); };
  draft_model->on_forward = [&](auto) { std::this_thread::sleep_for(microseconds(draft_delay)); };
  start();
  GenerationRequest request = make_request(20, 80, 5);
  const std::vector<TokenId> plain = run(request).tokens;
  std::set<int64_t> drafted;
  for (const char* method : {"draft_model", "auto"}) {
    request.speculative = method;
    for (int i = 0; i < 10; ++i) {
      target_delay = i % 3 == 0 ? 0 : 400;
      draft_delay = i % 3 == 1 ? 0 : 800;
      RequestUsage usage;
      EXPECT_EQ(run(request, &usage).tokens, plain) << method << ", run " << i;
      drafted.insert(usage.speculation.drafted);
    }
  }
  EXPECT_GT(drafted.size(), 1u);
}

TEST_F(Speculation, ASeedAnswersTheSameWherePartsWereComputedAnew) {
  constexpr uint64_t kRequests = 20;
  const auto request_of = [](uint64_t seed) {
    GenerationRequest request = make_request(40 + static_cast<int64_t>(seed) * 7, 300, seed);
    request.sampling.temperature = 0.9f;
    request.sampling.frequency_penalty = 0.1f;
    return request;
  };
  start_all();
  std::vector<std::vector<TokenId>> plain;
  for (uint64_t seed = 0; seed < kRequests; ++seed) plain.push_back(run(request_of(seed)).tokens);
  engine.reset();
  options.kv_cache_bytes = 20 * 64 * fake_cache_shape().bytes_per_token();
  start_all();
  std::vector<GenerationRequest> requests;  // all at once, so that memory runs out
  for (uint64_t seed = 0; seed < kRequests; ++seed) {
    GenerationRequest request = request_of(seed);
    request.speculative = methods()[seed % methods().size()].spec;
    requests.push_back(request);
  }
  const auto streams = engine->submit_all(std::move(requests));
  int64_t preemptions = 0;
  for (uint64_t seed = 0; seed < kRequests; ++seed) {
    EXPECT_EQ(read_all(*streams[seed])[0].tokens, plain[seed]) << seed;
    preemptions += streams[seed]->usage().timings.preemptions;
  }
  EXPECT_GT(preemptions, 0);
}

TEST_F(Speculation, LookupLeavesSeededSamplingAsItIs) {
  start_all(1);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    GenerationRequest request = make_request(30, 300, seed);
    request.sampling.top_k = 3;
    request.sampling.presence_penalty = 0.2f;
    request.logprobs = 2;
    const ChoiceResult plain = run(request);
    request.speculative = {{"method", "ngram"}, {"adaptive", false}};
    const ChoiceResult drafted = run(request);
    EXPECT_EQ(drafted.tokens, plain.tokens);
    EXPECT_EQ(drafted.text, plain.text);
    ASSERT_EQ(drafted.logprobs.size(), plain.logprobs.size());
    for (size_t i = 0; i < plain.logprobs.size(); ++i) {
      EXPECT_EQ(drafted.logprobs[i].logprob, plain.logprobs[i].logprob);
      EXPECT_EQ(drafted.logprobs[i].top, plain.logprobs[i].top);
    }
  }
}

TEST_F(Speculation, ARoundIsOneEventAndCounted) {
  start_all(1);
  GenerationRequest request = make_request(40, 60);
  request.sampling.temperature = 0;
  request.speculative = {{"method", "draft_model"}, {"tokens", 3}, {"adaptive", false}};
  const auto stream = engine->submit(request);
  std::vector<TokenId> tokens;
  int64_t drafted = 0, accepted = 0, rounds = 0;
  GenerationEvent event;
  while (stream->next(&event, kPatience) == GenerationStream::Status::kEvent) {
    for (const DraftRound& round : event.drafts) {
      ++rounds;
      drafted += static_cast<int64_t>(round.tokens.size());
      accepted += round.accepted;
      for (int64_t i = 0; i < round.accepted; ++i) {
        EXPECT_EQ(event.tokens[static_cast<size_t>(round.first + i)], round.tokens[static_cast<size_t>(i)]);
      }
    }
    tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
  }
  EXPECT_THAT(tokens, SizeIs(60));
  const RequestUsage usage = stream->usage();
  EXPECT_EQ(usage.speculation.drafted, drafted);
  EXPECT_EQ(usage.speculation.accepted, accepted);
  EXPECT_EQ(usage.speculation.passes, rounds);
  ASSERT_THAT(usage.speculation.accepted_at, SizeIs(3));
  EXPECT_GE(usage.speculation.accepted_at[0], usage.speculation.accepted_at[1]);
  EXPECT_EQ(usage.speculation.accepted_at[0] + usage.speculation.accepted_at[1] + usage.speculation.accepted_at[2],
            accepted);
  EXPECT_EQ(usage.speculation.rewound_tokens, drafted - accepted);
  EXPECT_GT(usage.speculation.rewinds, 0);
  EXPECT_LE(usage.speculation.rewinds, rounds);
  EXPECT_EQ(usage.timings.decode_passes + accepted, 59);
  EXPECT_EQ(usage.kv_cache.tokens, 40 + 59);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.speculation.drafted, drafted);
  EXPECT_EQ(stats.speculation.accepted, accepted);
  EXPECT_EQ(stats.speculation.passes, rounds);
  EXPECT_EQ(stats.generation_tokens, 60);
  EXPECT_EQ(stats.time_per_output_token.count, 59);
}

TEST_F(Speculation, AStopInsideARoundEndsThereAsInPlainDecoding) {
  start_all(1);
  GenerationRequest request = make_request(40, 400);
  request.sampling.temperature = 0;
  request.min_tokens = 21;
  const ChoiceResult all = run(request);
  for (size_t at = 22; at < 34; ++at) {
    GenerationRequest stopped = request;
    stopped.stop_token_ids = {all.tokens[at]};
    const ChoiceResult plain = run(stopped);
    stopped.speculative = {{"method", "draft_model"}, {"tokens", 16}, {"adaptive", false}};
    const ChoiceResult drafted = run(stopped);
    EXPECT_EQ(drafted.tokens, plain.tokens);
    EXPECT_EQ(drafted.text, plain.text);
    EXPECT_EQ(drafted.finish, plain.finish);
    stopped = request;
    stopped.stop = {FakeTokenizer().decode({all.tokens.data() + at, 2}, true)};
    const ChoiceResult plain_text = run(stopped);
    stopped.speculative = {{"method", "ngram"}, {"tokens", 16}, {"ngram_min", 1}, {"adaptive", false}};
    const ChoiceResult drafted_text = run(stopped);
    EXPECT_EQ(drafted_text.tokens, plain_text.tokens);
    EXPECT_EQ(drafted_text.text, plain_text.text);
    EXPECT_EQ(drafted_text.finish, FinishReason::kStop);
    EXPECT_EQ(drafted_text.stop_string, plain_text.stop_string);
  }
}

TEST_F(Speculation, MaxTokensAndTheContextAreNotPassed) {
  options.model.context_length = 64;
  start_all(1);
  for (int64_t max_tokens = 1; max_tokens < 40; ++max_tokens) {
    GenerationRequest request = make_request(30, max_tokens);
    request.sampling.temperature = 0;
    request.speculative = {{"method", "auto"}, {"tokens", 32}, {"adaptive", false}};
    EXPECT_THAT(run(request).tokens, SizeIs(std::min<int64_t>(max_tokens, 34)));
  }
}

TEST_F(Speculation, TheDraftsCacheCountsAndIsFreedOnCancelling) {
  draft_model = make_draft(2);
  Latch gate;
  hold_passes(&gate);
  start();
  GenerationRequest request = make_request(100, 900);
  request.speculative = {{"method", "draft_model"}, {"adaptive", false}};
  const auto stream = engine->submit(request);
  for (int pass = 0; pass < 3; ++pass) {
    gate.wait_for_pass();
    gate.let_one_pass();
  }
  gate.wait_for_pass();  // a round has been drafted but not verified
  const EngineStats stats = engine->stats();
  EXPECT_GE(stats.kv_bytes_promised, stats.kv_bytes_used);
  EXPECT_EQ(stats.kv_bytes_used, 2 * 128 * fake_cache_shape().bytes_per_token());
  stream->cancel();
  gate.open();
  EXPECT_EQ(read_all(*stream)[0].finish, FinishReason::kCancelled);
  EXPECT_EQ(engine->stats().kv_bytes_used, 0);
  EXPECT_EQ(engine->stats().kv_bytes_promised, 0);
}

TEST_F(Speculation, WithoutADraftModelAutoDraftsOnTheFourBitCopyOverTheLastTokens) {
  options.model.context_length = 4096;
  model = std::make_unique<FakeModel>();
  model->memory = 12;  // so that look-up finds little
  int4_model = make_draft(12);
  Latch gate;
  hold_passes(&gate);
  start();
  GenerationRequest request = make_request(3000, 60);
  request.sampling.temperature = 0;
  request.speculative = {{"method", "auto"}, {"tokens", 3}, {"adaptive", false}};
  const auto stream = engine->submit(request);
  gate.wait_for_pass();
  const int64_t token = fake_cache_shape().bytes_per_token(), promised = engine->stats().kv_bytes_promised;
  EXPECT_GE(promised, (3000 + 1024) * token);
  EXPECT_LT(promised, (3000 + 1300) * token);
  gate.open();
  const ChoiceResult drafted = read_all(*stream)[0];
  EXPECT_GT(stream->usage().speculation.drafted, 0);
  request.speculative = "off";
  EXPECT_EQ(drafted.tokens, run(request).tokens);
}

// A draft model with fewer outputs than the vocabulary has tokens, as with padded vocabularies.
class ShortDraft final : public Model {
 public:
  explicit ShortDraft(int64_t vocabulary) : whole_(make_draft(12)), config_(whole_->config()) {
    config_.vocab_size = vocabulary;
  }
  const ModelConfig& config() const override { return config_; }
  int64_t weight_bytes() const override { return 0; }
  const std::shared_ptr<kernels::KvBackend>& kv_backend() const override { return whole_->kv_backend(); }
  void rope_angles(int64_t position, float* cos, float* sin) const override { whole_->rope_angles(position, cos, sin); }
  void forward(std::span<const SequenceInput> batch, float* logits) override {
    int64_t rows = 0;
    for (const SequenceInput& input : batch) {
      rows += input.n_logits;
      for (const TokenId token : input.tokens) EXPECT_LT(token, config_.vocab_size);
    }
    std::vector<float> all(static_cast<size_t>(rows * kFakeVocab));
    whole_->forward(batch, all.data());
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(all.data() + row * kFakeVocab, config_.vocab_size, logits + row * config_.vocab_size);
    }
  }

 private:
  std::unique_ptr<FakeModel> whole_;
  ModelConfig config_;
};

TEST_F(Speculation, ADraftMayLackThePaddingOfTheVocabulary) {
  EngineParts parts;
  parts.options = options;
  parts.model = std::make_unique<FakeModel>();
  parts.tokenizer = std::make_unique<FakeTokenizer>();
  parts.cache_shape = parts.draft_shape = fake_cache_shape();
  parts.draft_model = std::make_unique<ShortDraft>(40);
  engine = std::make_unique<EngineImpl>(std::move(parts));
  int64_t drafted = 0, fallbacks = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    GenerationRequest request = make_request(20, 60, seed);
    // Requests with other seeds may sample tokens that the draft does not have.
    for (TokenId token = 40; seed < 4 && token < kFakeVocab; ++token)
      request.sampling.logit_bias.emplace_back(token, -100.0f);
    request.sampling.frequency_penalty = 0.1f;
    const ChoiceResult plain = run(request);
    request.speculative = {{"method", "draft_model"}, {"adaptive", false}};
    RequestUsage usage;
    const ChoiceResult drafts = run(request, &usage);
    EXPECT_EQ(drafts.error, "");
    EXPECT_EQ(drafts.tokens, plain.tokens);
    drafted += usage.speculation.drafted;
    const bool strange =
        std::any_of(plain.tokens.begin(), plain.tokens.end() - 1, [](TokenId token) { return token >= 40; });
    EXPECT_EQ(usage.speculation.fallbacks, strange ? 1 : 0);
    fallbacks += usage.speculation.fallbacks;
  }
  EXPECT_GT(drafted, 0);
  EXPECT_GT(fallbacks, 0);
  EXPECT_EQ(engine->stats().speculation.fallbacks, fallbacks);
}

TEST_F(Speculation, ADraftThatComputesNanOrInfinityIsGivenUp) {
  for (const float broken : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const json& method : {json("draft_model"), json("auto"), json{{"method", "self"}, {"weights", "int4"}}}) {
      start_all();
      options.speculative = nullptr;
      draft_model = make_draft(2);
      int4_model = make_draft(2);
      std::atomic<bool> breaks = false;
      for (FakeModel* draft : {draft_model.get(), int4_model.get()}) {
        draft->bias = [&, bias = draft->bias](TokenId token) {
          return bias(token) + (breaks && token == 5 ? broken : 0.0f);
        };
        draft->on_forward = [&, passes = 0](std::span<const SequenceInput> batch) mutable {
          passes += batch[0].n_logits > 0 ? 1 : 0;
          if (passes > 5) breaks = true;  // the first rounds draft
        };
      }
      model = std::make_unique<FakeModel>();
      model->memory = 2;
      start();
      GenerationRequest request = make_request(20, 100);
      request.n = 2;
      const auto plain = read_all(*engine->submit(request), 2);
      request.speculative = method.is_string() ? json{{"method", method}} : method;
      request.speculative["adaptive"] = false;
      const auto stream = engine->submit(request);
      const auto found = read_all(*stream, 2);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(found[i].error, "") << method;
        EXPECT_EQ(found[i].tokens, plain[i].tokens) << method;
      }
      EXPECT_GT(stream->usage().speculation.drafted, 0);
      EXPECT_EQ(stream->usage().speculation.fallbacks, 2) << method;
      EXPECT_EQ(engine->stats().speculation.fallbacks, 2u) << method;
      EXPECT_EQ(engine->stats().kv_bytes_used, 0);
    }
  }
}

TEST_F(Speculation, AFailingDraftIsGivenUpByItsOwnRequestsOnly) {
  start_all();
  draft_model = make_draft(2);
  FakeModel* draft = draft_model.get();
  model = std::make_unique<FakeModel>();
  start();
  draft->on_forward = [](std::span<const SequenceInput> batch) {
    if (batch[0].tokens.size() < 10) throw std::runtime_error("the draft broke");
  };
  GenerationRequest request = make_request(20, 30);
  const auto stream = engine->submit(request);
  request.speculative = {{"method", "draft_model"}, {"adaptive", false}};
  RequestUsage usage;
  const ChoiceResult result = run(request, &usage);
  const ChoiceResult plain = read_all(*stream)[0];
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(result.tokens, plain.tokens);
  EXPECT_EQ(usage.speculation.fallbacks, 1);
  EXPECT_EQ(stream->usage().speculation.fallbacks, 0);
  EXPECT_EQ(engine->stats().kv_bytes_used, 0);
}

TEST_F(Speculation, TheServersDefaultAppliesUnlessTheRequestSaysOtherwise) {
  options.speculative = {{"method", "draft_model"}, {"adaptive", false}};
  start_all();
  RequestUsage usage;
  GenerationRequest request = make_request(20, 30);
  run(request, &usage);
  EXPECT_EQ(usage.speculation.method, "draft_model");
  EXPECT_GT(usage.speculation.drafted, 0);
  request.speculative = "off";
  run(request, &usage);
  EXPECT_EQ(usage.speculation.method, "off");
  EXPECT_EQ(usage.speculation.drafted, 0);
  EXPECT_EQ(engine->describe()["speculative"], "draft_model");
}

TEST_F(Speculation, PillarAttnReadsAFullCacheForAModelThatDraftsForItself) {
  start_all();
  GenerationRequest request = make_request(3, 4);
  request.speculative = {{"method", "self"}, {"kv_cache", "pillar_attn"}};
  EXPECT_THAT(run(request).tokens, SizeIs(4));
  request.kv_cache = "k8v8";
  RequestError error = refusal(request);
  EXPECT_EQ(error.param, "speculative.kv_cache");
  EXPECT_THAT(error.what(), HasSubstr("expected kv_cache \"full\", found \"k8v8\""));
  request.kv_cache = nullptr;
  request.speculative = {{"method", "draft_model"}, {"kv_cache", "pillar_attn"}};
  error = refusal(request);
  EXPECT_EQ(error.param, "speculative.kv_cache");
  EXPECT_THAT(error.what(), HasSubstr("found \"draft_model\""));
  request.speculative = {{"method", "self"}, {"kv_cache", {{"policy", "pillar_attn"}, {"tokens", 1}}}};
  EXPECT_THAT(refusal(request).what(), HasSubstr("speculative.kv_cache.tokens"));
}

TEST_F(Speculation, BadValuesNameTheKey) {
  start();  // without any draft model
  const auto expect = [this](const json& field, const char* param, const char* text) {
    GenerationRequest request = make_request(3, 4);
    request.speculative = field;
    const RequestError error = refusal(request);
    EXPECT_EQ(error.kind, RequestError::Kind::kInvalid) << field;
    EXPECT_EQ(error.param, param) << field;
    EXPECT_THAT(error.what(), HasSubstr(text)) << field;
    EXPECT_THAT(error.what(), HasSubstr(param)) << field;
  };
  expect("eagle", "speculative", "\"ngram\"");
  expect(7, "speculative", "found 7");
  expect({{"tokens", 4}}, "speculative.method", "expected");
  expect({{"method", "eagle"}}, "speculative.method", "found \"eagle\"");
  expect({{"method", "ngram"}, {"token", 4}}, "speculative.token", "no such parameter; it takes adaptive");
  expect({{"method", "ngram"}, {"tokens", 0}}, "speculative.tokens", "[1, 32]");
  expect({{"method", "ngram"}, {"tokens", 33}}, "speculative.tokens", "found 33");
  expect({{"method", "ngram"}, {"tokens", 2.5}}, "speculative.tokens", "found 2.5");
  expect({{"method", "ngram"}, {"adaptive", 1}}, "speculative.adaptive", "true or false");
  expect({{"method", "ngram"}, {"ngram_min", 4}, {"ngram_max", 3}}, "speculative.ngram_max", "[4, 8], found 3");
  expect({{"method", "ngram"}, {"kv_cache", "full"}}, "speculative.kv_cache",
         "the method \"ngram\" has no such parameter");
  expect({{"method", "off"}, {"tokens", 4}}, "speculative.tokens", "takes no parameters");
  expect({{"method", "draft_model"}}, "speculative.method", "draft_model");
  expect({{"method", "auto"}, {"kv_cache", "full"}}, "speculative.kv_cache", "loaded neither");
  expect({{"method", "self"}, {"weights", "int4"}}, "speculative.weights", "draft_weights");
  expect({{"method", "self"}, {"weights", "int2"}}, "speculative.weights", "int4");
  expect({{"method", "self"}, {"offload", true}}, "speculative.offload", "kv_offload_bytes");
  expect({{"method", "self"}, {"offload", 1}}, "speculative.offload", "true or false");
  expect({{"method", "self"}, {"offload", true}, {"kv_cache", "pillar_attn"}}, "speculative.kv_cache", "offload");
  expect({{"method", "self"}, {"kv_cache", "no-such"}}, "speculative.kv_cache", "no-such");
  options.speculative = "draft_model";
  model = std::make_unique<FakeModel>();
  EXPECT_THROW(start(), RequestError);
}

}  // namespace
}  // namespace smartkv
