// Tool calls in the forms of published chat templates: how a form is found, the calls that are taken out of an answer,
// and the grammar of a strict function.
#include "server/openai/tool_forms.h"

#include <gtest/gtest.h>

#include "server/openai/answer_parser.h"
#include "tests/engine/sampling/grammar_match.h"
#include "tests/server/fake_engine.h"
#include "tests/text/template_file.h"

namespace smartkv::openai {
namespace {

using smartkv::test::FakeEngine;

// A function that every case calls.
constexpr const char* kWeatherTool = R"("tools": [{"type": "function", "function": {"name": "get_w", "strict": true,
    "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "c"},
    "days": {"type": "integer", "description": "n"}}, "required": ["city"], "additionalProperties": false}}}])";

struct FormCase {
  const char* name;  // of the template
  ToolForm form;
  const char* answer;    // as the template writes it in a history
  const char* expected;  // TEXT|FUNCTION:ARGUMENTS
};

const FormCase kFormCases[] = {
    {"published/qwen2_5", ToolForm::kHermes,
     "Sure.\n<tool_call>\n{\"name\": \"get_w\", \"arguments\": {\"city\": \"Rome\", \"days\": 3}}\n</tool_call>\n"
     "<tool_call>\n{\"name\": \"get_w\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
     R"(Sure.|get_w:{"city": "Rome", "days": 3}|get_w:{"city": "Oslo"})"},
    {"published/qwen3", ToolForm::kHermes,
     "<tool_call>\n{\"name\": \"get_w\", \"arguments\": {\"city\": \"Rome\", \"days\": 3}}\n</tool_call>",
     R"(|get_w:{"city": "Rome", "days": 3})"},
    {"published/granite_4_0", ToolForm::kHermes,
     "<tool_call>\n{\"name\": \"get_w\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
     R"(|get_w:{"city": "Oslo"})"},
    {"published/qwen3_coder", ToolForm::kQwenXml,
     "Sure.\n<tool_call>\n<function=get_w>\n<parameter=city>\nRome\nor <b>Oslo</b> < "
     "3\n</parameter>\n<parameter=days>\n"
     "3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_w>\n<parameter=city>\n12\n</parameter>\n"
     "</function>\n</tool_call>",
     R"(Sure.|get_w:{"city": "Rome\nor <b>Oslo</b> < 3", "days": 3}|get_w:{"city": "12"})"},
    {"published/qwen3_5", ToolForm::kQwenXml,
     "<tool_call>\n<function=get_w>\n<parameter=city>\n\"R\"\n</parameter>\n</function>\n</tool_call>",
     R"(|get_w:{"city": "\"R\""})"},
    {"published/seed_oss", ToolForm::kSeedXml,
     "<seed:tool_call>\n<function=get_w>\n<parameter=city>Rome</parameter>\n<parameter=days>3</parameter>\n</"
     "function>\n"
     "</seed:tool_call>\n<seed:tool_call>\n<function=get_w>\n<parameter=city>Oslo</parameter>\n</function>\n"
     "</seed:tool_call>",
     R"(|get_w:{"city": "Rome", "days": 3}|get_w:{"city": "Oslo"})"},
    {"published/glm_4_6", ToolForm::kGlm,
     "Sure.\n<tool_call>get_w\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n"
     "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_w\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
     "</tool_call>",
     R"(Sure.|get_w:{"city": "Rome", "days": 3}|get_w:{"city": "Oslo"})"},
    {"published/glm_4_7", ToolForm::kGlm,
     "<tool_call>get_w<arg_key>city</arg_key><arg_value>Rome</arg_value><arg_key>days</arg_key><arg_value>3</arg_value>"
     "</tool_call><tool_call>get_w<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>",
     R"(|get_w:{"city": "Rome", "days": 3}|get_w:{"city": "Oslo"})"},
    {"published/mistral_nemo", ToolForm::kMistral,
     R"([TOOL_CALLS][{"name": "get_w", "arguments": {"city": "Rome", "days": 3}, "id": "abcdefgh1"}, {"name": "get_w", )"
     R"("arguments": {"city": "Oslo"}, "id": "abcdefgh2"}])",
     R"(|get_w:{"city": "Rome", "days": 3}|get_w:{"city": "Oslo"})"},
    {"published/mistral_small_3_2", ToolForm::kMistralArgs,
     R"([TOOL_CALLS]get_w[CALL_ID]abcdefgh1[ARGS]{"city": "Rome", "days": 3}[TOOL_CALLS]get_w[CALL_ID]abcdefgh2[ARGS])"
     R"({"city": "Oslo"})",
     R"(|get_w:{"city": "Rome", "days": 3}|get_w:{"city": "Oslo"})"},
    {"published/ministral_3", ToolForm::kMistralArgs,
     R"(Sure.[TOOL_CALLS]get_w[ARGS]{"city": "Rome]}", "days": 3}[TOOL_CALLS]get_w[ARGS]{"city": "Oslo"})",
     R"(Sure.|get_w:{"city": "Rome]}", "days": 3}|get_w:{"city": "Oslo"})"},
    {"published/deepseek_r1_distill", ToolForm::kDeepSeek,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_w\n```json\n{\"city\": \"Rome\", \"days\": "
     "3}"
     "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_w\n```json\n{\"city\": \"Oslo\"}\n```"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     R"(|get_w:{"city": "Rome", "days": 3}|get_w:{"city": "Oslo"})"},
    {"published/deepseek_v3_1", ToolForm::kDeepSeekV31,
     "Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_w<｜tool▁sep｜>{\"city\": \"Rome\", \"days\": 3}"
     "<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_w<｜tool▁sep｜>{\"city\": \"Oslo\"}<｜tool▁call▁end｜>"
     "<｜tool▁calls▁end｜>",
     R"(Sure.|get_w:{"city": "Rome", "days": 3}|get_w:{"city": "Oslo"})"},
    {"published/gemma_4", ToolForm::kGemma4,
     "<|tool_call>call:get_w{city:<|\"|>Rome, {}<|\"|>,days:3}<tool_call|><|tool_call>call:get_w{city:<|\"|>Oslo<|\"|>}"
     "<tool_call|>",
     R"(|get_w:{"city":"Rome, {}","days":3}|get_w:{"city":"Oslo"})"},
    {"published/gpt_oss", ToolForm::kHarmony,
     R"(<|start|>assistant to=functions.get_w<|channel|>commentary json<|message|>{"city": "Rome", "days": 3})",
     R"(|get_w:{"city": "Rome", "days": 3})"},
    {"published/granite_3_3", ToolForm::kGranite,
     R"(<|tool_call|>[{"name": "get_w", "arguments": {"city": "Rome", "days": 3}}, )"
     R"({"name": "get_w", "arguments": {"city": "Oslo"}}])",
     R"(|get_w:{"city": "Rome", "days": 3}|get_w:{"city": "Oslo"})"},
    {"llama31_tools", ToolForm::kLlama3, R"({"name": "get_w", "parameters": {"city": "Rome", "days": 3}})",
     R"(|get_w:{"city": "Rome", "days": 3})"},
    {"llama4_tools", ToolForm::kPython, R"([get_w(city="Rome", days=3), get_w(city="Oslo")])",
     R"(|get_w:{"city": "Rome", "days": 3}|get_w:{"city": "Oslo"})"},
    {"phi4_tools", ToolForm::kGranite,
     R"(<|tool_call|>[{"name": "get_w", "arguments": {"city": "Rome", "days": 3}}]<|/tool_call|>)",
     R"(|get_w:{"city": "Rome", "days": 3})"},
    {"gemma3", ToolForm::kGeneric, R"({"name": "get_w", "arguments": {"city": "Rome", "days": 3}})",
     R"(|get_w:{"city": "Rome", "days": 3})"},
};

