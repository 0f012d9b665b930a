#include "cache/presets.h"

namespace smartkv {

const std::vector<PolicyPreset>& policy_presets() {
  static const std::vector<PolicyPreset> presets = {
      {"quality", "8.5 bits a value: half of the memory (+0.01 % perplexity on held-out prose)",
       {{"policy", "mixed_precision"}, {"bits", 8.5}}},
      {"balanced", "4.5 bits a value: less than a third of the memory (+0.20 %)", {{"policy", "mixed_precision"}, {"bits", 4.5}}},
      {"compact", "3.5 bits a value (+0.56 %)", {{"policy", "mixed_precision"}, {"bits", 3.5}}},
      {"endless", "the memory of 2,048 tokens at any length: a window, what a learned gate values, summaries of the rest",
       {{"policy", "block_summary"}, {"tokens", 2048}, {"salient", 4}}},
      {"bounded", "never more than 2,048 tokens, those that a learned gate values (+0.01 % on 4,096)",
       {{"policy", "gated_eviction"}, {"tokens", 2048}}},
      {"tiny", "never more than 1,152 tokens, those that a learned gate values, most of them in 4 bits (+0.72 % on 4,096)",
       {{"policy", "gated_eviction"}, {"tokens", 1152}, {"kept", "k4v4"}}},
  };
  return presets;
}

}  // namespace smartkv
