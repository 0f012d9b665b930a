// smartkv plan: tells which presets and policies hold a number of sequences of some length in a given memory. It does
// not load the model.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>
#include <sstream>

#include "cache/policy.h"
#include "engine/gates/gate_set.h"
#include "engine/memory_plan.h"
#include "engine/model/llama_footprint.h"
#include "engine/model/policy_context.h"
#include "engine/weights/model_fingerprint.h"
#include "engine/weights/sharded_weights.h"
#include "server/commands/command.h"
#include "server/commands/enum_flag.h"
#include "server/commands/hub_models.h"
#include "server/commands/options.h"
#include "server/openai/memory.h"

namespace smartkv {

namespace {

using Json = nlohmann::ordered_json;

struct PlanArguments {
  std::string memory;
  ModelOptions model;  // only path, dtype and weights are used
  int64_t prefill_chunk = EngineOptions().prefill_chunk, context = 0, concurrency = 1;
  bool json = false;
};

struct Budget {
  int64_t memory = 0, weights = 0, working = 0;
  int64_t kv_cache() const { return memory - weights - working; }
};

int64_t parse_memory(const std::string& text) {
  try {
    return parse_bytes(text);
  } catch (const std::invalid_argument&) {
    throw ConfigError("--memory: expected a size such as 2GiB, found \"" + text + '"');
  }
}

// The plans for a number of devices. They are those of tensor-parallel rank 0, whose device holds the most.
struct Fit {
  Budget budget;
  std::vector<MemoryPlan> plans;
};

MemoryPlan plan_of(const std::string& name, const PolicyContext& context, const PlanQuestion& question,
                   const PlanMemory& memory, int64_t devices) {
  MemoryPlan plan;
  try {
    const std::unique_ptr<KvCachePolicy> policy = make_policy(context, name);
    const std::string across = devices == 1 ? "" : policy->across_heads();
    if (across.empty()) {
      plan = plan_memory(*policy, nullptr, question, memory);
    } else {
      plan.problem = across;
    }
  } catch (const CacheError& error) {
    plan.problem = error.what();
  }
  plan.kv_cache = name;
  return plan;
}

Fit fit(const Weights& all, int64_t devices, const PlanArguments& arguments) {
  ModelOptions options = arguments.model;
  if (devices > 1 || options.dtype == DataType::kF16) options.backend = Backend::kTorch;
  check_model_options(options);
  check_shards(all.config(), devices);
  const std::unique_ptr<Weights> part = devices > 1 ? shard_weights(all, {0, devices}) : nullptr;
  const Weights& weights = part == nullptr ? all : *part;
  const int64_t rows = std::max(arguments.prefill_chunk, arguments.concurrency) + kMostDraftRows;
  Fit fit;
  fit.budget = {parse_memory(arguments.memory), llama_weight_bytes(weights, options),
                llama_pass_bytes(weights.config(), options, rows)};
  const ModelConfig& config = all.config();
  options.context_length = arguments.context;  // a shorter context may need no window
  const CacheShape shape = llama_cache_shape(weights.config(), options);
  PolicyContext context{shape, PagePool::create(shape)};
  if (devices > 1) context.heads = std::make_shared<ModelHeads>(shard_sizes(config.n_kv_heads, devices), 0);
  if (shape.n_layers < config.n_layers) context.window = sliding_window(config);
  const GateSet gates({model_identity(all)}, config);
  context.load_gate = [&gates](const std::string& name) { return gates.find(name); };
  const PlanQuestion question{.prompt_tokens = arguments.context, .sequences = arguments.concurrency};
  const PlanMemory memory{fit.budget.kv_cache(), config.vocab_size * static_cast<int64_t>(sizeof(float))};
  for (const std::string& name : plannable_names({}))
    fit.plans.push_back(plan_of(name, context, question, memory, devices));
  return fit;
}

// Returns for each plan the smallest number of devices on which it fits, or 0 if there is none.
std::vector<int64_t> least_devices(const Weights& weights, const Fit& on_one, const PlanArguments& arguments) {
  std::vector<int64_t> least;
  for (const MemoryPlan& plan : on_one.plans) least.push_back(plan.problem.empty() ? 1 : 0);
  for (int64_t devices = 2; std::find(least.begin(), least.end(), 0) != least.end(); ++devices) {
    try {
      const Fit on_several = fit(weights, devices, arguments);
      for (size_t i = 0; i < least.size(); ++i) {
        if (least[i] == 0 && on_several.plans[i].problem.empty()) least[i] = devices;
      }
    } catch (const ModelError&) {  // the model cannot be sharded further, or not with these weights
      break;
    }
  }
  return least;
}

std::string mebibytes(int64_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return text.str();
}

void print_plan(const ModelConfig& config, const Fit& fit, const std::vector<int64_t>& devices,
                const PlanArguments& arguments) {
  const Budget& budget = fit.budget;
  std::cout << config.name << ": " << mebibytes(budget.weights) << " of weights, " << mebibytes(budget.working)
            << " of working memory; " << mebibytes(budget.kv_cache()) << " of " << mebibytes(budget.memory)
            << " are left for KV caches\n"
            << arguments.concurrency << " sequences of " << arguments.context
            << " tokens each, one of which is computing its prompt:\n\n"
            << std::left << std::setw(20) << "kv_cache" << std::setw(6) << "fits" << std::setw(9) << "devices"
            << std::right << std::setw(14) << "side by side" << std::setw(15) << "each" << std::setw(15) << "its prompt"
            << '\n';
  for (size_t i = 0; i < fit.plans.size(); ++i) {
    const MemoryPlan& plan = fit.plans[i];
    std::cout << std::left << std::setw(20) << plan.kv_cache.get<std::string>() << std::setw(6)
              << (plan.problem.empty() ? "yes" : "no") << std::setw(9)
              << (devices[i] == 0 ? "-" : std::to_string(devices[i]));
    if (plan.policy.empty()) {
      std::cout << plan.problem << '\n';
      continue;
    }
    std::cout << std::right << std::setw(14) << plan.sequences << std::setw(15) << mebibytes(plan.final_bytes)
              << std::setw(15) << mebibytes(plan.max_bytes) << '\n';
  }
  if (arguments.context > config.context_length) {
    std::cout << "\nThe model's own context has " << config.context_length
              << " tokens; longer contexts need --rope-scaling.\n";
  }
}

int plan(const PlanArguments& arguments) {
  const std::unique_ptr<Weights> weights = Weights::open(find_model(arguments.model.path));
  const ModelConfig& config = weights->config();
  const Fit on_one = fit(*weights, 1, arguments);
  const std::vector<int64_t> devices = least_devices(*weights, on_one, arguments);
  if (!arguments.json) {
    print_plan(config, on_one, devices, arguments);
    return kOk;
  }
  Json rows = Json::array();
  for (size_t i = 0; i < devices.size(); ++i) {
    rows.push_back(openai::plan_json(on_one.plans[i]));
    rows.back()["devices"] = devices[i] == 0 ? Json(nullptr) : Json(devices[i]);
  }
  const Budget& budget = on_one.budget;
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
  auto arguments = std::make_shared<PlanArguments>();
  PlanArguments& a = *arguments;
  app.add_option("--model", a.model.path, "GGUF file, Hugging Face folder or name (ORG/NAME), which is not loaded")
      ->required()
      ->type_name("FILE");
  app.add_option("--context", a.context, "Tokens of each sequence, prompt and output together")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_option("--concurrency", a.concurrency, "Sequences side by side [1]")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  app.add_option("--memory", a.memory, "Memory of each device, for weights, passes and KV caches, such as 2GiB")
      ->required()
      ->type_name("SIZE");
  add_enum_flag(app, "--dtype", a.model.dtype, "Data type of activations");
  add_enum_flag(app, "--weights", a.model.weights, "Storage of the weights");
  app.add_option("--prefill-chunk", a.prefill_chunk, "Token budget of one pass [512]")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_flag("--json", a.json, "Print one JSON object");
  app.footer(R"(Examples:
  smartkv plan --model model.gguf --context 8192 --concurrency 16 --memory 4GiB
  smartkv plan --model model.gguf --weights int4 --context 32768 --memory 1GiB --json

"devices" is the smallest number of devices with this memory on which the sequences fit, with --backend torch
--tensor-parallel N and 16- or 32-bit weights; - if there is none. --dtype f16 implies that backend on one device, too.
Bytes are upper bounds. A server with less memory still works: it preempts the youngest sequence and recomputes it
later.)");
  return [arguments] { return plan(*arguments); };
}

}  // namespace smartkv
