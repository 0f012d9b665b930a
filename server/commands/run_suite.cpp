#include <algorithm>
#include <iostream>
#include <memory>

#include "server/commands/command.h"
#include "server/commands/common.h"
#include "server/commands/prompt_suite.h"
#include "server/openai/api_request.h"
#include "server/openai/generation_run.h"
#include "server/openai/response.h"

namespace smartkv {
namespace {

using openai::Json;

struct Arguments {
  std::unique_ptr<OptionFlags> options;
  std::string dynamic = R"({"policy": "channel_packed", "update_every": 64, "check_every": 128})";
  int64_t max_tokens = 512;
};

// Null if a signal arrived.
Json answer(Engine& engine, const openai::ServedModel& model, const SuitePrompt& prompt, const Json& kv_cache, int64_t max_tokens,
            Signals& signals) {
  const Json body = {{"messages", {{{"role", "user"}, {"content", prompt.text}}}},
                     {"temperature", 0},
                     {"max_tokens", max_tokens},
                     {"kv_cache", kv_cache}};
  const openai::ApiRequest request = openai::parse_chat(openai::dump(body), model);
  openai::GenerationRun run(engine, request);
  openai::WholeResponse response(request, engine.tokenizer());
  GenerationEvent event;
  for (auto status = run.next(&event); status != openai::GenerationRun::Status::kEnd; status = run.next(&event)) {
    if (signals.poll()) return nullptr;
    if (status == openai::GenerationRun::Status::kEvent) response.add(event, run);
  }
  return response.json(run.usage());
}

// Each prompt with the full cache, then with the dynamic one: a JSON line each.
int run_suite(const Arguments& arguments) {
  const ServerOptions options = arguments.options->resolve();
  const Json dynamic = name_or_object("--dynamic", arguments.dynamic);
  Signals signals({SIGINT, SIGTERM});
  const auto engine = load_engine(options, signals);
  const openai::ServedModel model = served_model(*engine, options);
  for (const SuitePrompt& prompt : kPromptSuite) {
    std::string full;
    for (const bool is_dynamic : {false, true}) {
      const Json found = answer(*engine, model, prompt, is_dynamic ? dynamic : Json("full"), arguments.max_tokens, signals);
      if (found.is_null()) return 128 + SIGINT;
      const auto text = found.at("choices").at(0).at("message").at("content").get<std::string>();
      Json line = {{"prompt", prompt.name}, {"mode", is_dynamic ? "dynamic" : "full"}, {"kv_cache", found.at("usage").at("kv_cache")},
                   {"completion_tokens", found.at("usage").at("completion_tokens")}, {"timings", found.at("timings")}, {"text", text}};
      if (is_dynamic) {  // how long the two answers are one
        line["same_bytes"] = std::mismatch(text.begin(), text.end(), full.begin(), full.end()).first - text.begin();
        line["same_text"] = text == full;
      }
      full = text;
      std::cout << openai::dump(line) << std::endl;
    }
  }
  return kOk;
}

constexpr const char* kExamples = R"(Prints JSON lines: prompt, mode, text, what the cache held, timings; in dynamic mode how far the answer is the full cache's.
Examples:
  smartkv run-suite --model model.gguf
  smartkv run-suite --model model.gguf --dynamic '{"policy": "channel_packed", "key_channels": 32}' --max-tokens 1024)";

}  // namespace

std::function<int()> setup_run_suite(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  app.add_option("--dynamic", arguments->dynamic, "KV-cache policy of the dynamic mode: a name, or a JSON object")->capture_default_str();
  app.add_option("--max-tokens", arguments->max_tokens, "Of each answer")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  arguments->options = std::make_unique<OptionFlags>(app, false);
  app.footer(kExamples);
  return [arguments] { return run_suite(*arguments); };
}

}  // namespace smartkv
