// Every policy of the registry over the torch backend: a prompt and decoding.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/cache/random_gate.h"
#include "tests/engine/torch/torch_served.h"

namespace smartkv {
namespace {

// Small settings, so that a few hundred tokens compress.
nlohmann::json spec_of(std::string_view name) {
  if (name == "full") return name;
  if (name == "streaming" || name == "random" || name == "snapkv" || name == "gated_eviction") {
    return {{"policy", name}, {"tokens", 256}};
  }
  if (name == "block_summary") return {{"policy", name}, {"tokens", 320}, {"window", 64}, {"salient", 4}};
  if (name == "mixed_precision") return {{"policy", name}, {"bits", 6}, {"horizon", 1024}};
  if (name == "channel_packed") return {{"policy", name}, {"key_channels", 48}, {"update_every", 64}, {"check_every", 128}};
  return {{"policy", name}};
}

class TorchPolicies : public testing::TestWithParam<std::string> {
 protected:
  struct Run {
    std::vector<float> logits;  // of every token
    CacheStats stats;
  };
  // A prompt in passes that end at boundaries, then token by token.
  static Run run(Served* served, const std::vector<TokenId>& tokens, int64_t prompt) {
    served->context.threads = &served->pool;
    served->context.rope = [served](int64_t position, float* cos, float* sin) { served->model->rope_angles(position, cos, sin); };
    served->context.load_gate = [served](const std::string&) { return random_gate(served->context.shape); };
    const auto policy = make_policy(served->context, spec_of(GetParam()));
    const auto cache = policy->new_sequence(prompt);
    const int64_t vocab = served->model->config().vocab_size, end = static_cast<int64_t>(tokens.size());
    Run result;
    result.logits.resize(static_cast<size_t>(end * vocab));
    while (cache->tokens() < end) {
      const int64_t at = cache->tokens();
      const int64_t n = at < prompt ? std::min({int64_t{100}, prompt - at, cache->next_boundary() - at}) : 1;
      const SequenceInput input{std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(n)), cache.get(), n};
      served->model->forward({&input, 1}, result.logits.data() + at * vocab);
      cache->commit(cache->tokens());
      EXPECT_LE(cache->stats().bytes, policy->max_bytes(prompt, cache->tokens())) << cache->tokens();
    }
    result.stats = cache->stats();
    return result;
  }
};

TEST_P(TorchPolicies, DecodesAsTheNativeBackend) {
  ModelConfig config = tiny_config();
  config.head_dim = 64;  // the quantised pages'
  const TinyWeights weights(config);
  const std::vector<TokenId> tokens = some_tokens(440, weights.config().vocab_size, 3);
  Served native(weights, "f32"), torch_backend(weights, "f32", "auto", torch_loader());
  const Run expected = run(&native, tokens, 340), found = run(&torch_backend, tokens, 340);
  // Rounding moves some codes of quantised pages to the next one.
  EXPECT_LT(relative_error(found.logits, expected.logits), GetParam() == "full" ? 1e-3 : 5e-3);
  EXPECT_EQ(found.stats.tokens_kept, expected.stats.tokens_kept);
  EXPECT_EQ(found.stats.bytes, expected.stats.bytes);
  if (GetParam() != "full") {
    EXPECT_LT(found.stats.bytes, found.stats.full_bytes);
  }
}

std::vector<std::string> policies() {
  std::vector<std::string> names;
  for (const PolicyRow& row : policy_registry()) names.emplace_back(row.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Registry, TorchPolicies, testing::ValuesIn(policies()), [](const auto& item) { return item.param; });

}  // namespace
}  // namespace smartkv
