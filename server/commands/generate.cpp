#include <iostream>
#include <iterator>
#include <memory>

#include "server/commands/command.h"
#include "server/commands/common.h"
#include "server/commands/draft_printer.h"
#include "server/commands/sampling_flags.h"
#include "server/openai/response.h"

namespace smartkv {

namespace {

using openai::Json;

struct GenerateArguments {
  std::unique_ptr<OptionFlags> options;
  std::unique_ptr<SamplingFlags> sampling;
  std::string prompt;
  std::string system;
  bool chat = false, raw = false, json = false, show_drafts = false;
};

std::string read_prompt(const std::string& argument) {
  if (argument != "-") return argument;
  std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  if (text.ends_with('\n')) text.pop_back();  // the line break at the end of a file is not part of the prompt
  return text;
}

// Returns the request that a client of the HTTP API would send, so that both use the same checks.
openai::ApiRequest make_request(const GenerateArguments& arguments, const openai::ServedModel& model) {
  Json body = arguments.sampling->body();
  const std::string prompt = read_prompt(arguments.prompt);
  if (arguments.raw || (!arguments.chat && model.engine.chat_template() == nullptr)) {
    if (!arguments.system.empty()) throw ConfigError("--system needs a chat template: leave out --raw");
    body["prompt"] = prompt;
    return parse_completion(openai::dump(body), model);
  }
  body["messages"] = Json::array();
  if (!arguments.system.empty()) body["messages"].push_back({{"role", "system"}, {"content", arguments.system}});
  body["messages"].push_back({{"role", "user"}, {"content", prompt}});
  return parse_chat(openai::dump(body), model);
}

int generate(const GenerateArguments& arguments) {
  const ServerOptions options = arguments.options->resolve();
  Signals signals({SIGINT, SIGTERM});
  const auto engine = load_engine(options, signals);
  const openai::ServedModel model = served_model(*engine, options);
  const openai::ApiRequest request = make_request(arguments, model);
  openai::GenerationRun run(*engine, request);
  openai::WholeResponse response(request, engine->tokenizer());
  const bool terminal = writes_to_terminal();
  TerminalText clean;
  const auto shown = [&](const std::string& text) { return terminal ? clean.clean(text) : text; };
  const bool show_drafts = arguments.show_drafts && writes_colours();
  DraftPrinter drafts(engine->tokenizer());
  GenerationEvent event;
  for (;;) {
    const auto status = run.next(&event);
    if (status == openai::GenerationRun::Status::kEnd) break;
    if (signals.poll()) return 128 + SIGINT;
    if (status != openai::GenerationRun::Status::kEvent) continue;
    response.add(event, run);
    if (!arguments.json) std::cout << (show_drafts ? drafts.format(event) : shown(event.text)) << std::flush;
  }
  std::cout << (arguments.json ? openai::dump(response.json(run.usage())) : "") << std::endl;
  if (arguments.show_drafts) std::cerr << describe_drafts(run.usage().speculation) << '\n';
  return kOk;
}

constexpr const char* kGenerateExamples = R"(Examples:
  smartkv generate --config configs/default.json --prompt "What is the capital of France? Answer in one sentence."
  smartkv generate --model model.gguf --raw --prompt "Once upon a time" --max-tokens 64 --temperature 0
  smartkv generate --model model.gguf --speculative ngram --show-drafts --prompt "Repeat this text: ..."
  cat question.txt | smartkv generate --model model.gguf --prompt - --json)";

}  // namespace

std::function<int()> setup_generate(CLI::App& app) {
  auto arguments = std::make_shared<GenerateArguments>();
  app.add_option("-p,--prompt", arguments->prompt, "The prompt; - reads it from standard input")->required();
  app.add_option("--system", arguments->system, "System message");
  auto* chat = app.add_flag("--chat", arguments->chat,
                            "Treat the prompt as a user's message (default if the model has a chat template)");
  app.add_flag("--raw", arguments->raw, "Treat the prompt as plain text to continue")->excludes(chat);
  auto* json = app.add_flag("--json", arguments->json, "Print the JSON object of the HTTP API, with usage and timings");
  app.add_flag("--show-drafts", arguments->show_drafts,
               "On a terminal, colour drafted tokens: accepted ones green, rejected ones red. Totals go to standard "
               "error")
      ->excludes(json);
  arguments->sampling = std::make_unique<SamplingFlags>(app, 256);
  arguments->options = std::make_unique<OptionFlags>(app, false);
  app.footer(kGenerateExamples);
  return [arguments] { return generate(*arguments); };
}

}  // namespace smartkv
