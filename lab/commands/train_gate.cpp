// smartkv train-gate: trains the learned gates of the gated_eviction policy, in the training module.
#include <cstdio>
#include <memory>

#include "lab/commands/setups.h"
#include "lab/commands/training_command.h"

namespace smartkv {

namespace {

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
  auto command = std::make_shared<TrainingCommand>(app);
  TrainingCommand& c = *command;
  c.text("--model", "GGUF file, Hugging Face folder or name (ORG/NAME)")->required();
  c.text("--text", "Text to train on")->required();
  c.text("--valid", "Text to measure on; default: the last windows of --text");
  c.text("--out", "The safetensors file to write")->required();
  c.whole("--windows", 24, "Windows of the text to train on, evenly spread");
  c.whole("--valid-windows", 2, "Windows to measure on");
  c.whole("--context", 4096, "Tokens of a window", 1024);
  c.whole("--facts", 12, "Facts to hide in each training window: stated in its first half, asked for at its end", 0,
          1 << 10);
  c.whole("--epochs", 6, "Passes over the samples", 1, 10000);
  c.whole("--batch", 1024, "Keys of a training step");
  c.positive("--learning-rate", 2e-3, "Peak learning rate of AdamW");
  c.positive("--rest", 0.3,
             "A token is no longer useful once its remaining attention, summed over queries, is at most this");
  c.text("--lifespans-of", "File of gates to copy the first head from; only the second head is trained")
      ->check(CLI::ExistingFile);
  c.whole("--repeat-windows", 10, "Windows that the model repeats, to train the second head; 0 leaves it out", 0);
  c.whole("--repeat-context", 1024, "Tokens of a window to repeat", 128, 1 << 16);
  c.whole("--repeat-facts", 0, "Facts to hide in each window to repeat, like --facts", 0, 1024);
  c.positive("--ridge", 1e-3, "Ridge penalty of the second head's regression, relative to each feature's mean square");
  c.add<int64_t>("--seed", 1, "Seed of initial weights and training order")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  c.add_threads_and_json();
  app.footer(kTrainGateExplanation);
  return [command] { return command->run("train-gate", show_gate_progress, print_gate_report); };
}

}  // namespace smartkv
