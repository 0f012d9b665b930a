#include "lab/training/train_draft.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <sstream>

#include "engine/system_resources.h"
#include "engine/text/chat_template.h"
#include "engine/text/end_tokens.h"
#include "engine/weights/draft_weights.h"
#include "lab/training/training_inputs.h"

namespace smartkv {
namespace {

constexpr int64_t kAnswersAtOnce = 32;

struct DraftOptions {
  std::filesystem::path model, prompts, held_out, text, valid, data, out;
  int64_t answers = 2, answer_tokens = 256, windows = 256, valid_windows = 16, context = 512;
  double temperature = 0.7;
  int threads = 0;
  DraftTrainingOptions training;
};

// Tells glibc to keep freed memory and reuse it. Each step allocates the same large tensors, and touching fresh pages
// of the system takes longer than computing them.
void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 64 << 20);
}

DraftOptions parse_draft_options(const nlohmann::json& json) {
  DraftOptions options;
  options.model = json.at("model").get<std::string>();
  options.out = json.at("out").get<std::string>();
  options.prompts = json.value("prompts", "");
  options.held_out = json.value("held_out", "");
  options.text = json.value("text", "");
  options.valid = json.value("valid", "");
  options.data = json.value("data", "");
  if (options.out.extension() != ".safetensors") {
    throw std::invalid_argument("out: expected a name that ends in .safetensors, found " + options.out.string());
  }
  if (options.prompts.empty() && options.text.empty()) {
    throw std::invalid_argument("prompts, text: expected at least one of them, found neither");
  }
  options.answers = whole(json, "answers", options.answers, 1);
  options.answer_tokens = whole(json, "answer_tokens", options.answer_tokens, 1);
  options.windows = whole(json, "windows", options.windows, 1);
  options.valid_windows = whole(json, "valid_windows", options.valid_windows, 1);
  options.context = whole(json, "context", options.context, 16);
  options.temperature = positive(json, "temperature", options.temperature);
  const auto threads = static_cast<int>(whole(json, "threads", 0, 0));
  options.threads = threads > 0 ? threads : available_cores();
  DraftTrainingOptions& training = options.training;
  training.layers = json.value("layers", std::vector<int64_t>());
  training.vocabulary = whole(json, "vocabulary", training.vocabulary, 1);
  training.fit.epochs = whole(json, "epochs", training.fit.epochs, 1);
  training.fit.batch = whole(json, "batch", training.fit.batch, 1);
  training.fit.learning_rate = positive(json, "learning_rate", training.fit.learning_rate);
  training.fit.seed = static_cast<uint64_t>(whole(json, "seed", static_cast<int64_t>(training.fit.seed), 0));
  return options;
}

void check_layers(int64_t n_layers, std::vector<int64_t>* layers) {
  if (layers->empty()) *layers = n_layers > 3 ? std::vector<int64_t>{0, 1, n_layers - 1} : std::vector<int64_t>{0};
  for (const int64_t layer : *layers) {
    if (layer >= 0 && layer < n_layers) continue;
    throw std::invalid_argument("layers: expected layers of the model, 0 to " + std::to_string(n_layers - 1) +
                                ", found " + std::to_string(layer));
  }
}

// Returns the command line that repeats the training, with file names instead of paths.
std::string draft_command(const DraftOptions& options) {
  std::ostringstream line;
  const auto file = [&](const char* flag, const std::filesystem::path& path) {
    if (!path.empty()) line << ' ' << flag << ' ' << path.filename().string();
  };
  line << "smartkv train-draft";
  file("--model", options.model);
  file("--prompts", options.prompts);
  file("--held-out", options.held_out);
  file("--text", options.text);
  file("--valid", options.valid);
  if (!options.prompts.empty()) {
    line << " --answers " << options.answers << " --temperature " << options.temperature << " --answer-tokens "
         << options.answer_tokens;
  }
  if (!options.text.empty()) {
    line << " --windows " << options.windows << " --valid-windows " << options.valid_windows << " --context "
         << options.context;
  }
  const DraftTrainingOptions& training = options.training;
  line << " --layers";
  for (size_t i = 0; i < training.layers.size(); ++i) line << (i == 0 ? ' ' : ',') << training.layers[i];
  line << " --vocabulary " << training.vocabulary << " --epochs " << training.fit.epochs << " --batch "
       << training.fit.batch << " --learning-rate " << training.fit.learning_rate << " --seed " << training.fit.seed;
  file("--out", options.out);
  return line.str();
}

