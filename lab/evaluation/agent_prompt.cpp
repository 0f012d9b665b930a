// Prompts of the recall task "agent": machines are inspected one after the other by tool calls.
#include <algorithm>
#include <array>
#include <random>
#include <string>

#include "engine/text/chat_template.h"
#include "lab/evaluation/recall.h"

namespace smartkv {
namespace {

using Json = nlohmann::ordered_json;
using Random = std::mt19937_64;

constexpr std::array<const char*, 16> kFirst = {"amber", "brave", "calm", "dusty", "eager", "fancy", "gentle", "hasty",
                                                "icy",   "jolly", "kind", "lucky", "merry", "noble", "olive",  "proud"};
constexpr std::array<const char*, 16> kSecond = {"badger", "crane", "dolphin", "eagle",  "falcon", "gecko",
                                                 "heron",  "ibis",  "jackal",  "koala",  "lynx",   "marten",
                                                 "newt",   "otter", "panther", "raccoon"};

// Returns a name for machine `i` of a conversation; those of one conversation differ.
std::string machine_name(uint64_t start, int64_t i) {
  const auto serial = static_cast<size_t>(start) + static_cast<size_t>(i) * 37;  // 37 and 256 have no common factor
  return std::string(kFirst[serial / kSecond.size() % kFirst.size()]) + "-" + kSecond[serial % kSecond.size()];
}

struct Machine {
  std::string name, port;
  Json report;

  Machine(Random& random, uint64_t start, int64_t i) : name(machine_name(start, i)) {
    constexpr std::array<const char*, 4> kStates = {"ok", "ok", "busy", "idle"};
    port = std::to_string(10000 + random() % 50000);
    report = {{"machine", name},
              {"port", std::stoi(port)},
              {"load", static_cast<double>(random() % 100) / 100},
              {"free_gb", random() % 900},
              {"status", kStates[random() % kStates.size()]}};
  }
};

// Returns the messages of one call and its result. `plain` writes them for templates without tools.
std::array<Json, 2> call_and_result(const Machine& machine, bool plain) {
  const Json call = {{"name", "inspect"}, {"arguments", {{"machine", machine.name}}}};
  if (plain) {
    return {Json{{"role", "assistant"}, {"content", call.dump()}},
            Json{{"role", "user"}, {"content", "Tool result: " + machine.report.dump()}}};
  }
  return {Json{{"role", "assistant"},
               {"content", ""},
               {"tool_calls", Json::array({Json{{"type", "function"}, {"function", call}}})}},
          Json{{"role", "tool"}, {"name", "inspect"}, {"content", machine.report.dump()}}};
}

Json opening() {
  return Json::array({Json{{"role", "system"},
                           {"content", "You look after a few machines. The tool inspect returns the state of one."}},
                      Json{{"role", "user"}, {"content", "Inspect all machines, one after the other."}}});
}

// Returns whether the template shows tool calls and their results.
bool shows_tools(const RecallOptions& options, const Machine& machine) {
  Json messages = opening();
  for (Json& message : call_and_result(machine, false)) messages.push_back(std::move(message));
  try {
    const std::string text = options.render_chat(messages, false);
    const size_t called = text.find(machine.name);
    return called != std::string::npos && text.find(machine.port, called) != std::string::npos &&
           text.find(machine.name, called + 1) != std::string::npos;
  } catch (const ChatTemplateError&) {
    return false;
  }
}

// Asks for the ports of machines. The questions begin where the text of `messages` alone ends, and end with the
// beginning of the answer, because a small model may otherwise call the tool again.
void ask(const RecallOptions& options, const Json& messages, std::span<const Machine> machines, const std::string& told,
         RecallPrompt* prompt) {
  constexpr int64_t kAnswerTokens = 8;
  for (const Machine& machine : machines) {
    Json asked = messages;
    asked.push_back(
        {{"role", "user"}, {"content", "What did the tool report for " + machine.name + "? Quote its result."}});
    const std::string text = options.render_chat(asked, true);
    if (!text.starts_with(told)) {
      throw EvaluationError(
          "recall: expected a chat template that appends messages to a conversation, found one that changes earlier "
          "messages");
    }
    const std::string answer = "The tool reported: {\"machine\":\"" + machine.name + "\",\"port\":";
    prompt->questions.push_back({-1, {machine.port}, text.substr(told.size()) + answer, kAnswerTokens});
  }
}

}  // namespace

void make_agent_prompt(const Tokenizer& tokenizer, const RecallOptions& options, int64_t length, int64_t index,
                       RecallPrompt* prompt) {
  if (!options.render_chat) throw EvaluationError("recall: the task agent needs a model with a chat template");
  Random random(static_cast<uint64_t>(length) << 20 | static_cast<uint64_t>(index));
  const uint64_t start = random() % (kFirst.size() * kSecond.size());
  std::vector<Machine> machines;
  const auto next = [&]() -> const Machine& {
    return machines.emplace_back(random, start, static_cast<int64_t>(machines.size()));
  };
  const bool plain = !shows_tools(options, Machine(random, start, 0));
  Json messages = opening();
  std::string told;
  while (machines.size() < kFirst.size() * kSecond.size()) {
    Json longer = messages;
    for (Json& message : call_and_result(next(), plain)) longer.push_back(std::move(message));
    const std::string text = options.render_chat(longer, false);
    std::vector<TokenId> tokens = tokenizer.encode(text, {false, true});
    if (static_cast<int64_t>(tokens.size()) > length) {
      machines.pop_back();
      break;
    }
    prompt->context = std::move(tokens);
    messages = std::move(longer);
    told = text;
  }
  const auto calls = static_cast<int64_t>(machines.size());
  if (calls < kNeedles + kAgentTurns) {
    throw EvaluationError("recall: expected a length that fits " + std::to_string(kNeedles + kAgentTurns) +
                          " tool calls, found " + std::to_string(length) + " tokens, which fit " +
                          std::to_string(calls));
  }
  ask(options, messages, std::span(machines).first(kNeedles), told, prompt);
}

}  // namespace smartkv
