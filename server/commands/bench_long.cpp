#include "server/commands/bench_long.h"

#include <cstdio>
#include <iostream>
#include <memory>

#include "cache/sequence_cache.h"
#include "engine/evaluation/long_context.h"
#include "engine/evaluation/policy_list.h"
#include "server/commands/command.h"
#include "server/commands/options.h"

namespace smartkv {
namespace {

struct Asked {
  LongContextOptions options;
  std::string policies = R"(full,block_summary)";
};

int run_long(const LongBenchArguments& arguments, Asked asked) {
  LongContextOptions& options = asked.options;
  if (arguments.model.empty()) throw ConfigError("--model is required");
  if (arguments.text.empty()) throw ConfigError("--long: needs --text");
  options.model = arguments.model;
  options.text = arguments.text;
  options.dtype = arguments.dtype;
  options.weights = arguments.weights;
  options.threads = arguments.threads;
  for (const std::string& gate : arguments.gates) add_gate(gate, &options.gates);
  try {
    for (const PolicySpec& spec : parse_policy_list(asked.policies)) {
      // The list always begins with the reference; here it runs only where it is asked for.
      if (spec.label == "full" && asked.policies.find("full") == std::string::npos) continue;
      options.policies.push_back(spec.for_context(options.tokens));
    }
    const LongContextReport report = measure_long_context(options, [](const LongContextRow& row) {
      std::fprintf(stderr, "%s at %ld: %.1f MB, %.1f tokens/s\n", row.policy.dump().c_str(), static_cast<long>(row.tokens),
                   static_cast<double>(row.kv_bytes) / 1e6, row.decode);
    });
    std::cout << (arguments.json ? report.to_json().dump(2) + "\n" : report.to_table());
    return kOk;
  } catch (const CacheError& error) {  // a policy, the user's words
    throw ConfigError(std::string("--long-policies: ") + error.what());
  }
}

}  // namespace

LongBench setup_long_bench(CLI::App& app) {
  auto asked = std::make_shared<Asked>();
  LongBench bench;
  bench.asked = app.add_option("--long", asked->options.tokens, "Send so many tokens of --text through each policy: bytes, memory, rates, perplexity along the way")
                    ->check(CLI::Range(256, 1 << 24));
  app.add_option("--long-policies", asked->policies, "With --long: as eval's --kv-cache")->capture_default_str()->needs(bench.asked);
  app.add_option("--marks", asked->options.marks, "With --long: where to measure")->delimiter(',')->capture_default_str()->needs(bench.asked);
  app.add_option("--rope-scaling", asked->options.rope_scaling, "With --long beyond the model's context: none, linear, dynamic or yarn")
      ->check(CLI::IsMember({"none", "linear", "dynamic", "yarn"}))->capture_default_str()->needs(bench.asked);
  bench.run = [asked](const LongBenchArguments& arguments) { return run_long(arguments, *asked); };
  return bench;
}

}  // namespace smartkv
