// The engine over a model that samples tokens on the emulated device, compared with the same model when its logits come
// to the host.
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/kv_backend.h"
#include "tests/cuda/device_rows.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/model/tiny_llama.h"

namespace smartkv {
namespace {

// A model that reports or hides that it samples tokens on the device, and counts rows of logits.
class Watched final : public Model {
 public:
  Watched(std::unique_ptr<Model> model, bool draws, int64_t* drawn, int64_t* fetched)
      : model_(std::move(model)), draws_(draws), drawn_(drawn), fetched_(fetched) {}

  const ModelConfig& config() const override { return model_->config(); }
  void forward(std::span<const SequenceInput> batch, float* logits) override {
    for (const SequenceInput& input : batch) (input.draw != nullptr ? *drawn_ : *fetched_) += input.n_logits;
    model_->forward(batch, logits);
  }
  bool batch_invariant() const override { return model_->batch_invariant(); }
  bool samples_tokens() const override { return draws_ && model_->samples_tokens(); }
  void rope_angles(int64_t position, float* cos, float* sin) const override { model_->rope_angles(position, cos, sin); }
  int64_t weight_bytes() const override { return model_->weight_bytes(); }
  const std::shared_ptr<kernels::KvBackend>& kv_backend() const override { return model_->kv_backend(); }

 private:
  std::unique_ptr<Model> model_;
  bool draws_;
  int64_t* drawn_;
  int64_t* fetched_;
};

struct Answers {
  std::vector<ChoiceResult> choices;
  int64_t drawn = 0, fetched = 0;  // rows sampled on the device, and rows fetched to the host
};

class DrawingEngine : public testing::Test {
 protected:
  DrawingEngine() : weights_(config()) {}

  static ModelConfig config() {
    ModelConfig config = tiny_config();
    config.vocab_size = kFakeVocab;
    return config;
  }

  static Answers answer(const std::vector<GenerationRequest>& requests, bool draws, const Weights& weights) {
    Answers answers;
    EngineParts parts;
    parts.threads = std::make_unique<ThreadPool>(2);
    const ModelOptions bf16{.dtype = DataType::kBf16};
    auto model = make_llama(weights, bf16, *parts.threads, device_rows_loader(*parts.threads),
                            kernels::cuda::make_cuda_kv_backend(0));
    EXPECT_TRUE(model->samples_tokens());
    parts.model = std::make_unique<Watched>(std::move(model), draws, &answers.drawn, &answers.fetched);
    parts.cache_shape = llama_cache_shape(weights.config(), bf16);
    parts.tokenizer = std::make_unique<FakeTokenizer>();
    parts.options.model.context_length = weights.config().context_length;
    parts.options.kv_cache_bytes = int64_t{64} << 20;
    EngineImpl engine(std::move(parts));
    const auto streams = engine.submit_all(requests);
    for (size_t i = 0; i < streams.size(); ++i) {
      for (ChoiceResult& choice : read_all(*streams[i], requests[i].n)) answers.choices.push_back(std::move(choice));
    }
    return answers;
  }

  // Returns the answers of the engine that samples on the device.
  Answers expect_equal(const std::vector<GenerationRequest>& requests) {
    Answers device = answer(requests, true, weights_);
    const Answers host = answer(requests, false, weights_);
    EXPECT_EQ(host.drawn, 0);
    EXPECT_EQ(device.choices.size(), host.choices.size());
    for (size_t i = 0; i < host.choices.size(); ++i) {
      const ChoiceResult &found = device.choices[i], &expected = host.choices[i];
      EXPECT_EQ(found.error, "");
      EXPECT_EQ(found.tokens, expected.tokens) << i;
      EXPECT_EQ(found.text, expected.text) << i;
      EXPECT_EQ(found.finish, expected.finish) << i;
      EXPECT_EQ(found.logprobs.size(), expected.logprobs.size()) << i;
    }
    return device;
  }

  TinyWeights weights_;
};

GenerationRequest request_of(const std::function<void(GenerationRequest*)>& change) {
  static uint64_t seed = 0;
  GenerationRequest request = make_request(9, 8, ++seed);
  change(&request);
  return request;
}

TEST_F(DrawingEngine, AnswersAsWithLogitsOnTheHostAndFetchesNone) {
  const std::vector<GenerationRequest> requests = {
      request_of([](GenerationRequest* r) { r->sampling.temperature = 0; }),
      request_of([](GenerationRequest*) {}),
      request_of([](GenerationRequest* r) {
        r->sampling.top_p = 0.9f;
        r->sampling.top_k = 20;
      }),
      request_of([](GenerationRequest* r) {
        r->sampling.min_p = 0.05f;
        r->sampling.logit_bias = {{9, 1.5f}, {3, 2.0f}, {9, 0.5f}};
        r->min_tokens = 4;
      }),
      request_of([](GenerationRequest* r) {
        r->sampling.repetition_penalty = 1.3f;
        r->sampling.presence_penalty = 0.5f;
        r->sampling.frequency_penalty = 0.2f;
      }),
      request_of([](GenerationRequest* r) { r->grammar = "root ::= [a-c]+ \" \" [d-f]+"; }),
  };
  const Answers answers = expect_equal(requests);
  EXPECT_EQ(answers.fetched, 0);
  EXPECT_GE(answers.drawn, 30);
}

// Each runs beside a request that samples on the device, so that a pass has rows of both kinds.
TEST_F(DrawingEngine, LogitsThatTheHostNeedsComeToIt) {
  const std::pair<const char*, std::function<void(GenerationRequest*)>> kinds[] = {
      {"log probabilities", [](GenerationRequest* r) { r->logprobs = 2; }},
      {"of the prompt", [](GenerationRequest* r) { r->prompt_logprobs = 1; }},
      {"choices", [](GenerationRequest* r) { r->n = 3; }},
      {"drafts",
       [](GenerationRequest* r) {
         r->prompt = {1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3};
         r->sampling.logit_bias = {{1, 3.0f}, {2, 3.0f}, {3, 3.0f}};
         r->speculative = {{"method", "ngram"}, {"ngram_min", 1}, {"adaptive", false}};
       }},
  };
  for (const auto& [kind, change] : kinds) {
    const Answers answers = expect_equal(
        {request_of([](GenerationRequest*) {}), request_of(change), request_of([](GenerationRequest*) {})});
    EXPECT_GT(answers.fetched, 0) << kind;
    EXPECT_GE(answers.drawn, 10) << kind;
  }
}

// NaN logits end their request with the same error as on the host.
TEST_F(DrawingEngine, SaysWhatIsWrongWithLogits) {
  ModelConfig config = DrawingEngine::config();
  config.rms_norm_eps = std::numeric_limits<double>::quiet_NaN();
  const TinyWeights broken(config);
  const GenerationRequest request = request_of([](GenerationRequest*) {});
  const Answers device = answer({request}, true, broken), host = answer({request}, false, broken);
  EXPECT_EQ(device.fetched, 0);
  EXPECT_EQ(device.choices[0].finish, FinishReason::kError);
  EXPECT_EQ(device.choices[0].error, "logits: expected finite values, found NaN for token 0");
  EXPECT_EQ(device.choices[0].error, host.choices[0].error);
}

}  // namespace
}  // namespace smartkv
