#include "lab/commands/lab_commands.h"

#include "lab/commands/setups.h"

namespace smartkv {

std::vector<Command> lab_commands() {
  return {
      {"bench", "Measure prefill and decode rates, weight formats and the machine's limits", setup_bench, kLabGroup},
      {"eval", "Measure the quality of KV-cache policies against the full cache", setup_eval, kLabGroup},
      {"run-suite", "Run fixed prompts with the full cache and with a dynamic policy, and compare the answers",
       setup_run_suite, kLabGroup},
      {"train-probe", "Measure which channels of keys and values matter, for channel_packed", setup_train_probe,
       kLabGroup},
      {"train-gate", "Train the gates that decide which tokens the gated_eviction policy keeps", setup_train_gate,
       kLabGroup},
      {"train-draft", "Train a small model that drafts for another one", setup_train_draft, kLabGroup},
  };
}

}  // namespace smartkv
