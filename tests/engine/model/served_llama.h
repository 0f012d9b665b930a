// A model with a full cache, as tests run it.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cache/policy.h"
#include "engine/model/llama.h"
#include "engine/model/policy_context.h"
#include "tests/engine/model/tiny_llama.h"

namespace smartkv {

// Returns n random tokens in [0, vocab).
inline std::vector<TokenId> some_tokens(int64_t n, int64_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<TokenId>(random() % static_cast<uint64_t>(vocab)));
  return tokens;
}

struct Served {
  ThreadPool pool{2};
  std::unique_ptr<Model> model;
  PolicyContext context;
  std::unique_ptr<KvCachePolicy> policy;

  // dtype, storage: names of a DataType and a WeightFormat. load: null for the native backend. kv_backend: null for the
  // CPU's.
  Served(const Weights& weights, const std::string& dtype, const std::string& storage = "auto",
         const BackendLoader& load = nullptr, std::shared_ptr<kernels::KvBackend> kv_backend = nullptr) {
    ModelOptions options;
    options.dtype = from_name<DataType>(dtype).value();
    options.weights = from_name<WeightFormat>(storage).value();
    model = load ? make_llama(weights, options, pool, load, std::move(kv_backend)) : load_llama(weights, options, pool);
    serve(llama_cache_shape(weights.config(), options));
  }
  // Serves a given model. shape: the shape of its caches.
  Served(std::unique_ptr<Model> served, const CacheShape& shape) : model(std::move(served)) { serve(shape); }

  // Feeds the tokens in chunks and commits each. Returns the logits of all tokens: [tokens, vocab].
  std::vector<float> run(const std::vector<TokenId>& tokens, int64_t chunk) {
    const auto cache = policy->new_sequence(0);
    const int64_t vocab = model->config().vocab_size, n = static_cast<int64_t>(tokens.size());
    std::vector<float> logits(static_cast<size_t>(n * vocab));
    for (int64_t start = 0, size = 0; start < n; start += size) {
      size = std::min({chunk, n - start, cache->next_boundary() - start});
      const SequenceInput input{std::span(tokens).subspan(static_cast<size_t>(start), static_cast<size_t>(size)),
                                cache.get(), size};
      model->forward({&input, 1}, logits.data() + start * vocab);
      cache->commit(cache->tokens());
    }
    return logits;
  }

 private:
  void serve(const CacheShape& shape) {
    context.shape = shape;
    context.pool = PagePool::create(shape, model->kv_backend());
    context.heads = model->heads();
    context.window = sliding_window(model->config());
    policy = model->make_policy(context, nullptr);
  }
};

}  // namespace smartkv
