#include "server/openai/tool_forms.h"

#include <algorithm>
#include <array>

#include "server/openai/chat_prompt.h"

namespace smartkv::openai {

namespace {

using enum ToolForm;

constexpr std::string_view kDeepSeekBegin = "<｜tool▁calls▁begin｜>", kDeepSeekEnd = "<｜tool▁calls▁end｜>";

constexpr std::array<NamedForm, 8> kNamedForms = {{
    {kQwenXml, ArgumentStyle::kTags, "", "<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", "\n", "",
     "<parameter=", ">\n", "\n</parameter>\n"},
    {kSeedXml, ArgumentStyle::kTags, "", "<seed:tool_call>\n<function=", ">\n", "</function>\n</seed:tool_call>", "\n",
     "", "<parameter=", ">", "</parameter>\n"},
    {kMinimax, ArgumentStyle::kTags, "<minimax:tool_call>\n", "<invoke name=\"", "\">\n", "</invoke>\n", "",
     "</minimax:tool_call>", "<parameter name=\"", "\">", "</parameter>\n"},
    {kGlm, ArgumentStyle::kTags, "", "<tool_call>", "\n", "</tool_call>", "\n", "", "<arg_key>",
     "</arg_key>\n<arg_value>", "</arg_value>\n"},
    {kMistralArgs, ArgumentStyle::kJson, "", "[TOOL_CALLS]", "[ARGS]", "", "", ""},
    {kDeepSeek, ArgumentStyle::kJson, kDeepSeekBegin, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n",
     "\n```<｜tool▁call▁end｜>", "\n", kDeepSeekEnd},
    {kDeepSeekV31, ArgumentStyle::kJson, kDeepSeekBegin, "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
     "<｜tool▁call▁end｜>", "", kDeepSeekEnd},
    {kGemma4, ArgumentStyle::kGemma, "", "<|tool_call>call:", "", "<tool_call|>", "", ""},
}};

// A text that tells a form: the first row whose text occurs decides. `shown` rows look at the prompt with tools, the
// others at a rendered call of the function probe_a1 with the argument k = 1.
struct FormSign {
  std::string_view text;
  ToolForm form;
  bool shown = false;
};

constexpr std::array<FormSign, 17> kFormSigns = {{
    {"to=functions.probe_a1", kHarmony},
    {"<seed:tool_call>", kSeedXml},
    {"<function=probe_a1>", kQwenXml},
    {"<minimax:tool_call>", kMinimax},
    {"<arg_key>", kGlm},
    {"[TOOL_CALLS]probe_a1", kMistralArgs},
    {"[TOOL_CALLS]", kMistral},
    {"function<｜tool▁sep｜>probe_a1", kDeepSeek},
    {"probe_a1<｜tool▁sep｜>", kDeepSeekV31},
    {"<|tool_call>call:probe_a1", kGemma4},
    {"<tool_call>", kHermes},
    {"<|tool_call|>", kGranite},
    {"probe_a1(", kPython},
    {"<|tool_call|>", kGranite, true},
    {"<|tool|>", kGranite, true},
    {"func_name1(", kPython, true},
    {"\"parameters\"", kLlama3},
}};

}  // namespace

const NamedForm* named_form(ToolForm form) {
  const auto found =
      std::find_if(kNamedForms.begin(), kNamedForms.end(), [&](const NamedForm& one) { return one.form == form; });
  return found == kNamedForms.end() ? nullptr : &*found;
}

std::string_view call_mark(ToolForm form) {
  if (const NamedForm* named = named_form(form)) return named->begin.empty() ? named->open : named->begin;
  if (form == kHermes) return "<tool_call>";
  if (form == kMistral) return "[TOOL_CALLS]";
  return form == kGranite ? "<|tool_call|>" : "";
}

std::string form_marks(ToolForm form) {
  std::string marks(call_mark(form));
  if (form == kGranite) marks += "<|/tool_call|>";
  if (const NamedForm* named = named_form(form)) {
    for (const std::string_view mark :
         {named->open, named->name_end, named->close, named->end, named->key, named->value, named->value_end}) {
      marks += mark;
    }
    if (form == kGemma4) marks += "<|\"|>";
    if (form == kMistralArgs) marks += "[CALL_ID]";
  }
  return marks;
}

ShownForm tool_form(const Engine& engine) {
  if (engine.chat_template() == nullptr) return {};
  // The name occurs in no template, and the id has the length that Mistral's templates require.
  const Json function = {
      {"name", "probe_a1"}, {"description", "d"}, {"parameters", {{"type", "object"}, {"properties", Json::object()}}}};
  const Json call = {
      {"id", "abcdefgh1"}, {"type", "function"}, {"function", {{"name", "probe_a1"}, {"arguments", {{"k", 1}}}}}};
  const Json user = {{"role", "user"}, {"content", "q"}},
             assistant = {{"role", "assistant"}, {"content", ""}, {"tool_calls", {call}}};
  const auto rendered_text = [&](const Json& messages, const Json& tools, bool opens_turn) -> std::string {
    try {
      return engine.chat_template()->render(template_context(engine, messages, tools, opens_turn));
    } catch (const ChatTemplateError&) {
      return "";
    }
  };
  const Json tools = Json::array({{{"type", "function"}, {"function", function}}});
  const std::string shown = rendered_text(Json::array({user}), tools, true),
                    called = rendered_text(Json::array({user, assistant}), nullptr, false);
  const bool explained = shown.find("probe_a1") != shown.npos;
  for (const FormSign& sign : kFormSigns) {
    const std::string& text = sign.shown ? shown : called;
    if (text.find(sign.text) == text.npos) continue;
    // A form of whole answers is of no use if the model does not learn about it from the template.
    const bool shows_calls = called.find("probe_a1") != called.npos;
    if (explained || named_form(sign.form) != nullptr) return {sign.form, explained, shows_calls};
  }
  return {};
}

}  // namespace smartkv::openai
