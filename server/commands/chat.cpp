#include <unistd.h>

#include <iomanip>
#include <iostream>
#include <memory>

#include "server/commands/command.h"
#include "server/commands/common.h"
#include "server/commands/line_editor.h"
#include "server/commands/sampling_flags.h"
#include "server/commands/terminal_text.h"
#include "server/openai/response.h"

namespace smartkv {

namespace {

using openai::Json;

constexpr const char* kHelp = R"(  /help           show this text
  /clear          forget the conversation
  /system TEXT    set the system message and restart the conversation; without TEXT, remove it
  /stats          show speed and memory of the last answer
  /quit           quit (or press Ctrl-D)
Ctrl-C stops the current answer. At the prompt it drops the typed text.
A question may be pasted, with its line breaks.
)";

struct ChatArguments {
  std::unique_ptr<OptionFlags> options;
  std::unique_ptr<SamplingFlags> sampling;
  std::string system;
};

class ChatSession {
 public:
  ChatSession(Engine& engine, const openai::ServedModel& model, const ChatArguments& arguments, Signals& signals)
      : engine_(engine), model_(model), sampling_(arguments.sampling->body()), signals_(signals) {
    reset(arguments.system);
  }

  int run() {
    if (terminal_) std::cout << "Chatting with " << model_.names.front() << ". /help lists the commands.\n";
    std::string line;
    for (;;) {
      const LineEditor::Input input = read_line(&line);
      if (input == LineEditor::Input::kEnd) break;
      if (input == LineEditor::Input::kInterrupt) std::cout << "Type /quit or press Ctrl-D to quit.\n";
      if (input == LineEditor::Input::kInterrupt || line.empty()) continue;
      if (line == "/quit") break;
      if (line.starts_with('/')) {
        run_command(line);
      } else {
        answer(line);
      }
    }
    return failed_ ? kRuntimeError : kOk;
  }

 private:
  void reset(const std::string& system) {
    system_ = system;
    messages_ = Json::array();
    if (!system.empty()) messages_.push_back({{"role", "system"}, {"content", system}});
  }

  // Reads a line. Drops a Ctrl-C that was meant for the last answer. If lines come from a pipe, Ctrl-C ends the
  // program.
  LineEditor::Input read_line(std::string* line) {
    signals_.clear();
    if (terminal_) return editor_.read(line);
    ::pthread_sigmask(SIG_UNBLOCK, &signals_.set(), nullptr);
    const LineEditor::Input input = editor_.read(line);
    ::pthread_sigmask(SIG_BLOCK, &signals_.set(), nullptr);
    return input;
  }

  void run_command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    if (name == "/help") {
      std::cout << kHelp;
    } else if (name == "/clear") {
      reset(system_);
    } else if (name == "/system") {
      reset(space == line.npos ? "" : line.substr(space + 1));
    } else if (name == "/stats") {
      show_stats();
    } else {
      std::cout << "Unknown command " << name << "; /help lists them.\n";
    }
  }

  void answer(const std::string& question) {
    messages_.push_back({{"role", "user"}, {"content", question}});
    try {
      messages_.push_back(stream_answer());
    } catch (const openai::ApiError& error) {
      // The conversation continues without the question, which may have been too long for the context.
      messages_.erase(messages_.size() - 1);
      std::cout << std::endl;
      std::cerr << "error: " << error.what() << std::endl;
      if (error.code == "context_length_exceeded") offer_clear();
      failed_ = !terminal_;
    }
  }

  void offer_clear() const {
    if (messages_.size() > (system_.empty() ? 0u : 1u)) {
      std::cerr << "The conversation fills the model's context. Type /clear to start a new one." << std::endl;
    }
  }