class ToolFormsTest : public ::testing::Test {
 protected:
  ToolFormsTest() { engine_.set_context_length(1'000'000); }
  void use_template(const std::string& name) {
    engine_.set_chat_template(test::read_template_fixture(name + ".jinja").c_str());
  }
  ApiRequest chat(const std::string& fields = "") {
    return parse_chat(R"({"messages": [{"role": "user", "content": "q"}], )" + std::string(kWeatherTool) + fields + "}",
                      model_);
  }
  // Returns TEXT|FUNCTION:ARGUMENTS of an answer that comes in these texts.
  static std::string parsed(const ApiRequest& request, const std::vector<std::string>& texts) {
    AnswerParser parser(request);
    std::string result;
    for (size_t i = 0; i < texts.size(); ++i) {
      GenerationEvent event;
      event.text = texts[i];
      if (i + 1 == texts.size()) event.finish = FinishReason::kStop;
      for (const AnswerPiece& piece : parser.take(event)) {
        if (!piece.name.empty()) result += "|" + piece.name + ":";
        result += piece.text + piece.arguments;
      }
    }
    EXPECT_FALSE(parser.incomplete());
    return result;
  }

  FakeEngine engine_;
  ServedModel model_{.engine = engine_, .names = {"fake"}};
};

TEST_F(ToolFormsTest, ATemplateShowsItsForm) {
  for (const FormCase& one : kFormCases) {
    use_template(one.name);
    EXPECT_EQ(tool_form(engine_).form, one.form) << one.name;
    const std::vector<TokenId> prompt = chat().generations.front().prompt;
    EXPECT_NE(engine_.tokenizer().decode(prompt, false).find("get_w"), std::string::npos)
        << one.name << ": the model does not learn about its tools";
  }
}

