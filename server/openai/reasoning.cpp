#include "server/openai/reasoning.h"

#include <algorithm>
#include <array>

#include "server/openai/chat_prompt.h"
#include "server/openai/harmony_reader.h"
#include "server/openai/loose_calls.h"

namespace smartkv::openai {

namespace {

struct ThinkingMarks {
  std::string_view open, close;
  std::string_view before_close, after_close;  // what models write around `close`, for templates that do not show it
};

constexpr std::array<ThinkingMarks, 6> kThinkingMarks = {{
    {"<think>", "</think>", "\n", "\n\n"},
    {"[THINK]", "[/THINK]", "", ""},
    {"<|channel>thought\n", "<channel|>", "\n", ""},
    {"<|START_THINKING|>", "<|END_THINKING|>", "", ""},
    {"<seed:think>", "</seed:think>", "", "\n"},
    {"<mm:think>", "</mm:think>", "", ""},
}};

constexpr std::string_view kThought = "probe-thought", kProbeAnswer = "probe-answer";

// Returns the rendered messages, or "" if the template refuses them.
std::string rendered(const Engine& engine, const Json& messages, bool opens_turn, const Json& variables) {
  Json context = template_context(engine, messages, nullptr, opens_turn);
  context.update(variables);
  try {
    return engine.chat_template()->render(context);
  } catch (const ChatTemplateError&) {
    return "";
  }
}

std::string_view trimmed_end(std::string_view text) { return text.substr(0, text.find_last_not_of(kBlanks) + 1); }

bool ends_with_mark(std::string_view text, std::string_view mark) {
  return trimmed_end(text).ends_with(trimmed_end(mark));
}

// Returns the form with these marks. `history` is a rendered answer with thinking, in which the texts around the marks
// are looked for.
ReasoningForm form_of(const ThinkingMarks& marks, std::string_view history) {
  ReasoningForm form;
  form.open = marks.open;
  form.close = marks.close;
  form.closing = std::string(marks.before_close) + form.close;
  form.between = marks.after_close;
  const size_t thought = history.find(kThought);
  const size_t answer = thought == history.npos ? thought : history.find(kProbeAnswer, thought);
  if (answer == history.npos) return form;
  const std::string_view around = history.substr(thought + kThought.size(), answer - thought - kThought.size());
  const size_t close = around.find(form.close);
  if (close == around.npos) return form;
  form.closing = around.substr(0, close + form.close.size());
  form.between = around.substr(close + form.close.size());
  return form;
}

}  // namespace

std::optional<ReasoningForm> reasoning_form(const Engine& engine) {
  if (engine.chat_template() == nullptr) return std::nullopt;
  const Json user = {{"role", "user"}, {"content", "q"}};
  const Json answer = {{"role", "assistant"},
                       {"content", kProbeAnswer},
                       {"reasoning_content", kThought},
                       {"reasoning", kThought},
                       {"thinking", kThought}};
  const std::string history = rendered(engine, Json::array({user, answer}), false, Json::object());
  if (history.find(kHarmonyThinking) != history.npos) {
    ReasoningForm form = form_of({kHarmonyThinking, kHarmonyEnd, "", kHarmonyAnswer}, history);
    form.channels = true;
    return form;
  }
  std::string all = history + rendered(engine, Json::array({user}), true, Json::object());
  for (const bool on : {true, false})
    all += rendered(engine, Json::array({user}), true, {{"enable_thinking", on}, {"thinking", on}});
  for (const ThinkingMarks& marks : kThinkingMarks) {
    if (all.find(marks.open) != all.npos || all.find(marks.close) != all.npos) return form_of(marks, history);
  }
  return std::nullopt;
}

std::optional<Thinking> thinking_after(const ReasoningForm& form, std::string_view tail, bool continues,
                                       const Tokenizer& tokenizer) {
  const size_t opened = tail.rfind(form.open), closed = tail.rfind(form.close);
  const bool within = opened != tail.npos && (closed == tail.npos || closed < opened);
  const bool begun = form.channels || tail.find_first_not_of(kBlanks) != tail.npos;
  if (continues && begun && !within) return std::nullopt;
  if (!continues && ends_with_mark(tail, form.close) && !form.channels) return std::nullopt;
  const auto tokens = [&](const std::string& text) { return tokenizer.encode(text, {.add_special = false}); };
  return Thinking{.open = form.open,
                  .close = form.close,
                  .opened = continues ? within : ends_with_mark(tail, form.open),
                  .repeats = form.channels,
                  .always = form.channels,
                  .opening = tokens(form.open),
                  .closing = tokens(form.closing),
                  .between = form.between.empty() ? std::vector<TokenId>() : tokens(form.between)};
}

std::vector<TokenId> special_tokens_in(std::string_view text, const Tokenizer& tokenizer) {
  std::vector<TokenId> tokens = tokenizer.encode(text, {.add_special = false});
  std::erase_if(tokens, [&](TokenId token) { return !tokenizer.is_special(token); });
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

Json read_effort(FieldReader& fields, const ReasoningForm* form) {
  const auto effort = fields.string("reasoning_effort");
  if (!effort) return nullptr;
  const Json& efforts = fields.schema("reasoning_effort").at("enum");
  if (std::find(efforts.begin(), efforts.end(), *effort) == efforts.end()) {
    throw invalid_request("reasoning_effort",
                          "'reasoning_effort': expected one of " + dump(efforts) + ", found \"" + *effort + "\"");
  }
  const bool thinks = *effort != "none";
  if (form == nullptr && thinks) {
    throw invalid_request("reasoning_effort",
                          "'reasoning_effort': expected \"none\", because the model's chat template knows no thinking, "
                          "found \"" +
                              *effort + "\"");
  }
  Json variables = {{"enable_thinking", thinks}, {"thinking", thinks}};
  if (thinks) variables["reasoning_effort"] = *effort;
  return variables;
}

int64_t read_thinking_budget(FieldReader& fields) {
  int64_t budget = -1;
  const char* from = nullptr;
  for (const char* name : {"thinking_budget", "thinking_token_budget", "thinking_budget_tokens"}) {
    if (fields.find(name) == nullptr) continue;
    const int64_t found = fields.integer(name, -1);
    if (from != nullptr && found != budget) {
      throw invalid_request(name,
                            std::string("'") + name + "' and '" + from + "' set the same limit to different values");
    }
    budget = found;
    from = name;
  }
  return budget;
}

}  // namespace smartkv::openai