  // Prints the answer as it comes, its thinking first. Returns its message.
  Json stream_answer() {
    Json body = sampling_;
    body["messages"] = messages_;
    const openai::ApiRequest request = parse_chat(openai::dump(body), model_);
    openai::GenerationRun run(engine_, request);
    openai::AnswerParser parser(request);
    std::string text, reasoning;
    TerminalText clean;
    GenerationEvent event;
    FinishReason finish = FinishReason::kNone;
    for (;;) {
      const auto status = run.next(&event);
      if (status == openai::GenerationRun::Status::kEnd) break;
      if (signals_.poll()) {
        std::cout << " [stopped]";
        break;
      }
      if (status != openai::GenerationRun::Status::kEvent) continue;
      openai::throw_if_failed(event);
      for (const openai::AnswerPiece& piece : parser.take(event)) {
        const bool ends_thinking = !reasoning.empty() && text.empty() && !piece.text.empty();
        const std::string more = (ends_thinking ? "\n\n" : "") + piece.reasoning + piece.text;
        reasoning += piece.reasoning;
        text += piece.text;
        std::cout << (writes_to_terminal() ? clean.clean(more) : more) << std::flush;
      }
      if (event.finish != FinishReason::kNone) finish = event.finish;
    }
    std::cout << std::endl;
    last_ = run.usage();
    const bool full = last_->prompt_tokens + last_->completion_tokens >= engine_.context_length();
    if (finish == FinishReason::kLength && full) {
      offer_clear();
    } else if (finish == FinishReason::kLength && terminal_) {
      std::cerr << "[the answer reached --max-tokens " << sampling_["max_tokens"] << "]" << std::endl;
    }
    Json message = {{"role", "assistant"}, {"content", text}};
    if (!reasoning.empty()) message["reasoning_content"] = reasoning;
    return message;
  }

  void show_stats() const {
    if (!last_) {
      std::cout << "No answer yet.\n";
      return;
    }
    const RequestTimings& timings = last_->timings;
    const KvCacheUsage& cache = last_->kv_cache;
    const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / 0x1p20; };
    std::cout << std::fixed << std::setprecision(1) << last_->prompt_tokens << " prompt tokens ("
              << last_->cached_tokens << " cached) in " << timings.prefill_ms << " ms, " << last_->completion_tokens
              << " tokens in " << timings.decode_ms << " ms; KV cache " << cache.policy << ": " << cache.tokens_kept
              << " of " << cache.tokens << " tokens, " << mib(cache.bytes) << " of " << mib(cache.full_bytes)
              << " MiB\n";
  }

  Engine& engine_;
  const openai::ServedModel& model_;
  Json sampling_;
  Signals& signals_;
  std::string system_;
  Json messages_;
  std::optional<RequestUsage> last_;
  bool terminal_ = ::isatty(STDIN_FILENO) != 0;
  LineEditor editor_{"> "};
  bool failed_ = false;
};

int chat(const ChatArguments& arguments) {
  const ServerOptions options = arguments.options->resolve();
  Signals signals({SIGINT});
  const auto engine = load_engine(options, signals);
  const openai::ServedModel model = served_model(*engine, options);
  if (engine->chat_template() == nullptr) {
    throw std::runtime_error("this model has no chat template: give one with --chat-template FILE");
  }
  return ChatSession(*engine, model, arguments, signals).run();
}

constexpr const char* kChatExamples = R"(Examples:
  smartkv chat --config configs/default.json
  smartkv chat --model model.gguf --system "Answer in one sentence." --temperature 0.7
  echo "What is the capital of France? Answer in one sentence." | smartkv chat --config configs/default.json)";

}  // namespace

std::function<int()> setup_chat(CLI::App& app) {
  auto arguments = std::make_shared<ChatArguments>();
  app.add_option("--system", arguments->system, "System message");
  arguments->sampling = std::make_unique<SamplingFlags>(app, 512);
  arguments->options = std::make_unique<OptionFlags>(app, false);
  app.footer(kChatExamples);
  return [arguments] { return chat(*arguments); };
}

}  // namespace smartkv
