// smartkv train-draft: trains a small model that drafts for another one, in the training module.
#include <cstdio>
#include <memory>

#include "lab/commands/setups.h"
#include "lab/commands/training_command.h"

namespace smartkv {

namespace {

void show_draft_progress(const nlohmann::json& event) {
  const auto done = event.at("done").get<long>(), of = event.at("of").get<long>();
  const auto kind = event.at("event").get<std::string>();
  if (kind == "fit") {
    std::fprintf(stderr, "\rfitting  step %ld/%ld  loss %.3f  ", done, of, event.at("loss").get<double>());
  } else {
    std::fprintf(stderr, "\r%s  %ld/%ld  ", kind == "answer" ? "answering prompts" : "reading windows", done, of);
  }
}

void print_draft_quality(const char* name, const nlohmann::ordered_json& quality) {
  const auto value = [&](const char* key) { return quality.at(key).get<double>(); };
  if (value("positions") == 0) return;
  std::printf("%-24s %10.4f %16.3f %10.4f %10.4f %10.0f\n", name, value("agreement"), value("tokens_per_pass"),
              value("overlap"), value("coverage"), value("positions"));
}

void print_draft_report(const nlohmann::ordered_json& report) {
  std::printf("%-24s %10s %16s %10s %10s %10s\n", "held out", "agreement", "tokens per pass", "overlap", "coverage",
              "positions");
  print_draft_quality("answers, untrained", report.at("held_out_answers").at("before"));
  print_draft_quality("answers", report.at("held_out_answers").at("after"));
  print_draft_quality("text, untrained", report.at("held_out_text").at("before"));
  print_draft_quality("text", report.at("held_out_text").at("after"));
  std::printf("%ld tokens of %ld answers and %ld windows, %.0f s; wrote %s, %.1f MB\n",
              report.at("trained_on").get<long>(), report.at("answers").get<long>(), report.at("windows").get<long>(),
              report.at("seconds").get<double>(), report.at("file").get<std::string>().c_str(),
              report.at("bytes").get<double>() / 1e6);
}

constexpr const char* kTrainDraftExplanation =
    R"(The model answers the prompts and reads the text. A few of its layers, between its own embedding and the head's
rows of the most frequent tokens, are then trained on its distributions.
  agreement        fraction of positions at which draft and model find the same token most likely
  tokens per pass  tokens of greedy decoding per pass, with 4 drafted tokens
  overlap          lower bound of the acceptance rate at temperature 1
  coverage         the model's probability of the tokens that the draft can propose
Examples:
  smartkv train-draft --model model.gguf --prompts prompts.txt --text books.txt --out draft.safetensors
  smartkv serve --model model.gguf --draft-model draft.safetensors)";

}  // namespace

std::function<int()> setup_train_draft(CLI::App& app) {
  auto command = std::make_shared<TrainingCommand>(app);
  TrainingCommand& c = *command;
  c.text("--model", "GGUF file, Hugging Face folder or name (ORG/NAME) of the model to draft for")->required();
  c.text("--prompts", "File with prompts for the model to answer, one per line");
  c.text("--held-out", "File with prompts to measure on; default: the last tenth of --prompts");
  c.text("--text", "Text to train on, in addition to the answers");
  c.text("--valid", "Text to measure on; default: the last windows of --text");
  c.text("--data", "File for the model's answers: read if it exists, else written");
  c.text("--out", "The safetensors file to write")->required();
  app.add_option_function<std::vector<int64_t>>(
         "--layers", [&c](const std::vector<int64_t>& layers) { c.option("--layers") = layers; },
         "Layers of the model to start from, such as 0,1,29; default: the first two and the last")
      ->delimiter(',');
  c.whole("--vocabulary", 8192, "Tokens that the draft can propose");
  c.whole("--answers", 2, "Answers to each prompt: one greedy, the others sampled");
  c.whole("--answer-tokens", 256, "Limit of tokens of an answer");
  c.positive("--temperature", 0.7, "Temperature of sampled answers");
  c.whole("--windows", 256, "Windows of the text to train on, evenly spread");
  c.whole("--valid-windows", 16, "Windows to measure on");
  c.whole("--context", 512, "Tokens of a window", 16);
  c.whole("--epochs", 6, "Passes over the data");
  c.whole("--batch", 2048, "Tokens of a training step");
  c.positive("--learning-rate", 1.2e-3, "Peak learning rate of AdamW");
  c.whole("--seed", 1, "Seed of sampled answers and of the training order", 0);
  c.add_threads_and_json();
  app.footer(kTrainDraftExplanation);
  return [command] { return command->run("train-draft", show_draft_progress, print_draft_report); };
}

}  // namespace smartkv
