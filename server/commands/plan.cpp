// smartkv plan: which presets and policies hold so many sequences of some length in so much memory, without loading the model.
#include <iomanip>
#include <iostream>
#include <memory>
#include <sstream>

#include "cache/policy.h"
#include "engine/gates/gate_set.h"
#include "engine/memory_plan.h"
#include "engine/model/llama_footprint.h"
#include "engine/model/policy_context.h"
#include "server/commands/command.h"
#include "server/commands/options.h"
#include "server/openai/memory.h"

namespace smartkv {

namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  std::string model, memory;
  EngineOptions engine;  // dtype, weights, prefill_chunk
  int64_t context = 0, concurrency = 1;
  bool json = false;
};

struct Budget {
  int64_t memory = 0, weights = 0, working = 0;
  int64_t kv_cache() const { return memory - weights - working; }
};

Budget budget_of(const Weights& weights, const LlamaOptions& llama, const Arguments& arguments) {
  Budget budget;
  try {
    budget.memory = parse_bytes(arguments.memory);
  } catch (const std::invalid_argument&) {
    throw ConfigError("--memory: expected a size such as 2GiB, found \"" + arguments.memory + '"');
  }
  const int64_t rows = std::max(arguments.engine.prefill_chunk, arguments.concurrency) + kMostDraftRows;
  budget.weights = llama_weight_bytes(weights, llama);
  budget.working = llama_pass_bytes(weights.config(), llama, rows);
  return budget;
}

std::vector<MemoryPlan> make_plans(const ModelConfig& config, const LlamaOptions& llama, const Budget& budget, const Arguments& arguments) {
  const CacheShape shape = llama_cache_shape(config, llama);
  PolicyContext context{shape, PagePool::create(shape)};
  if (arguments.context > config.sliding_window) context.window = sliding_window(config);
  const GateSet gates({}, config);
  context.load_gate = [&gates](const std::string& name) { return gates.find(name); };
  const PlanQuestion question{.prompt_tokens = arguments.context, .sequences = arguments.concurrency};
  const PlanMemory memory{budget.kv_cache(), config.vocab_size * static_cast<int64_t>(sizeof(float))};
  std::vector<MemoryPlan> plans;
  for (const std::string& name : plannable_names({})) {
    MemoryPlan plan;
    try {
      plan = plan_memory(*make_policy(context, name), nullptr, question, memory);
    } catch (const CacheError& error) {
      plan.problem = error.what();
    }
    plan.kv_cache = name;
    plans.push_back(std::move(plan));
  }
  return plans;
}

std::string mebibytes(int64_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return text.str();
}

void print_table(const ModelConfig& config, const Budget& budget, const std::vector<MemoryPlan>& plans, const Arguments& arguments) {
  std::cout << config.name << ": " << mebibytes(budget.weights) << " of weights, " << mebibytes(budget.working)
            << " of working memory; " << mebibytes(budget.kv_cache()) << " of " << mebibytes(budget.memory)
            << " are left for KV caches\n"
            << arguments.concurrency << " sequences of " << arguments.context << " tokens, one of them computing its prompt:\n\n"
            << std::left << std::setw(20) << "kv_cache" << std::setw(6) << "fits" << std::right << std::setw(14) << "side by side"
            << std::setw(15) << "each" << std::setw(15) << "its prompt" << '\n';
  for (const MemoryPlan& plan : plans) {
    std::cout << std::left << std::setw(20) << plan.kv_cache.get<std::string>() << std::setw(6) << (plan.problem.empty() ? "yes" : "no");
    if (plan.policy.empty()) {
      std::cout << plan.problem << '\n';
      continue;
    }
    std::cout << std::right << std::setw(14) << plan.sequences << std::setw(15) << mebibytes(plan.final_bytes) << std::setw(15)
              << mebibytes(plan.max_bytes) << '\n';
  }
  if (arguments.context > config.context_length) {
    std::cout << "\nThe model's own context has " << config.context_length << " tokens: it needs RoPE scaling for more.\n";
  }
}

int plan(const Arguments& arguments) {
  const std::unique_ptr<Weights> weights = Weights::open(arguments.model);
  const ModelConfig& config = weights->config();
  const LlamaOptions llama{.dtype = arguments.engine.dtype, .weights = arguments.engine.weights};
  const Budget budget = budget_of(*weights, llama, arguments);
  const std::vector<MemoryPlan> plans = make_plans(config, llama, budget, arguments);
  if (!arguments.json) {
    print_table(config, budget, plans, arguments);
    return kOk;
  }
  Json rows = Json::array();
  for (const MemoryPlan& one : plans) rows.push_back(openai::plan_json(one));
  const Json result = {{"model", config.name},
                       {"context", arguments.context},
                       {"concurrency", arguments.concurrency},
                       {"memory_bytes", budget.memory},
                       {"weight_bytes", budget.weights},
                       {"working_bytes", budget.working},
                       {"kv_cache_bytes", budget.kv_cache()},
                       {"model_context_length", config.context_length},
                       {"plans", std::move(rows)}};
  std::cout << result.dump(2) << '\n';
  return kOk;
}

}  // namespace

std::function<int()> setup_plan(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  Arguments& a = *arguments;
  app.add_option("--model", a.model, "GGUF file or Hugging Face folder; it is not loaded")->required()->type_name("FILE");
  app.add_option("--context", a.context, "Tokens of each sequence, prompt and output")->required()->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_option("--concurrency", a.concurrency, "Sequences side by side [1]")->check(CLI::Range(int64_t{1}, int64_t{4096}));
  app.add_option("--memory", a.memory, "Memory for weights, passes and KV caches: 2GiB")->required()->type_name("SIZE");
  app.add_option("--dtype", a.engine.dtype, "Type of activations [auto]")->check(CLI::IsMember({"auto", "bf16", "f32"}));
  app.add_option("--weights", a.engine.weights, "Storage of the weights [auto]")->check(CLI::IsMember({"auto", "file", "bf16", "f32", "int8", "int4"}));
  app.add_option("--prefill-chunk", a.engine.prefill_chunk, "Tokens of one step [512]")->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_flag("--json", a.json, "Print one JSON object");
  app.footer(R"(Examples:
  smartkv plan --model model.gguf --context 8192 --concurrency 16 --memory 4GiB
  smartkv plan --model model.gguf --weights int4 --context 32768 --memory 1GiB --json

Bytes are upper bounds. A server with less goes on all the same: it drops the youngest sequence and computes it anew.)");
  return [arguments] { return plan(*arguments); };
}

}  // namespace smartkv