// Reads a file with one prompt per line. Each line is rendered as the first message of a conversation.
std::vector<AnswerPrompt> read_prompts(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                       const ChatTemplateFiles& templates) {
  if (!templates.sources.contains("default")) {
    throw ModelError("prompts: the model has no chat template to answer with");
  }
  const ChatTemplate chat_template(templates);
  const auto content = [&](std::optional<TokenId> token) { return token ? tokenizer.token_content(*token) : ""; };
  std::istringstream text(read_text(path));
  std::vector<AnswerPrompt> prompts;
  for (std::string line; std::getline(text, line);) {
    if (line.empty()) continue;
    const nlohmann::ordered_json message = {{"role", "user"}, {"content", line}};
    const std::string rendered = chat_template.render({{"messages", nlohmann::ordered_json::array({message})},
                                                       {"add_generation_prompt", true},
                                                       {"bos_token", content(tokenizer.bos())},
                                                       {"eos_token", content(tokenizer.eos())}});
    prompts.push_back({tokenizer.encode(rendered, {.add_special = false}), 0});
  }
  if (prompts.empty()) throw ModelError(path.string() + ": expected one prompt per line, found none");
  return prompts;
}

// Removes the last tenth of `all`, at least one element, and returns it.
template <typename T>
std::vector<T> split_off(std::vector<T>* all, const char* option) {
  if (all->size() < 2) {
    throw std::invalid_argument(std::string(option) + ": expected at least 2, of which one is held out, found " +
                                std::to_string(all->size()));
  }
  const auto held = static_cast<int64_t>(std::max<size_t>(1, all->size() / 10));
  std::vector<T> last(all->end() - held, all->end());
  all->resize(all->size() - static_cast<size_t>(held));
  return last;
}

// Collects the data that a draft learns from.
class Collector {
 public:
  Collector(const Weights& weights, const DraftOptions& options, const TrainingEvent& event)
      : options_(options),
        event_(event),
        tokenizer_(load_tokenizer(weights, options.model)),
        templates_(load_chat_templates(weights, options.model)),
        teacher_(weights, end_tokens(*tokenizer_, weights.config(), weights.config().vocab_size), options.threads) {}

  DraftData collect() {
    DraftData data;
    if (!options_.prompts.empty()) {
      std::vector<AnswerPrompt> prompts = read_prompts(options_.prompts, *tokenizer_, templates_);
      const std::vector<AnswerPrompt> held_out = options_.held_out.empty()
                                                     ? split_off(&prompts, "prompts")
                                                     : read_prompts(options_.held_out, *tokenizer_, templates_);
      std::vector<AnswerPrompt> all;
      for (const AnswerPrompt& prompt : prompts) {
        for (int64_t i = 0; i < options_.answers; ++i) {
          all.push_back({prompt.tokens, i == 0 ? 0 : options_.temperature});
        }
      }
      data.held_answers = answer(held_out);
      data.answers = answer(all);
    }
    if (!options_.text.empty()) {
      const bool split = options_.valid.empty();
      TokenWindows windows = read_windows(options_.text, *tokenizer_, options_.context,
                                          options_.windows + (split ? options_.valid_windows : 0));
      TokenWindows held_out(windows.begin() + options_.windows, windows.end());
      windows.resize(static_cast<size_t>(options_.windows));
      if (!split) held_out = read_windows(options_.valid, *tokenizer_, options_.context, options_.valid_windows);
      data.held_windows = read(held_out);
      data.windows = read(windows);
    }
    return data;
  }

