#include "cache/presets.h"

namespace smartkv {

const std::vector<PolicyPreset>& policy_presets() {
  static const std::vector<PolicyPreset> presets = {
      {"quality",
       "every token, in 8.5 bits per value: about half of the memory; accuracy: docs/results/evaluation.md",
       {{"policy", "calibrated"}, {"bits", 8.5}},
       {{"policy", "mixed_precision"}, {"bits", 8.5}}},
      {"balanced",
       "every token, in 4.5 bits per value: less than a third of the memory; accuracy: docs/results/evaluation.md",
       {{"policy", "calibrated"}, {"bits", 4.5}},
       {{"policy", "mixed_precision"}, {"bits", 4.5}}},
      {"compact",
       "every token, in 3.5 bits per value: less than a quarter of the memory; accuracy: docs/results/evaluation.md",
       {{"policy", "calibrated"}, {"bits", 3.5}},
       {{"policy", "mixed_precision"}, {"bits", 3.5}}},
      {"endless",
       "bounded memory of 2,048 tokens: a window, tokens selected by a gate or a calibration, and summaries of "
       "the rest",
       {{"policy", "block_summary"}, {"tokens", 2048}, {"salient", 4}}},
      {"bounded",
       "bounded memory: 2,048 tokens per KV head on average, selected by a gate or a calibration; accuracy: "
       "docs/results/evaluation.md",
       {{"policy", "gated_eviction"}, {"tokens", 2048}}},
      {"tiny",
       "every token, in 2 bits per value: an eighth of the memory; accuracy: docs/results/evaluation.md",
       {{"policy", "calibrated"}, {"bits", 2}},
       {{"policy", "gated_eviction"}, {"tokens", 1152}, {"kept", "k4v4"}}},
  };
  return presets;
}

}  // namespace smartkv
