// Runs every policy of the registry on the torch backend: a prompt, then decoding.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/engine/model/policy_specs.h"
#include "tests/engine/torch/torch_served.h"

namespace smartkv {
namespace {

class TorchPolicies : public testing::TestWithParam<std::string> {};

TEST_P(TorchPolicies, DecodesAsTheNativeBackend) {
  const TinyWeights weights(quantizable_config());
  const std::vector<TokenId> tokens = some_tokens(440, weights.config().vocab_size, 3);
  Served native(weights, "f32"), torch_backend(weights, "f32", "auto", torch_loader());
  const nlohmann::json spec = compressing_spec(GetParam());
  const PolicyRun expected = run_policy(&native, spec, tokens, 340),
                  found = run_policy(&torch_backend, spec, tokens, 340);
  // Rounding moves some values of quantized pages to a neighbouring code.
  EXPECT_LT(relative_error(found.logits, expected.logits), GetParam() == "full" ? 1e-3 : 5e-3);
  EXPECT_EQ(found.stats.tokens_kept, expected.stats.tokens_kept);
  EXPECT_EQ(found.stats.bytes, expected.stats.bytes);
  if (GetParam() == "sparse") {  // keeps every token, and an index of them
    EXPECT_EQ(found.stats.tokens_kept, found.stats.tokens);
    EXPECT_GT(found.stats.bytes, found.stats.full_bytes);
  } else if (GetParam() != "full") {
    EXPECT_LT(found.stats.bytes, found.stats.full_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, TorchPolicies, testing::ValuesIn(policy_names()),
                         [](const auto& item) { return item.param; });

}  // namespace
}  // namespace smartkv