TEST_F(ToolFormsTest, CallsAreFoundHoweverTheAnswerIsCut) {
  for (const FormCase& one : kFormCases) {
    use_template(one.name);
    ApiRequest request = chat();
    request.generations.front().thinking.reset();
    if (request.channels) request.generations.front().thinking.emplace();
    const std::string answer = one.answer;
    EXPECT_EQ(parsed(request, {answer}), one.expected) << one.name;
    std::vector<std::string> bytes;
    for (size_t i = 0; i < answer.size(); ++i) {
      bytes.emplace_back(1, answer[i]);
      EXPECT_EQ(parsed(request, {answer.substr(0, i), answer.substr(i)}), one.expected) << one.name << ", " << i;
    }
    EXPECT_EQ(parsed(request, bytes), one.expected) << one.name;
  }
}

TEST_F(ToolFormsTest, AStrictFunctionHasAGrammarInEachForm) {
  for (const FormCase& one : kFormCases) {
    const std::string_view name = one.name;
    if (name == "published/mistral_nemo" || name == "published/mistral_small_3_2") continue;  // their ids are no part
    use_template(one.name);
    for (const char* choice : {"auto", "required"}) {
      const ApiRequest request = chat(R"(, "tool_choice": ")" + std::string(choice) + '"');
      const std::string& grammar = request.generations.front().grammar;
      std::string answer = one.answer;
      if (*choice == 'r' && answer.starts_with("Sure.")) answer.erase(0, answer.find_first_not_of("\n", 5));
      const bool opened = one.form == ToolForm::kGranite;  // its prompt holds the mark, or an answer without it
      if (opened) answer.erase(0, std::string("<|tool_call|>").size());
      if (name == "phi4_tools") answer.resize(answer.find("<|/tool_call|>"));
      EXPECT_TRUE(obeys(grammar, answer)) << one.name << ' ' << choice << '\n' << grammar;
      const size_t days = answer.find('3');
      if (days == std::string::npos) continue;
      std::string wrong = answer;
      wrong[wrong.rfind("3", wrong.find("Oslo", days + 5))] = 'x';
      EXPECT_FALSE(obeys(grammar, wrong)) << one.name << ' ' << choice;
    }
  }
}

TEST_F(ToolFormsTest, TextThatLooksLikeACallStaysText) {
  const std::pair<const char*, const char*> cases[] = {
      {"published/qwen3_coder", "a <tool_call> b"}, {"published/qwen3_coder", "<tool_call>\n<function>"},
      {"published/glm_4_6", "The tag <tool_call>"}, {"published/deepseek_v3_1", "<｜tool▁calls▁begin｜>nothing"},
      {"published/ministral_3", "[TOOL_CALLS"},     {"llama4_tools", "[1, 2]"},
      {"llama4_tools", "[get_v(city=\"Rome\")]"},   {"llama4_tools", "[get_w(city)]"},
      {"gemma3", "```tool_code\nprint(1)\n```"},
  };
  for (const auto& [name, answer] : cases) {
    use_template(name);
    ApiRequest request = chat();
    request.generations.front().thinking.reset();
    std::vector<std::string> bytes;
    for (const char* c = answer; *c != 0; ++c) bytes.emplace_back(1, *c);
    EXPECT_EQ(parsed(request, bytes), answer) << name;
    EXPECT_EQ(parsed(request, {answer}), answer) << name;
  }
}

