#include "lab/training/train_gate.h"

#include <chrono>
#include <cstdio>

#include "engine/gates/gate_file.h"
#include "engine/system_resources.h"
#include "engine/weights/model_fingerprint.h"
#include "lab/training/hidden_facts.h"
#include "lab/training/importance.h"

namespace smartkv {
namespace {

// First seed of the facts in repeated windows. They differ from the facts in the windows for lifespans.
constexpr uint64_t kRepeatSeeds = 1 << 16;
constexpr int64_t kSampledEvery = 64;  // attention is compared for every 64th held-out query

struct GateOptions {
  std::filesystem::path model, text, valid, out;
  std::filesystem::path lifespans_of;  // gates whose first heads are taken over; empty to train them
  int64_t windows = 24, valid_windows = 2, context = 4096, facts = 12, threads = 0;
  int64_t repeat_windows = 10, repeat_context = 1024, repeat_facts = 0;
  double ridge = 1e-3;
  GateTrainingOptions training;
};

GateOptions parse_gate_options(const nlohmann::json& json) {
  GateOptions options;
  options.model = json.at("model").get<std::string>();
  options.text = json.at("text").get<std::string>();
  options.out = json.at("out").get<std::string>();
  options.valid = json.value("valid", "");
  options.windows = whole(json, "windows", options.windows, 1);
  options.valid_windows = whole(json, "valid_windows", options.valid_windows, 1);
  options.context = whole(json, "context", options.context, 1024);
  options.facts = whole(json, "facts", options.facts, 0);
  options.threads = whole(json, "threads", options.threads, 0);
  options.lifespans_of = json.value("lifespans_of", "");
  options.repeat_windows = whole(json, "repeat_windows", options.repeat_windows, 0);
  options.repeat_context = whole(json, "repeat_context", options.repeat_context, 128);
  options.repeat_facts = whole(json, "repeat_facts", options.repeat_facts, 0);
  options.ridge = positive(json, "ridge", options.ridge);
  options.training.lifespans.rest = positive(json, "rest", options.training.lifespans.rest);
  options.training.lifespans.window = options.training.keep.window;
  options.training.fit.epochs = whole(json, "epochs", options.training.fit.epochs, 1);
  options.training.fit.batch = whole(json, "batch", options.training.fit.batch, 1);
  options.training.fit.learning_rate = positive(json, "learning_rate", options.training.fit.learning_rate);
  options.training.fit.seed =
      static_cast<uint64_t>(whole(json, "seed", static_cast<int64_t>(options.training.fit.seed), 0));
  return options;
}

// Returns the command line that repeats the training, with file names instead of paths.
std::string gate_command(const GateOptions& options) {
  std::string line =
      "smartkv train-gate --model " + options.model.filename().string() + " --text " + options.text.filename().string();
  if (!options.valid.empty()) line += " --valid " + options.valid.filename().string();
  char numbers[256];
  std::snprintf(
      numbers, sizeof numbers,
      " --windows %lld --valid-windows %lld --context %lld --facts %lld --epochs %lld --batch %lld --learning-rate %g "
      "--rest %g --seed %llu",
      static_cast<long long>(options.windows), static_cast<long long>(options.valid_windows),
      static_cast<long long>(options.context), static_cast<long long>(options.facts),
      static_cast<long long>(options.training.fit.epochs), static_cast<long long>(options.training.fit.batch),
      options.training.fit.learning_rate, options.training.lifespans.rest,
      static_cast<unsigned long long>(options.training.fit.seed));
  line += numbers;
  if (!options.lifespans_of.empty()) line += " --lifespans-of " + options.lifespans_of.filename().string();
  std::snprintf(numbers, sizeof numbers, " --repeat-windows %lld --repeat-context %lld --repeat-facts %lld --ridge %g",
                static_cast<long long>(options.repeat_windows), static_cast<long long>(options.repeat_context),
                static_cast<long long>(options.repeat_facts), options.ridge);
  return line + numbers + " --out " + options.out.filename().string();
}

struct Samples {
  std::vector<torch::Tensor> keys, lifespans;  // one tensor per window
};

nlohmann::ordered_json gate_json(const GateQuality& quality) {
  return {{"loss", quality.loss},
          {"recall", quality.recall},
          {"specificity", quality.specificity},
          {"lost_attention", quality.lost},
          {"lost_attention_key_norm", quality.lost_by_norm},
          {"lost_attention_streaming", quality.lost_by_recency}};
}

}  // namespace

TrainedGate train_gate(const TorchLlama& model, const TokenWindows& training, const TokenWindows& held_out,
                       const GateTrainingOptions& options, const TrainingEvent& event) {
  const auto n_layers = static_cast<size_t>(model.config().n_layers);
  const size_t n_windows = training.size() + held_out.size();
  size_t observed = 0;
  const auto observe = [&](const std::vector<int64_t>& window, int64_t sampled_every) {
    LifespanOptions lifespans = options.lifespans;
    lifespans.sampled_every = sampled_every;
    std::vector<LayerLifespans> layers = observe_lifespans(model, window, lifespans);
    event({{"event", "observe"}, {"done", ++observed}, {"of", n_windows}});
    return layers;
  };
  std::vector<Samples> samples(n_layers);
  for (const std::vector<int64_t>& window : training) {
    const std::vector<LayerLifespans> layers = observe(window, 0);
    const auto half = static_cast<int64_t>(window.size()) / 2;
    for (size_t layer = 0; layer < n_layers; ++layer) {
      const auto known = [&](const torch::Tensor& t) {
        return t.slice(1, options.keep.sinks, half).flatten(0, 1).contiguous();
      };
      samples[layer].keys.push_back(known(layers[layer].keys));
      samples[layer].lifespans.push_back(known(layers[layer].lifespans));
    }
  }
  std::vector<std::vector<LayerLifespans>> tests;
  for (const std::vector<int64_t>& window : held_out) tests.push_back(observe(window, kSampledEvery));

  TrainedGate gate;
  for (size_t layer = 0; layer < n_layers; ++layer) {
    const torch::Tensor keys = torch::cat(samples[layer].keys), lifespans = torch::cat(samples[layer].lifespans);
    samples[layer] = {};
    gate.samples_per_layer = keys.size(0);
    gate.layers.push_back(fit_gate(keys, lifespans, options.fit, [&](double loss) {
      event({{"event", "fit"}, {"done", layer}, {"of", n_layers}, {"loss", loss}});
    }));
    GateQuality quality;
    for (const auto& test : tests)
      quality += measure_gate(gate.layers.back(), test[layer], kSampledEvery, options.keep);
    gate.quality.push_back(quality / static_cast<double>(tests.size()));
    event({{"event", "fit"}, {"done", layer + 1}, {"of", n_layers}, {"loss", gate.quality.back().loss}});
  }
  return gate;
}

namespace {

// Hides `facts` facts in each window. Window i uses seed first_seed + i; equal seeds give equal facts.
void hide_in_all(const Tokenizer& tokenizer, const GateOptions& options, int64_t facts, uint64_t first_seed,
                 TokenWindows* windows) {
  for (size_t i = 0; facts > 0 && i < windows->size(); ++i) {
    (*windows)[i] = hide_facts(tokenizer, (*windows)[i], facts, options.training.fit.seed << 32 | (first_seed + i));
  }
}

TrainedGate train_lifespans(const GateOptions& options, const TorchLlama& model, const Tokenizer& tokenizer,
                            const TrainingEvent& event) {
  TokenWindows training, held_out;
  if (options.valid.empty()) {
    training = read_windows(options.text, tokenizer, options.context, options.windows + options.valid_windows);
    held_out.assign(training.end() - options.valid_windows, training.end());
    training.resize(static_cast<size_t>(options.windows));
  } else {
    training = read_windows(options.text, tokenizer, options.context, options.windows);
    held_out = read_windows(options.valid, tokenizer, options.context, options.valid_windows);
  }
  hide_in_all(tokenizer, options, options.facts, 0, &training);
  return train_gate(model, training, held_out, options.training, event);
}

// Trains the second head of each layer. Returns the share of the held-out labels' variance that the heads explain.
double train_importance(const GateOptions& options, const TorchLlama& model, const Tokenizer& tokenizer,
                        std::vector<GateLayer>* layers, const TrainingEvent& event) {
  const bool same_text = options.valid.empty();
  TokenWindows windows =
      read_windows(options.text, tokenizer, options.repeat_context, options.repeat_windows + (same_text ? 1 : 0));
  const std::vector<int64_t> held_out =
      same_text ? windows.back() : read_windows(options.valid, tokenizer, options.repeat_context, 1)[0];
  if (same_text) windows.pop_back();
  hide_in_all(tokenizer, options, options.repeat_facts, kRepeatSeeds, &windows);
  std::vector<int64_t> request;
  for (const TokenId token : tokenizer.encode("\n\nRepeat the text above:\n\n", {false, false}))
    request.push_back(token);
  ImportanceFit fit(model.config());
  size_t done = 0;
  for (const std::vector<int64_t>& window : windows) {
    fit.observe(model, window, request);
    event({{"event", "observe"}, {"done", ++done}, {"of", windows.size()}});
  }
  const std::vector<std::vector<float>> maps = fit.fit(options.ridge);
  for (size_t layer = 0; layer < layers->size(); ++layer) (*layers)[layer].importance = maps[layer];
  return fit.explained(model, held_out, request, maps);
}

}  // namespace

nlohmann::ordered_json train_gate(const nlohmann::json& json, const TrainingEvent& event) {
  const GateOptions options = parse_gate_options(json);
  const auto started = std::chrono::steady_clock::now();
  torch::set_num_threads(static_cast<int>(options.threads > 0 ? options.threads : available_cores()));
  const std::unique_ptr<Weights> weights = Weights::open(options.model);
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(*weights, options.model);
  const std::string identity = model_identity(*weights);
  const torch::Dtype dtype = cpu_product_dtype();
  const std::string dtype_name = dtype == torch::kFloat32 ? "f32" : "bf16";
  const TorchLlama model(*weights, dtype);
  nlohmann::ordered_json report = {
      {"model", model.config().name}, {"command", gate_command(options)}, {"dtype", dtype_name}};
  const std::filesystem::path& held_out_text = options.valid.empty() ? options.text : options.valid;
  std::map<std::string, std::string> notes = {{"text", options.text.filename().string()},
                                              {"held_out", held_out_text.filename().string()},
                                              {"command", gate_command(options)},
                                              {"dtype", dtype_name}};
  std::vector<GateLayer> layers;
  if (options.lifespans_of.empty()) {
    const TrainedGate gate = train_lifespans(options, model, *tokenizer, event);
    layers = gate.layers;
    report["samples_per_layer"] = gate.samples_per_layer;
    report["layers"] = nlohmann::ordered_json::array();
    GateQuality mean;
    for (const GateQuality& quality : gate.quality) {
      mean += quality / static_cast<double>(gate.quality.size());
      report["layers"].push_back(gate_json(quality));
    }
    report["mean"] = gate_json(mean);
    notes["quality"] = gate_json(mean).dump();
  } else {
    layers = read_gate_layers(options.lifespans_of, model.config(), identity);
    notes.merge(gate_notes(options.lifespans_of, "lifespans_"));
  }
  if (options.repeat_windows > 0) {
    report["importance_explained"] = train_importance(options, model, *tokenizer, &layers, event);
    notes["importance_explained"] = std::to_string(report["importance_explained"].get<double>());
  }
  write_gate(options.out, model.config(), identity, layers, notes);
  report["file"] = options.out.string();
  report["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return report;
}

}  // namespace smartkv
