// Engines over a tiny model on some backend, and requests that they must answer alike.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tests/engine/engine_fixture.h"
#include "tests/engine/torch/torch_served.h"

namespace smartkv {

// Returns an engine in f32 that drafts with the same model on the native backend. shape: of the model's caches.
inline std::unique_ptr<EngineImpl> tiny_engine(const Weights& weights, std::unique_ptr<Model> model,
                                               const CacheShape& shape,
                                               std::unique_ptr<ThreadPool> threads = std::make_unique<ThreadPool>(1),
                                               const EngineOptions& options = {}) {
  EngineParts parts;
  parts.options = options;
  parts.threads = std::move(threads);
  parts.model = std::move(model);
  parts.draft_model = load_llama(weights, {.dtype = DataType::kF32}, *parts.threads);
  parts.cache_shape = shape;
  parts.draft_shape = llama_cache_shape(weights.config(), {.dtype = DataType::kF32});
  parts.tokenizer = std::make_unique<FakeTokenizer>();
  parts.options.model.context_length = weights.config().context_length;
  parts.options.kv_cache_bytes = int64_t{64} << 20;
  return std::make_unique<EngineImpl>(std::move(parts));
}

// Returns such an engine over a model that `load` makes. load: null for the native backend.
inline std::unique_ptr<EngineImpl> tiny_engine(const Weights& weights, const BackendLoader& load) {
  auto threads = std::make_unique<ThreadPool>(2);
  const ModelOptions f32{.dtype = DataType::kF32};
  auto model = load ? make_llama(weights, f32, *threads, load) : load_llama(weights, f32, *threads);
  return tiny_engine(weights, std::move(model), llama_cache_shape(weights.config(), f32), std::move(threads));
}

// Returns requests with one prompt, under each policy with each kind of draft, and one for two choices. All are greedy,
// so rounding changes an answer only if it moves the greatest logit.
inline std::vector<GenerationRequest> greedy_requests(const std::vector<nlohmann::json>& policies,
                                                      const std::vector<nlohmann::json>& drafts, int64_t max_tokens) {
  std::vector<GenerationRequest> requests;
  const auto add = [&](int64_t tokens) -> GenerationRequest& {
    requests.push_back(make_request(150, tokens));
    requests.back().sampling.temperature = 0;
    return requests.back();
  };
  for (const nlohmann::json& policy : policies) {
    for (const nlohmann::json& draft : drafts) {
      GenerationRequest& request = add(max_tokens);
      request.ignore_eos = true;
      request.kv_cache = policy;
      request.speculative = draft;
    }
  }
  add(20).n = 2;
  return requests;
}

// Returns the answers to requests that are submitted at the same time.
inline std::vector<std::vector<TokenId>> answers(EngineImpl* engine, const std::vector<GenerationRequest>& requests) {
  std::vector<std::vector<TokenId>> tokens;
  const auto streams = engine->submit_all(requests);
  for (size_t i = 0; i < streams.size(); ++i) {
    for (const ChoiceResult& choice : read_all(*streams[i], requests[i].n)) {
      EXPECT_EQ(choice.error, "");
      tokens.push_back(choice.tokens);
    }
  }
  EXPECT_GT(engine->stats().prefix_cache_hits, 0u);  // all requests have the same prompt
  return tokens;
}

}  // namespace smartkv