TEST_F(ToolFormsTest, FunctoolsMayPrecedeAnArrayOfCalls) {
  use_template("phi4_tools");
  ApiRequest request = chat();
  const std::string_view answer =
      "So:\nfunctools[{\"name\": \"get_w\", \"arguments\": {\"city\": \"Rome\"}}, "
      "{\"name\": \"get_w\", \"arguments\": {\"city\": \"Oslo\"}}]";
  constexpr const char* kCalls = R"(|get_w:{"city": "Rome"}|get_w:{"city": "Oslo"})";
  for (size_t i = 0; i <= answer.size(); ++i) {
    EXPECT_EQ(parsed(request, {std::string(answer.substr(0, i)), std::string(answer.substr(i))}),
              std::string("So:") + kCalls)
        << i;
  }
  EXPECT_EQ(parsed(request, {std::string(answer.substr(4))}), kCalls);
  for (const char* text : {"for", "functools", "functools[1]", "functools(get_w)", "f"}) {
    EXPECT_EQ(parsed(request, {text}), text);
  }
}

TEST_F(ToolFormsTest, ArgumentsOfPythonCallsBecomeJson) {
  use_template("llama4_tools");
  const ApiRequest request = chat();
  EXPECT_EQ(
      parsed(request, {R"([get_w(city='It\'s "Rome"\n', days=-2, on=True, off=False, none=None, x=[1, 2.5, (3,)], )"
                       R"(o={'a': "b", "c": {}})])"}),
      R"(|get_w:{"city": "It's \"Rome\"\n", "days": -2, "on": true, "off": false, "none": null, "x": [1, 2.5, [3]], )"
      R"("o": {"a": "b", "c": {}}})");
  EXPECT_EQ(parsed(request, {"[get_w()]"}), "|get_w:{}");
  use_template("gemma3");
  EXPECT_EQ(parsed(chat(), {"So:\n```tool_code\nget_w(city=\"Rome\")\n```"}), R"(So:|get_w:{"city": "Rome"})");
}

TEST_F(ToolFormsTest, ACallThatIsCutIsIncomplete) {
  for (const FormCase& one : kFormCases) {
    use_template(one.name);
    ApiRequest request = chat();
    request.generations.front().thinking.reset();
    if (request.channels) request.generations.front().thinking.emplace();
    AnswerParser parser(request);
    GenerationEvent event;
    event.text = std::string(one.answer).substr(0, std::string(one.answer).find("Rome") + 2);
    event.finish = FinishReason::kLength;
    if (event.text.size() < 3 || std::string(one.answer).find("Rome") == std::string::npos) continue;
    if (one.form == ToolForm::kPython || one.form == ToolForm::kGeneric) continue;  // such calls are returned whole
    parser.take(event);
    EXPECT_EQ(parser.calls(), 1) << one.name;
    EXPECT_TRUE(parser.incomplete()) << one.name;
  }
}

TEST_F(ToolFormsTest, AHistoryOfCallsReachesEveryTemplate) {
  const std::string history = R"({"messages": [{"role": "user", "content": "q"},
      {"role": "assistant", "content": "", "tool_calls": [{"id": "abcdefgh1", "type": "function",
       "function": {"name": "get_w", "arguments": "{\"city\": \"Rome\"}"}}]},
      {"role": "tool", "tool_call_id": "abcdefgh1", "content": "sunny-result"}], )" +
                              std::string(kWeatherTool) + "}";
  for (const FormCase& one : kFormCases) {
    use_template(one.name);
    const std::string prompt =
        engine_.tokenizer().decode(parse_chat(history, model_).generations.front().prompt, false);
    EXPECT_NE(prompt.find("Rome"), std::string::npos) << one.name;
    EXPECT_NE(prompt.find("sunny-result"), std::string::npos) << one.name;
  }
}

}  // namespace
}  // namespace smartkv::openai
