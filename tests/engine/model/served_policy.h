// Runs a policy over a served model, so that backends can be compared.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cache/random_gate.h"
#include "tests/cache/random_sensitivity.h"
#include "tests/engine/model/served_llama.h"

namespace smartkv {

struct PolicyRun {
  std::vector<float> logits;  // [tokens, vocab]
  CacheStats stats;
};

// Computes a prompt in passes that end at boundaries, then decodes the other tokens one by one.
inline PolicyRun run_policy(Served* served, const nlohmann::json& spec, const std::vector<TokenId>& tokens,
                            int64_t prompt) {
  served->context.threads = &served->pool;
  served->context.rope = [served](int64_t position, float* cos, float* sin) {
    served->model->rope_angles(position, cos, sin);
  };
  if (!served->context.load_gate) {
    served->context.load_gate = [served](const std::string&) { return random_gate(served->context.shape); };
  }
  if (!served->context.load_sensitivity) {
    served->context.load_sensitivity = [served] { return random_sensitivity(served->context.shape); };
  }
  const auto policy = served->model->make_policy(served->context, spec);
  const auto cache = policy->new_sequence(prompt);
  const int64_t vocab = served->model->config().vocab_size, end = static_cast<int64_t>(tokens.size());
  PolicyRun result;
  result.logits.resize(static_cast<size_t>(end * vocab));
  while (cache->tokens() < end) {
    const int64_t at = cache->tokens();
    const int64_t n = at < prompt ? std::min({int64_t{100}, prompt - at, cache->next_boundary() - at}) : 1;
    const SequenceInput input{std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(n)), cache.get(),
                              n};
    served->model->forward({&input, 1}, result.logits.data() + at * vocab);
    cache->commit(cache->tokens());
    EXPECT_LE(cache->stats().bytes, policy->max_bytes(prompt, cache->tokens())) << cache->tokens();
  }
  result.stats = cache->stats();
  return result;
}

// Returns the norm of the difference, relative to that of `expected`.
inline double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  double error = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    size += std::pow(expected[i], 2);
  }
  return std::sqrt(error / size);
}

// Returns tiny_config() with heads that are large enough for quantized pages.
inline ModelConfig quantizable_config() {
  ModelConfig config = tiny_config();
  config.head_dim = 64;
  return config;
}

}  // namespace smartkv
