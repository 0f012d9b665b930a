// smartkv train-draft: trains a small model that drafts for another one, in the training module.
#include <cstdio>
#include <memory>

#include "lab/commands/setups.h"
#include "lab/commands/training_command.h"
#include "server/commands/command.h"

namespace smartkv {

namespace {

struct TrainDraftArguments {
  std::string model, prompts, held_out, text, valid, data, out;
  std::vector<int64_t> layers;
  int64_t vocabulary = 8192, answers = 2, answer_tokens = 256, windows = 256, valid_windows = 16, context = 512;
  int64_t epochs = 6, batch = 2048, seed = 1, threads = 0;
  double temperature = 0.7, learning_rate = 1.2e-3;
  bool json = false;
};

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

int train_draft(const TrainDraftArguments& arguments) {
  const nlohmann::json options = {{"model", arguments.model},
                                  {"prompts", arguments.prompts},
                                  {"held_out", arguments.held_out},
                                  {"text", arguments.text},
                                  {"valid", arguments.valid},
                                  {"data", arguments.data},
                                  {"out", arguments.out},
                                  {"layers", arguments.layers},
                                  {"vocabulary", arguments.vocabulary},
                                  {"answers", arguments.answers},
                                  {"temperature", arguments.temperature},
                                  {"answer_tokens", arguments.answer_tokens},
                                  {"windows", arguments.windows},
                                  {"valid_windows", arguments.valid_windows},
                                  {"context", arguments.context},
                                  {"epochs", arguments.epochs},
                                  {"batch", arguments.batch},
                                  {"learning_rate", arguments.learning_rate},
                                  {"seed", arguments.seed},
                                  {"threads", arguments.threads}};
  return run_training_command("train-draft", options, arguments.json, show_draft_progress, print_draft_report);
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
  auto arguments = std::make_shared<TrainDraftArguments>();
  TrainDraftArguments& a = *arguments;
  app.add_option("--model", a.model, "GGUF file or Hugging Face folder of the model to draft for")->required();
  app.add_option("--prompts", a.prompts, "File with prompts for the model to answer, one per line");
  app.add_option("--held-out", a.held_out, "File with prompts to measure on; default: the last tenth of --prompts");
  app.add_option("--text", a.text, "Text to train on, in addition to the answers");
  app.add_option("--valid", a.valid, "Text to measure on; default: the last windows of --text");
  app.add_option("--data", a.data, "File for the model's answers: read if it exists, else written");
  app.add_option("--out", a.out, "The safetensors file to write")->required();
  app.add_option("--layers", a.layers,
                 "Layers of the model to start from, such as 0,1,29; default: the first two and the last")
      ->delimiter(',');
  const auto whole = [&](const char* flag, int64_t& value, const char* help, int64_t least = 1) {
    app.add_option(flag, value, help)->check(CLI::Range(least, int64_t{1} << 20))->capture_default_str();
  };
  whole("--vocabulary", a.vocabulary, "Tokens that the draft can propose");
  whole("--answers", a.answers, "Answers to each prompt: one greedy, the others sampled");
  whole("--answer-tokens", a.answer_tokens, "Limit of tokens of an answer");
  app.add_option("--temperature", a.temperature, "Temperature of sampled answers")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  whole("--windows", a.windows, "Windows of the text to train on, evenly spread");
  whole("--valid-windows", a.valid_windows, "Windows to measure on");
  whole("--context", a.context, "Tokens of a window", 16);
  whole("--epochs", a.epochs, "Passes over the data");
  whole("--batch", a.batch, "Tokens of a training step");
  app.add_option("--learning-rate", a.learning_rate, "Peak learning rate of AdamW")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  whole("--seed", a.seed, "Seed of sampled answers and of the training order", 0);
  app.add_option("--threads", a.threads, "CPU threads; 0 uses every core available to this process")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  app.add_flag("--json", a.json, "Print JSON");
  app.footer(kTrainDraftExplanation);
  return [arguments] { return train_draft(*arguments); };
}

}  // namespace smartkv
