// Outputs under a grammar, through the engine.
#include <gtest/gtest.h>

#include <regex>

#include "tests/engine/engine_fixture.h"

namespace smartkv {
namespace {

using nlohmann::json;

// Few words may follow each letter, so that tokens from look-up often break the grammar.
constexpr const char* kGrammar =
    "root ::= (pair \" \"){3} [x-z]+ \"q\"\npair ::= \"a\" [b-d] | \"e\" [f-h] | \"ab\" \"a\" [m-z]+";
const std::regex kForm("((a[b-d]|e[f-h]|aba[m-z]+) ){3}[x-z]+q");

class ConstrainedOutput : public EngineTest {
 protected:
  GenerationRequest constrained(uint64_t seed, int64_t prompt_tokens = 20) {
    GenerationRequest request = make_request(prompt_tokens, 300, seed);
    request.grammar = kGrammar;
    return request;
  }
};

TEST_F(ConstrainedOutput, ObeysTheGrammarAndEndsWithIt) {
  start();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    GenerationRequest request = constrained(seed);
    if (seed % 2 == 1) request.sampling.top_k = 5;
    if (seed % 3 == 1) request.sampling.temperature = 0;
    request.ignore_eos = seed % 4 == 1;
    request.min_tokens = seed % 5 == 1 ? 100 : 0;
    request.logprobs = seed % 7 == 1 ? 2 : -1;
    if (request.sampling.temperature == 0) request.sampling.frequency_penalty = 1.0f;  // [x-z]+ might never end
    const ChoiceResult result = generate(request);
    if (result.finish == FinishReason::kLength) continue;
    EXPECT_EQ(result.finish, FinishReason::kStop) << result.error;
    EXPECT_TRUE(std::regex_match(result.text, kForm)) << result.text;
    if (request.logprobs >= 0) {
      EXPECT_EQ(result.logprobs.size(), result.tokens.size());
    }
  }
}

TEST_F(ConstrainedOutput, IsTheSameWithEveryDraft) {
  model->memory = 2;
  draft_model = std::make_unique<FakeModel>();
  draft_model->memory = 2;
  int4_model = std::make_unique<FakeModel>();
  start();
  const json methods[] = {{{"method", "ngram"}, {"ngram_min", 1}, {"tokens", 16}, {"adaptive", false}},
                          {{"method", "draft_model"}, {"tokens", 5}, {"adaptive", false}},
                          {{"method", "self"}, {"tokens", 5}, {"adaptive", false}},
                          {{"method", "self"}, {"weights", "int4"}, {"adaptive", false}},
                          {{"method", "auto"}}};
  for (uint64_t seed = 0; seed < 10; ++seed) {
    GenerationRequest request = constrained(seed);
    const ChoiceResult plain = generate(request);
    ASSERT_EQ(plain.error, "");
    for (const json& method : methods) {
      request.speculative = method;
      const ChoiceResult drafted = generate(request);
      EXPECT_EQ(drafted.tokens, plain.tokens) << method << ": " << drafted.error;
      EXPECT_EQ(drafted.finish, plain.finish);
    }
  }
}

TEST_F(ConstrainedOutput, DraftsOfAGoodModelStand) {
  draft_model = std::make_unique<FakeModel>();  // the target's twin
  start();
  GenerationRequest request = constrained(3);
  request.speculative = {{"method", "draft_model"}, {"tokens", 4}, {"adaptive", false}};
  const auto stream = engine->submit(request);
  read_all(*stream);
  EXPECT_GT(stream->usage().speculation.drafted, 0);
  // All except drafts beyond the end are accepted.
  EXPECT_GE(stream->usage().speculation.accepted, stream->usage().speculation.drafted - 4);
}

TEST_F(ConstrainedOutput, EachChoiceHasItsOwnPlaceInTheGrammar) {
  threads = 2;
  start();
  GenerationRequest request = constrained(5);
  request.n = 4;
  const auto stream = engine->submit(request);
  const std::vector<ChoiceResult> choices = read_all(*stream, 4);
  for (const ChoiceResult& choice : choices) {
    if (choice.finish == FinishReason::kStop) {
      EXPECT_TRUE(std::regex_match(choice.text, kForm)) << choice.text;
    }
  }
}

TEST_F(ConstrainedOutput, SurvivesTheLossOfItsCache) {
  start();
  std::vector<GenerationRequest> requests;
  std::vector<std::vector<TokenId>> alone;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    requests.push_back(constrained(seed, 60));
    requests.back().max_tokens = 200;
    requests.back().grammar = "root ::= [a-c]{70} [d-f]{70} [x-z]*";
    alone.push_back(generate(requests.back()).tokens);
  }
  engine.reset();
  model = std::make_unique<FakeModel>();
  options.kv_cache_bytes = 4 * 260 * 2 * 16 * 4;  // room for about four whole sequences
  start();
  auto streams = engine->submit_all(requests);
  int64_t preemptions = 0;
  for (size_t i = 0; i < streams.size(); ++i) {
    EXPECT_EQ(read_all(*streams[i])[0].tokens, alone[i]);
    preemptions += streams[i]->usage().timings.preemptions;
  }
  EXPECT_GT(preemptions, 0);
}

// Masks also apply where a device samples. Near the end of a counted repetition they exclude tokens of four characters.
TEST_F(ConstrainedOutput, CountedRepetitionsEndWhereTheyMust) {
  for (const bool draws : {false, true}) {
    engine.reset();
    model = std::make_unique<FakeModel>();
    model->draws = draws;
    model->bias = [](TokenId token) {
      return token >= 30 && token < kFakeNan ? 20.0f : token == kFakeEos ? -50.0f : 0.0f;
    };
    start();
    for (uint64_t seed = 0; seed < 4; ++seed) {
      GenerationRequest request = make_request(20, 100, seed);
      request.grammar = "root ::= [<>0-9a-c]{" + std::to_string(98 + seed) + "} \"q\"";
      request.sampling.temperature = 0;
      const ChoiceResult result = generate(request);
      EXPECT_EQ(result.finish, FinishReason::kStop) << result.error;
      EXPECT_EQ(result.text.size(), 99 + seed) << result.text;
      EXPECT_EQ(result.text[0], '<');
    }
  }
}

TEST_F(ConstrainedOutput, RefusesWhatIsNoGrammar) {
  start();
  for (const char* grammar : {"root ::= ", "rot ::= \"a\"", "root ::= nothing", "root ::= root", "root ::= \"a"}) {
    GenerationRequest request = make_request(3, 5);
    request.grammar = grammar;
    const RequestError error = refusal(request);
    EXPECT_EQ(error.kind, RequestError::Kind::kInvalid) << grammar;
    EXPECT_EQ(error.param, "grammar");
  }
}

}  // namespace
}  // namespace smartkv
