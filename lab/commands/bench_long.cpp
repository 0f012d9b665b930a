#include <iostream>
#include <memory>

#include "cache/sequence_cache.h"
#include "lab/commands/bench_parts.h"
#include "lab/evaluation/long_context.h"
#include "lab/evaluation/policy_list.h"
#include "server/commands/command.h"
#include "server/commands/enum_flag.h"
#include "server/commands/options.h"

namespace smartkv {
namespace {

struct Asked {
  LongContextOptions options;
  std::string policies = "full,block_summary";
};

int run_long(const SharedBenchArguments& arguments, Asked asked) {
  LongContextOptions& options = asked.options;
  if (arguments.model.path.empty()) throw ConfigError("--model is required");
  if (arguments.text.empty()) throw ConfigError("--long: needs --text");
  options.model = arguments.model;
  options.text = arguments.text;
  try {
    for (const PolicySpec& spec : parse_policy_list(asked.policies, FullReference::kWhereListed)) {
      options.policies.push_back(spec.for_context(options.tokens));
    }
    const bool as_they_come = !arguments.json;
    const LongContextReport report = measure_long_context(options, [&](const LongContextReport& so_far) {
      if (as_they_come) std::cout << so_far.to_table(so_far.rows.size() - 1) << std::flush;
    });
    if (arguments.json) std::cout << report.to_json().dump(2) << '\n';
    return kOk;
  } catch (const CacheError& error) {  // a wrong policy on the command line
    throw ConfigError(std::string("--long-policies: ") + error.what());
  }
}

}  // namespace

BenchPart setup_long_bench(CLI::App& app) {
  auto asked = std::make_shared<Asked>();
  BenchPart bench;
  bench.asked = app.add_option("--long", asked->options.tokens,
                               "Run this number of tokens of --text through each policy, and report bytes, memory, "
                               "rates and perplexity on the way")
                    ->check(CLI::Range(256, 1 << 24));
  app.add_option(
         "--long-policies", asked->policies,
         "With --long: policies, as for eval --kv-cache. \"full\" runs only if it is listed, and first; the others are "
         "compared with it")
      ->capture_default_str()
      ->needs(bench.asked);
  app.add_option("--marks", asked->options.marks, "With --long: lengths at which to measure, in addition to the end")
      ->delimiter(',')
      ->check(CLI::Range(256, 1 << 24))
      ->capture_default_str()
      ->needs(bench.asked);
  add_enum_flag(app, "--rope-scaling", asked->options.rope_scaling,
                "With --long beyond the model's context: RoPE scaling", {kStretches.begin(), kStretches.end()})
      ->needs(bench.asked);
  bench.run = [asked](const SharedBenchArguments& arguments) { return run_long(arguments, *asked); };
  return bench;
}

}  // namespace smartkv
