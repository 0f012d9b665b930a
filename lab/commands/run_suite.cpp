#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lab/commands/prompt_suite.h"
#include "lab/commands/setups.h"
#include "server/commands/command.h"
#include "server/commands/common.h"
#include "server/commands/number_flag.h"
#include "server/openai/api_request.h"
#include "server/openai/generation_run.h"
#include "server/openai/response.h"

namespace smartkv {
namespace {

using openai::Json;

struct RunSuiteArguments {
  std::unique_ptr<OptionFlags> options;
  std::string dynamic = R"({"policy": "channel_packed", "update_every": 64, "check_every": 128})";
  int64_t max_tokens = 512;
};

constexpr int kTopLogprobs = 20, kOverlap = 8;

// Returns the probabilities of the likeliest tokens, by text and bytes, and the probability of all other tokens
// together under "". `ranked` gets the likeliest tokens with their negative log probability, sorted by it.
std::map<std::string, double> distribution(const Json& position, std::vector<std::pair<double, std::string>>* ranked) {
  std::map<std::string, double> shares = {{"", 1}};
  for (const Json& token : position.at("top_logprobs")) {
    const double log_probability = token.at("logprob");
    const std::string key = token.at("token").get<std::string>() + token.at("bytes").dump();
    ranked->emplace_back(-log_probability, key);
    shares[key] = std::exp(log_probability);
    shares[""] -= std::exp(log_probability);
  }
  std::sort(ranked->begin(), ranked->end());
  shares[""] = std::max(shares[""], 1e-12);
  return shares;
}

// Returns how far the logits of the second answer are from those of the first, as means over the positions at which
// both have the same preceding tokens. Returns null if there are none.
Json logit_fidelity(const Json& full, const Json& dynamic) {
  double overlap = 0, margin_drift = 0, kl = 0;
  int64_t positions = 0;
  for (size_t i = 0; i < std::min(full.size(), dynamic.size()); ++i) {
    std::vector<std::pair<double, std::string>> a, b;
    const std::map<std::string, double> p = distribution(full[i], &a), q = distribution(dynamic[i], &b);
    if (a.size() < kOverlap || b.size() < kOverlap) break;
    for (int j = 0; j < kOverlap; ++j) {
      overlap += std::any_of(b.begin(), b.begin() + kOverlap,
                             [&](const auto& other) { return other.second == a[static_cast<size_t>(j)].second; });
    }
    margin_drift += std::abs((a[1].first - a[0].first) - (b[1].first - b[0].first));
    double rest_p = p.at(""), rest_q = q.at("");  // probability of the tokens that are not in both lists
    for (const auto& [key, share] : p) rest_p += key.empty() || q.contains(key) ? 0 : share;
    for (const auto& [key, share] : q) rest_q += key.empty() || p.contains(key) ? 0 : share;
    kl += rest_p * std::log(rest_p / rest_q);
    for (const auto& [key, share] : p) {
      if (!key.empty() && q.contains(key)) kl += share * std::log(share / q.at(key));
    }
    ++positions;
    if (full[i].at("token") != dynamic[i].at("token")) break;
  }
  if (positions == 0) return nullptr;
  const auto n = static_cast<double>(positions);
  return {{"positions", positions},
          {"overlap", overlap / n / kOverlap},
          {"margin_drift", margin_drift / n},
          {"kl", kl / n}};
}

// Returns the response to a prompt, or null if a signal arrived.
Json answer(Engine& engine, const openai::ServedModel& model, const SuitePrompt& prompt, const Json& kv_cache,
            int64_t max_tokens, Signals& signals) {
  const Json body = {{"messages", {{{"role", "user"}, {"content", prompt.text}}}},
                     {"temperature", 0},
                     {"max_tokens", max_tokens},
                     {"logprobs", true},
                     {"top_logprobs", kTopLogprobs},
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

// Runs each prompt with the full cache, then with the dynamic one, and prints a JSON line for each run.
int run_suite(const RunSuiteArguments& arguments) {
  const ServerOptions options = arguments.options->resolve();
  const Json dynamic = name_or_object("--dynamic", arguments.dynamic);
  Signals signals({SIGINT, SIGTERM});
  const auto engine = load_engine(options, signals);
  const openai::ServedModel model = served_model(*engine, options);
  for (const SuitePrompt& prompt : kPromptSuite) {
    std::string full;
    Json full_logprobs;
    for (const bool is_dynamic : {false, true}) {
      const Json found =
          answer(*engine, model, prompt, is_dynamic ? dynamic : Json("full"), arguments.max_tokens, signals);
      if (found.is_null()) return 128 + SIGINT;
      const auto text = found.at("choices").at(0).at("message").at("content").get<std::string>();
      const Json logprobs = found.at("choices").at(0).at("logprobs").at("content");
      Json line = {{"prompt", prompt.name},
                   {"mode", is_dynamic ? "dynamic" : "full"},
                   {"kv_cache", found.at("usage").at("kv_cache")},
                   {"completion_tokens", found.at("usage").at("completion_tokens")},
                   {"timings", found.at("timings")},
                   {"text", text}};
      if (is_dynamic) {  // compares the answer with that of the full cache
        line["same_bytes"] = std::mismatch(text.begin(), text.end(), full.begin(), full.end()).first - text.begin();
        line["same_text"] = text == full;
        line["logits"] = logit_fidelity(full_logprobs, logprobs);
      }
      full = text;
      full_logprobs = logprobs;
      std::cout << openai::dump(line) << std::endl;
    }
  }
  return kOk;
}

constexpr const char* kRunSuiteExamples = R"(Prints JSON lines with prompt, mode, text, cache contents and timings.
Dynamic mode adds how far the answer equals that of the full cache, and "logits", measured up to the first differing
token: the overlap of the 8 likeliest tokens, the drift of the margin between the best two, and the KL divergence over
the 20 likeliest tokens and all others together, in nats.
Examples:
  smartkv run-suite --model model.gguf
  smartkv run-suite --model model.gguf --dynamic '{"policy": "channel_packed", "key_channels": 32}' --max-tokens 1024)";

}  // namespace

std::function<int()> setup_run_suite(CLI::App& app) {
  auto arguments = std::make_shared<RunSuiteArguments>();
  app.add_option("--dynamic", arguments->dynamic, "KV-cache policy of the dynamic mode: a name, or a JSON object")
      ->capture_default_str();
  add_number_flag(app, "--max-tokens", arguments->max_tokens, "Limit of tokens of each answer", 1, 1 << 20);
  arguments->options = std::make_unique<OptionFlags>(app, false);
  app.footer(kRunSuiteExamples);
  return [arguments] { return run_suite(*arguments); };
}

}  // namespace smartkv
