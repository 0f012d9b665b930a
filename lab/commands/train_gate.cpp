// smartkv train-gate: trains the learned gates of the gated_eviction policy, in the training module.
#include <cstdio>
#include <memory>

#include "lab/commands/setups.h"
#include "lab/commands/training_command.h"
#include "server/commands/command.h"

namespace smartkv {

namespace {

struct TrainGateArguments {
  std::string model, text, valid, out, lifespans_of;
  int64_t windows = 24, valid_windows = 2, context = 4096, facts = 12, epochs = 6, batch = 1024, seed = 1, threads = 0;
  int64_t repeat_windows = 10, repeat_context = 1024, repeat_facts = 0;
  double learning_rate = 2e-3, rest = 0.3, ridge = 1e-3;
  bool json = false;
};

void show_gate_progress(const nlohmann::json& event) {
  const auto done = event.at("done").get<long>(), of = event.at("of").get<long>();
  if (event.at("event") == "observe") {
    std::fprintf(stderr, "\robserving windows  %ld/%ld ", done, of);
  } else {
    std::fprintf(stderr, "\rfitting layers  %ld/%ld  loss %.3f  ", done, of, event.at("loss").get<double>());
  }
}

void print_layer(const std::string& name, const nlohmann::ordered_json& quality) {
  const auto value = [&](const char* key) { return quality.at(key).get<double>(); };
  std::printf("%-6s %8.3f %8.3f %12.3f %10.4f %10.4f %10.4f\n", name.c_str(), value("loss"), value("recall"),
              value("specificity"), value("lost_attention"), value("lost_attention_key_norm"),
              value("lost_attention_streaming"));
}

void print_lifespans(const nlohmann::ordered_json& report) {
  std::printf("%-6s %8s %8s %12s %32s\n%-6s %8s %8s %12s %10s %10s %10s\n", "", "", "", "",
              "attention lost at a quarter", "layer", "loss", "recall", "specificity", "gates", "key norm",
              "streaming");
  int layer = 0;
  for (const nlohmann::ordered_json& quality : report.at("layers")) print_layer(std::to_string(layer++), quality);
  print_layer("mean", report.at("mean"));
  std::printf("%ld samples a layer\n", report.at("samples_per_layer").get<long>());
}

void print_gate_report(const nlohmann::ordered_json& report) {
  if (report.contains("layers")) print_lifespans(report);
  if (report.contains("importance_explained")) {
    std::printf("importance: %.3f of the held-out variance explained\n",
                report.at("importance_explained").get<double>());
  }
  std::printf("%.0f s; wrote %s\n", report.at("seconds").get<double>(), report.at("file").get<std::string>().c_str());
}

int train_gate(const TrainGateArguments& arguments) {
  const nlohmann::json options = {{"model", arguments.model},
                                  {"text", arguments.text},
                                  {"valid", arguments.valid},
                                  {"out", arguments.out},
                                  {"windows", arguments.windows},
                                  {"valid_windows", arguments.valid_windows},
                                  {"context", arguments.context},
                                  {"epochs", arguments.epochs},
                                  {"batch", arguments.batch},
                                  {"learning_rate", arguments.learning_rate},
                                  {"rest", arguments.rest},
                                  {"seed", arguments.seed},
                                  {"facts", arguments.facts},
                                  {"threads", arguments.threads},
                                  {"lifespans_of", arguments.lifespans_of},
                                  {"repeat_windows", arguments.repeat_windows},
                                  {"repeat_context", arguments.repeat_context},
                                  {"repeat_facts", arguments.repeat_facts},
                                  {"ridge", arguments.ridge}};
  return run_training_command("train-gate", options, arguments.json, show_gate_progress, print_gate_report);
}

constexpr const char* kTrainGateExplanation =
    R"(The gates' first head predicts from a key before RoPE how long its token stays useful: log4 of the distance after
which the token's remaining attention is at most --rest, on average. The second head predicts from keys and values how
strongly a token is attended to when the model repeats a text.
  loss         loss of the first head, relative to that of a constant score
  recall       with a quarter of the tokens kept: fraction of the tokens useful for longer than a quarter of the window
               that are kept
  specificity  with a quarter of the tokens kept: fraction of the other tokens that are evicted
Example:
  smartkv train-gate --model model.gguf --text books.txt --valid other.txt --out gate.safetensors)";

}  // namespace

std::function<int()> setup_train_gate(CLI::App& app) {
  auto arguments = std::make_shared<TrainGateArguments>();
  TrainGateArguments& a = *arguments;
  app.add_option("--model", a.model, "GGUF file or Hugging Face folder")->required();
  app.add_option("--text", a.text, "Text to train on")->required();
  app.add_option("--valid", a.valid, "Text to measure on; default: the last windows of --text");
  app.add_option("--out", a.out, "The safetensors file to write")->required();
  app.add_option("--windows", a.windows, "Windows of the text to train on, evenly spread")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--valid-windows", a.valid_windows, "Windows to measure on")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--context", a.context, "Tokens of a window")->check(CLI::Range(1024, 1 << 20))->capture_default_str();
  app.add_option("--facts", a.facts,
                 "Facts to hide in each training window: stated in its first half, asked for at its end")
      ->check(CLI::Range(0, 1 << 10))
      ->capture_default_str();
  app.add_option("--epochs", a.epochs, "Passes over the samples")->check(CLI::Range(1, 10000))->capture_default_str();
  app.add_option("--batch", a.batch, "Keys of a training step")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--learning-rate", a.learning_rate, "Peak learning rate of AdamW")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rest", a.rest,
                 "A token is no longer useful once its remaining attention, summed over queries, is at most this")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--lifespans-of", a.lifespans_of,
                 "File of gates to copy the first head from; only the second head is trained")
      ->check(CLI::ExistingFile);
  app.add_option("--repeat-windows", a.repeat_windows,
                 "Windows that the model repeats, to train the second head; 0 leaves it out")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--repeat-context", a.repeat_context, "Tokens of a window to repeat")
      ->check(CLI::Range(128, 1 << 16))
      ->capture_default_str();
  app.add_option("--repeat-facts", a.repeat_facts, "Facts to hide in each window to repeat, like --facts")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--ridge", a.ridge,
                 "Ridge penalty of the second head's regression, relative to each feature's mean square")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", a.seed, "Seed of initial weights and training order")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--threads", a.threads, "CPU threads; 0 uses every core available to this process")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  app.add_flag("--json", a.json, "Print JSON");
  app.footer(kTrainGateExplanation);
  return [arguments] { return train_gate(*arguments); };
}

}  // namespace smartkv