 private:
  std::vector<TaughtSequence> answer(const std::vector<AnswerPrompt>& prompts) {
    const auto progress = [&](int64_t done) { event_({{"event", "answer"}, {"done", done}, {"of", prompts.size()}}); };
    return teacher_.answer(prompts, options_.answer_tokens, kAnswersAtOnce, options_.training.fit.seed, progress);
  }
  std::vector<TaughtSequence> read(const TokenWindows& windows) {
    std::vector<TaughtSequence> sequences;
    for (const std::vector<int64_t>& window : windows) {
      sequences.push_back(teacher_.read(std::vector<TokenId>(window.begin(), window.end())));
      event_({{"event", "read"}, {"done", sequences.size()}, {"of", windows.size()}});
    }
    return sequences;
  }

  const DraftOptions& options_;
  const TrainingEvent& event_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ChatTemplateFiles templates_;
  Teacher teacher_;
};

int64_t positions(const std::vector<TaughtSequence>& set) {
  int64_t n = 0;
  for (const TaughtSequence& sequence : set) n += sequence.n_taught();
  return n;
}

nlohmann::ordered_json draft_json(const DraftQuality& quality) {
  return {{"agreement", quality.agreement},
          {"tokens_per_pass", quality.tokens_per_pass},
          {"overlap", quality.overlap},
          {"coverage", quality.coverage},
          {"positions", quality.positions}};
}

}  // namespace

DraftReport train_draft(const Weights& target, const DraftData& data, const DraftTrainingOptions& options,
                        const std::filesystem::path& file, const std::map<std::string, std::string>& notes,
                        const TrainingEvent& event) {
  const int64_t vocab_size = target.config().vocab_size;
  DraftNetwork network(target, options.layers,
                       frequent_tokens(data.answers, data.windows, vocab_size, options.vocabulary), options.dtype);
  const auto measure = [&](const std::vector<TaughtSequence>& set) {
    return measure_draft(network, set, options.fit.batch);
  };
  DraftReport report;
  report.trained_on = positions(data.answers) + positions(data.windows);
  report.answers_before = measure(data.held_answers);
  report.windows_before = measure(data.held_windows);
  std::vector<TaughtSequence> all = data.answers;
  all.insert(all.end(), data.windows.begin(), data.windows.end());
  fit_draft(&network, all, options.fit, [&](int64_t done, int64_t of, double loss) {
    event({{"event", "fit"}, {"done", done}, {"of", of}, {"loss", loss}});
  });
  report.answers = measure(data.held_answers);
  report.windows = measure(data.held_windows);
  std::map<std::string, std::string> metadata = notes;
  metadata["quality_answers"] = draft_json(report.answers).dump();
  metadata["quality_text"] = draft_json(report.windows).dump();
  write_draft_weights(file, target.config(), static_cast<int64_t>(options.layers.size()), network.output_tokens(),
                      network.tensors(), metadata);
  return report;
}

nlohmann::ordered_json train_draft(const nlohmann::json& json, const TrainingEvent& event) {
  DraftOptions options = parse_draft_options(json);
  const auto started = std::chrono::steady_clock::now();
  torch::set_num_threads(options.threads);
  keep_freed_memory();
  const std::unique_ptr<Weights> weights = Weights::open(options.model);
  check_layers(weights->config().n_layers, &options.training.layers);
  DraftData data;
  if (!options.data.empty() && std::filesystem::exists(options.data)) {
    data = load_draft_data(options.data);
  } else {
    data = Collector(*weights, options, event).collect();
    if (!options.data.empty()) save_draft_data(options.data, data);
  }
  const DraftReport report =
      train_draft(*weights, data, options.training, options.out, {{"command", draft_command(options)}}, event);
  return {{"model", weights->config().name},
          {"command", draft_command(options)},
          {"answers", data.answers.size()},
          {"windows", data.windows.size()},
          {"trained_on", report.trained_on},
          {"held_out_answers", {{"before", draft_json(report.answers_before)}, {"after", draft_json(report.answers)}}},
          {"held_out_text", {{"before", draft_json(report.windows_before)}, {"after", draft_json(report.windows)}}},
          {"file", options.out.string()},
          {"bytes", std::filesystem::file_size(options.out)},
          {"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count()}};
}

}  // namespace smartkv
