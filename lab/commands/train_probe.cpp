#include <fstream>
#include <iostream>
#include <memory>

#include "cache/layered_cache.h"
#include "cache/policies/channel_packed/cut_store.h"
#include "cache/stores/staged_sequence.h"
#include "engine/model/llama.h"
#include "engine/model/policy_context.h"
#include "engine/system_resources.h"
#include "engine/weights/model_fingerprint.h"
#include "lab/commands/prompt_suite.h"
#include "lab/commands/setups.h"
#include "lab/evaluation/evaluation.h"
#include "server/commands/command.h"
#include "server/commands/enum_flag.h"
#include "server/commands/hub_models.h"
#include "server/commands/number_flag.h"
#include "server/commands/options.h"

namespace smartkv {
namespace {

struct TrainProbeArguments {
  std::string text, out, importance = "query_key";
  ModelOptions model;
  int64_t tokens = 4096;
};

std::vector<TokenId> tokens_of(const TrainProbeArguments& arguments, const Tokenizer& tokenizer) {
  std::vector<TokenId> tokens;
  if (!arguments.text.empty()) tokens = read_tokens(arguments.text, tokenizer);
  // Without a text, the prompts of the suite are repeated.
  while (arguments.text.empty() && static_cast<int64_t>(tokens.size()) < arguments.tokens) {
    for (const SuitePrompt& prompt : kPromptSuite) {
      const std::vector<TokenId> more = tokenizer.encode(prompt.text);
      tokens.insert(tokens.end(), more.begin(), more.end());
    }
  }
  if (static_cast<int64_t>(tokens.size()) < arguments.tokens) {
    throw ConfigError("--text: expected at least " + std::to_string(arguments.tokens) + " tokens, found " +
                      std::to_string(tokens.size()));
  }
  tokens.resize(static_cast<size_t>(arguments.tokens));
  return tokens;
}

int train_probe(const TrainProbeArguments& arguments) {
  ThreadPool threads(arguments.model.threads > 0 ? arguments.model.threads : available_cores());
  const std::filesystem::path path = find_model(arguments.model.path);
  const std::unique_ptr<Weights> weights = Weights::open(path);
  if (const int64_t context = weights->config().context_length; arguments.tokens > context) {
    throw ConfigError("--tokens: expected at most the model's context of " + std::to_string(context) + ", found " +
                      std::to_string(arguments.tokens));
  }
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(*weights, path);
  const std::vector<TokenId> tokens = tokens_of(arguments, *tokenizer);
  std::ofstream out(arguments.out, std::ios::binary);
  if (!out) throw ConfigError("--out: " + arguments.out + ": cannot be opened for writing");
  const std::unique_ptr<Model> model = load_llama(*weights, arguments.model, threads);
  const CacheShape shape = llama_cache_shape(model->config(), arguments.model);
  const PolicyContext context = policy_context(*model, shape, &threads, {});
  // These parameters keep the guard of channels from ever settling, so that the policy only collects statistics.
  const auto policy = make_policy(context, {{"policy", "channel_packed"},
                                            {"importance", arguments.importance},
                                            {"stable_updates", 1000},
                                            {"retention", 1.0},
                                            {"prompt_stride", 64}});
  const auto cache = policy->new_sequence(arguments.tokens);
  feed(*model, *cache, tokens, 0, nullptr);
  const auto* layered = dynamic_cast<const LayeredCache*>(cache.get());
  const SequenceCache& of_policy = layered == nullptr ? *cache : layered->full();
  const auto& store = dynamic_cast<const CutStore&>(dynamic_cast<const StagedSequence&>(of_policy).store(0));
  nlohmann::ordered_json json = {{"model", model->config().name},
                                 {"model_identity", model_identity(*weights)},
                                 {"importance", arguments.importance},
                                 {"tokens", arguments.tokens},
                                 {"layers", nlohmann::ordered_json::array()},
                                 {"values", nlohmann::ordered_json::array()}};
  for (int64_t layer = 0; layer < shape.n_layers; ++layer) {
    nlohmann::ordered_json keys = nlohmann::ordered_json::array(), values = keys;
    for (int64_t head = 0; head < shape.n_kv_heads; ++head) {
      keys.push_back(store.key_worth(layer, head));
      values.push_back(store.value_worth(layer, head));
    }
    json["layers"].push_back(keys);
    json["values"].push_back(values);
  }
  if (!(out << json.dump() << '\n').flush()) throw std::runtime_error(arguments.out + ": cannot be written");
  std::cout << arguments.out << ": the worth of " << shape.head_dim / 2 << " RoPE pairs of " << shape.n_kv_heads
            << " KV heads in " << shape.n_layers << " layers, over " << arguments.tokens << " tokens\n";
  return kOk;
}

constexpr const char* kTrainProbeExamples = R"(Writes one JSON object: "layers"[layer][KV head][pair] of keys and
"values"[layer][KV head][channel], the scores by which channel_packed chooses channels after the last token.
serve --worth NAME=FILE loads it for {"policy": "channel_packed", "worth": NAME}.
Examples:
  smartkv train-probe --model model.gguf --out worth.json
  smartkv train-probe --model model.gguf --text book.txt --tokens 8000 --importance magnitude --out worth.json)";

}  // namespace

std::function<int()> setup_train_probe(CLI::App& app) {
  auto arguments = std::make_shared<TrainProbeArguments>();
  app.add_option("--model", arguments->model.path, "GGUF file, Hugging Face folder or name (ORG/NAME)")->required();
  app.add_option("--out", arguments->out, "File for the importance, as JSON")->required();
  app.add_option("--text", arguments->text, "UTF-8 text file; default: the prompts of run-suite");
  add_number_flag(app, "--tokens", arguments->tokens, "Number of tokens to process", 256, 1 << 20);
  app.add_option("--importance", arguments->importance, "query_key is E[q^2] E[k^2]; magnitude uses the keys alone")
      ->check(CLI::IsMember({"query_key", "magnitude"}))
      ->capture_default_str();
  add_enum_flag(app, "--dtype", arguments->model.dtype, "Data type of activations and KV cache");
  add_enum_flag(app, "--weights", arguments->model.weights, "Storage of the weights");
  add_number_flag(app, "--threads", arguments->model.threads,
                  "CPU threads; 0 uses every core available to this process", 0, 64);
  app.footer(kTrainProbeExamples);
  return [arguments] { return train_probe(*arguments); };
}

}  // namespace smartkv
