// Tools: the requests that are accepted, the grammar of calls, and the calls that are taken out of answers.
#include <gtest/gtest.h>

#include "server/openai/api_request.h"
#include "server/openai/response.h"
#include "server/openai/tool_call_parser.h"
#include "tests/engine/sampling/grammar_match.h"
#include "tests/server/fake_engine.h"

namespace smartkv::openai {
namespace {

using smartkv::test::FakeEngine;

constexpr const char* kTools = R"("tools": [
    {"type": "function", "function": {"name": "f", "strict": true, "parameters": {"type": "object",
        "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}}},
    {"type": "function", "function": {"name": "g"}}])";

class ToolsTest : public ::testing::Test {
 protected:
  ApiRequest chat(const std::string& fields) {
    return parse_chat("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], " + fields + "}", model_);
  }
  std::string refused_field(const std::string& fields) {
    try {
      chat(fields);
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400);
      return error.param;
    }
    return "taken";
  }

  FakeEngine engine_;
  ServedModel model_{.engine = engine_, .names = {"fake"}};
};

ToolUse use(ToolForm form, ToolUse::Choice choice, bool parallel = true) {
  ToolUse tools;
  const Json schema = {{"type", "object"}, {"properties", {{"n", {{"type", "integer"}}}}}, {"required", {"n"}}};
  tools.functions.push_back(
      {.name = "f", .declaration = {}, .parameters = schema, .strict = true, .path = "tools[0].function"});
  tools.functions.push_back(
      {.name = "g", .declaration = {}, .parameters = nullptr, .strict = false, .path = "tools[1].function"});
  tools.form = form;
  tools.choice = choice;
  tools.parallel = parallel;
  return tools;
}

std::string grammar_of(const ToolUse& tools) {
  EbnfGrammar grammar;
  const std::string root = add_tool_rules(tools, "", &grammar);
  return grammar.text(root);
}

// Returns the text and the calls of an answer that comes in pieces of this size.
std::string parsed_answer(ToolForm form, const std::string& answer, size_t piece, bool parallel = true) {
  ToolUse tools = use(form, ToolUse::Choice::kAuto, parallel);
  tools.settle(form);
  ToolCallParser parser(tools);
  std::string result;
  const auto add = [&](const std::vector<AnswerPiece>& pieces) {
    for (const AnswerPiece& one : pieces) {
      if (!one.name.empty()) result += "|" + std::to_string(one.call) + one.name + ":";
      result += one.text + one.arguments;
    }
  };
  for (size_t i = 0; i < answer.size(); i += piece) add(parser.push(answer.substr(i, piece)));
  add(parser.flush());
  return result;
}

TEST_F(ToolsTest, RefusesByName) {
  EXPECT_EQ(refused_field(R"("tools": [{"type": "custom"}])"), "tools[0].type");
  EXPECT_EQ(refused_field(R"("tools": [{"type": "function", "function": {"name": "a b"}}])"), "tools[0].function.name");
  EXPECT_EQ(
      refused_field(
          R"("tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "f"}}])"),
      "tools[1].function.name");
  EXPECT_EQ(
      refused_field(
          R"("tools": [{"type": "function", "function": {"name": "f", "strict": true, "parameters": {"type": "object",
                             "properties": {"a": {"not": {}}}}}}])"),
      "tools[0].function.parameters.properties.a.not");
  EXPECT_EQ(refused_field(R"("tool_choice": "required")"), "tool_choice");
  EXPECT_EQ(refused_field(std::string(kTools) + R"(, "tool_choice": "some")"), "tool_choice");
  EXPECT_EQ(refused_field(std::string(kTools) + R"(, "tool_choice": {"type": "function", "function": {"name": "h"}})"),
            "tool_choice.function.name");
  EXPECT_EQ(refused_field(std::string(kTools) + R"(, "grammar": "root ::= \"a\"")"), "grammar");
}

TEST_F(ToolsTest, ChoiceDecidesTheGrammar) {
  const std::string f = R"({"name": "f", "arguments": {"n": 3}})", g = R"({"name": "g", "arguments": {}})";
  const std::string any = chat(kTools).generations.front().grammar;
  for (const std::string& text : {f, g, "[" + f + ", " + g + "]", std::string("Just text."), std::string()})
    EXPECT_TRUE(obeys(any, text)) << text;
  for (const std::string& text :
       {std::string(R"({"name": "h")"), std::string(R"({"name": "f", "arguments": {}})"), f + "x"}) {
    EXPECT_FALSE(obeys(any, text)) << text;
  }
  const std::string required =
      chat(std::string(kTools) + R"(, "tool_choice": "required", "parallel_tool_calls": false)")
          .generations.front()
          .grammar;
  EXPECT_TRUE(obeys(required, g));
  EXPECT_FALSE(obeys(required, "Just text."));
  EXPECT_FALSE(obeys(required, "[" + f + "," + g + "]"));
  const std::string named =
      chat(std::string(kTools) + R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})")
          .generations.front()
          .grammar;
  EXPECT_TRUE(obeys(named, g));
  EXPECT_FALSE(obeys(named, f));
  EXPECT_EQ(chat(std::string(kTools) + R"(, "tool_choice": "none")").generations.front().grammar, "");
}

TEST_F(ToolsTest, AHintForCachesIsNoPartOfATool) {
  const char* const tools =
      R"("tools": [{"type": "function", "function": {"name": "f"}, "cache_control": {"type": "ephemeral"}}])";
  EXPECT_FALSE(chat(tools).tools->functions.at(0).declaration.contains("cache_control"));
  EXPECT_EQ(refused_field(R"("tools": [{"type": "function", "function": {"name": "f"}, "cache_control": "x"}])"),
            "tools[0].cache_control");
}

TEST_F(ToolsTest, EachFormHasItsGrammar) {
  using enum ToolForm;
  const std::string call = R"({"name": "f", "arguments": {"n": 3}})", block = "<tool_call>\n" + call + "\n</tool_call>";
  const std::string hermes = grammar_of(use(kHermes, ToolUse::Choice::kAuto));
  for (const std::string& text : {block, "Well.\n" + block + "\n" + block, std::string("a < b"), std::string()})
    EXPECT_TRUE(obeys(hermes, text)) << text;
  EXPECT_FALSE(obeys(hermes, "<tool_call>\n{}\n</tool_call>"));
  const std::string required = grammar_of(use(kHermes, ToolUse::Choice::kRequired));
  EXPECT_TRUE(obeys(required, block + "\n" + block));
  EXPECT_FALSE(obeys(required, "Well."));
  const std::string llama = grammar_of(use(kLlama3, ToolUse::Choice::kRequired));
  EXPECT_TRUE(obeys(llama, R"({"name": "f", "parameters": {"n": 3}})"));
  EXPECT_FALSE(obeys(llama, call));
  const std::string mistral = grammar_of(use(kMistral, ToolUse::Choice::kRequired, false));
  EXPECT_TRUE(obeys(mistral, " [" + call + "]"));
  EXPECT_FALSE(obeys(mistral, "[" + call + "," + call + "]"));
  EXPECT_EQ(call_opening(use(kMistral, ToolUse::Choice::kRequired)), "[TOOL_CALLS]");
}

TEST_F(ToolsTest, ParserFindsCallsHoweverTheAnswerIsCut) {
  using enum ToolForm;
  struct Case {
    ToolForm form;
    const char *answer, *expected;
  };
  const Case cases[] = {
      {kGeneric, R"({"name": "f", "arguments": {"a": "}\"{"}})", R"(|0f:{"a": "}\"{"})"},
      {kGeneric, R"([{"name":"f","arguments":{}}, {"name":"g","arguments":{"a":[1]}}])", R"(|0f:{}|1g:{"a":[1]})"},
      {kGeneric, "Plain text with {braces}", "Plain text with {braces}"},
      {kGeneric, R"({"answer": 1})", R"({"answer": 1})"},
      {kGeneric, "[1, 2]", "[1, 2]"},
      {kGeneric, R"({"name": "f", "argu)", R"({"name": "f", "argu)"},
      {kLlama3, R"({"name": "f", "parameters": {"n": 1}})", R"(|0f:{"n": 1})"},
      {kMistral, R"([TOOL_CALLS] [{"name": "f", "arguments": {"n": 1}}])", R"(|0f:{"n": 1})"},
      {kMistral, R"( [{"name": "f", "arguments": {"n": 1}}])", R"(|0f:{"n": 1})"},
      {kHermes,
       "Hm.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", "
       "\"arguments\": {}}\n</tool_call>",
       "Hm.|0f:{\"n\": 1}|1g:{}"},
      {kHermes, "a <tool> b", "a <tool> b"},
      {kHermes, "<tool_call>\nnothing", "<tool_call>\nnothing"},
  };
  for (const Case& one : cases) {
    for (const size_t piece : {1u, 2u, 3u, 7u, 1000u})
      EXPECT_EQ(parsed_answer(one.form, one.answer, piece), one.expected) << piece;
  }
}

// Qwen2.5-Coder writes calls in these forms although its template shows it another one.
TEST_F(ToolsTest, ParserFindsCallsInOtherForms) {
  using enum ToolForm;
  struct Case {
    const char *answer, *expected;
  };
  const std::string call = R"({"name": "f", "arguments": {"a": "}```\"{\n", "b": [1]}})",
                    said = R"(|0f:{"a": "}```\"{\n", "b": [1]})";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {call, said},
      {"\n " + call + "\n", said},
      {"```json\n" + call + "\n```", said},
      {"```\n" + call + "```\n", said},
      {"Let me see.\n\n```json\n" + call + "\n```\nThere.", "Let me see." + said + "\nThere."},
      {"I call\n" + call + "\nnow {", "I call" + said + "\nnow {"},
      {R"({"name":"f","arguments":{}})"
       "\n"
       R"({"name":"g","arguments":{"x":null}})",
       "|0f:{}|1g:{}"},
      {"```json\n"
       R"({"name":"f","arguments":{}})"
       "\n\n"
       R"({"name":"g","arguments":{}})"
       "\n```",
       "|0f:{}|1g:{}"},
      {"```json\n"
       R"([{"name":"f","arguments":{}}, {"name":"g","arguments":{}}])"
       "\n```",
       "|0f:{}|1g:{}"},
      {"```json\n"
       R"({"name": "f", "arguments": {}})"
       "\nor so\n```",
       "```json|0f:{}\nor so\n```"},
      {R"([{"name":"f","arguments":{}}])", "|0f:{}"},
      {R"({"name": "f", "parameters": {"x": 1}})", R"(|0f:{"x": 1})"},
      {R"({"arguments": {"x": 1}, "name": "f"})", R"(|0f:{"x": 1})"},
      {R"({"type": "function", "function": {"name": "f", "arguments": {"x": 1}}})", R"(|0f:{"x": 1})"},
      {R"({"type": "function", "name": "g", "parameters": {"g": "takes nothing"}})", "|0g:{}"},
  };
  const std::string texts[] = {R"({"name": "h", "arguments": {}})",
                               R"({"name": "f", "arguments": "x"})",
                               R"({"name": "f", "arguments": [1]})",
                               R"({"name": "f"})",
                               R"({"name": "f", "arguments": {}, "more": 1})",
                               R"({"name": "f", "arguments": {"a": }})",
                               R"({"name": "f", "arguments": {"a": 1)",
                               R"(See {"name": "f", "arguments": {}})",
                               "```python\nprint({})\n```",
                               R"({"answer": {"name": "f", "arguments": {}}})",
                               R"([{"name": "f", "arguments": {}}, 3])",
                               "[1, 2]",
                               "{",
                               "```",
                               "`x`",
                               "a\n{\n  b\n}\n",
                               "  trailing  ",
                               "\n"};
  for (const size_t piece : {1u, 2u, 3u, 7u, 1000u}) {
    for (const auto& [answer, expected] : cases) EXPECT_EQ(parsed_answer(kHermes, answer, piece), expected) << piece;
    for (const std::string& text : texts) EXPECT_EQ(parsed_answer(kHermes, text, piece), text) << piece;
    EXPECT_EQ(parsed_answer(kMistral, "```json\n" + call + "\n```", piece), said);
    EXPECT_EQ(parsed_answer(kGeneric, "Well:\n```json\n" + call + "\n```", piece), "Well:" + said);
    EXPECT_EQ(parsed_answer(kHermes, call + "\n" + call, piece, false), said + "\n" + call);  // only one call is taken
  }
}

TEST_F(ToolsTest, ALongCallInAnotherFormIsReadInLinearTime) {
  const std::string call = R"({"name": "f", "arguments": {"a": ")" + std::string(400'000, 'x') + "\"}}";
  EXPECT_EQ(parsed_answer(ToolForm::kHermes, call, 1).size(),
            call.size() - std::string(R"({"name": "f", "arguments": })").size() + 4);
}

TEST_F(ToolsTest, FormIsWhatTheTemplateWrites) { EXPECT_EQ(tool_form(engine_).form, ToolForm::kGeneric); }

TEST_F(ToolsTest, ArgumentsOfAToolWithoutPropertiesAreEmpty) {
  for (const char* parameters :
       {R"({"type": "object", "properties": {}})", R"({"type": "object"})", "{}",
        R"({"type": "object", "properties": {}, "required": [], "additionalProperties": false, "title": "x"})"}) {
    const std::string grammar = chat(R"("tools": [{"type": "function", "function": {"name": "f", "parameters": )" +
                                     std::string(parameters) + "}}]")
                                    .generations.front()
                                    .grammar;
    EXPECT_TRUE(obeys(grammar, R"({"name": "f", "arguments": {}})")) << parameters;
    EXPECT_FALSE(obeys(grammar, R"({"name": "f", "arguments": {"a": 1}})")) << parameters;
  }
  const std::string open =
      chat(
          R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "additionalProperties": true}}}])")
          .generations.front()
          .grammar;
  EXPECT_TRUE(obeys(open, R"({"name": "f", "arguments": {"a": 1}})"));
}

TEST_F(ToolsTest, AKeywordThatNoGrammarSaysLeavesTheOthers) {
  const std::string tool =
      R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["a", "b"],
      "properties": {"a": {"type": "integer", "not": {"const": 1}}, "b": {"enum": ["x", "y"], "markdownDescription": "*"}}}}}])";
  const std::string grammar = chat(tool).generations.front().grammar;
  EXPECT_TRUE(obeys(grammar, R"({"name": "f", "arguments": {"a": 1, "b": "x"}})"));
  EXPECT_FALSE(obeys(grammar, R"({"name": "f", "arguments": {"a": "1", "b": "x"}})"));
  EXPECT_FALSE(obeys(grammar, R"({"name": "f", "arguments": {"a": 1, "b": "z"}})"));
  EXPECT_FALSE(obeys(grammar, R"({"name": "f", "arguments": {"a": 1}})"));
}

TEST_F(ToolsTest, WhiteSpaceInCallsIsBounded) {
  const std::string grammar = chat(kTools).generations.front().grammar;
  EXPECT_TRUE(obeys(grammar, "{\n  \"name\": \"g\",\n\n\"arguments\": {}\n}"));
  EXPECT_FALSE(obeys(grammar, R"({  "name": "g", "arguments": {}})"));
  EXPECT_FALSE(obeys(grammar, "{\"name\": \"g\", \"arguments\": {}\n" + std::string(21, ' ') + "}"));
}

TEST_F(ToolsTest, SchemasOfAllToolsTogetherAreBounded) {
  Json tools = Json::array();
  for (int i = 0; i < 30; ++i) {
    Json values = Json::array();
    for (int j = 0; j < 1000; ++j) values.push_back(std::string(60, 'a') + std::to_string(i * 10'000 + j));
    tools.push_back({{"type", "function"},
                     {"function",
                      {{"name", "f" + std::to_string(i)},
                       {"parameters", {{"type", "object"}, {"properties", {{"a", {{"enum", values}}}}}}}}}});
  }
  engine_.set_context_length(100'000'000);  // enough for a prompt that shows the tools
  const std::string field = refused_field("\"tools\": " + tools.dump());
  EXPECT_TRUE(field.starts_with("tools")) << field;
}

// A stop string inside the arguments cuts them off, so there is no call to make.
TEST_F(ToolsTest, BrokenArgumentsAreNoReasonToCall) {
  const auto finish = [&](std::vector<std::string> pieces) {
    engine_.set_answer(std::move(pieces));
    const ApiRequest request = chat(std::string(kTools) + R"(, "tool_choice": "required", "stop": ["}"])");
    GenerationRun run(engine_, request);
    WholeResponse whole(request, engine_.tokenizer());
    StreamResponse stream(request, engine_.tokenizer());
    std::string streamed;
    GenerationEvent event;
    for (GenerationRun::Status status; (status = run.next(&event)) != GenerationRun::Status::kEnd;) {
      if (status != GenerationRun::Status::kEvent) continue;
      whole.add(event, run);
      for (const Json& chunk : stream.add(event, run)) {
        const Json& reason = chunk["choices"][0]["finish_reason"];
        if (!reason.is_null()) streamed = reason;
      }
    }
    EXPECT_EQ(whole.json(run.usage())["choices"][0]["finish_reason"], streamed);
    return streamed;
  };
  EXPECT_EQ(finish({R"({"name": "f", "arguments": {"n": 3)"}), "stop");
  EXPECT_EQ(finish({R"([{"name": "g", "arguments": {}}, {"name": "f", "arguments": {"n)", ""}), "stop");
  EXPECT_EQ(finish({R"({"name": "f", "arguments": {"n": 3})"}), "tool_calls");
}

TEST_F(ToolsTest, AnswersCarryTheCalls) {
  engine_.set_answer({R"({"name": "f", "argum)", R"(ents": {"n": 3}})"});
  const ApiRequest request = chat(kTools);
  GenerationRun run(engine_, request);
  WholeResponse whole(request, engine_.tokenizer());
  StreamResponse stream(request, engine_.tokenizer());
  std::string name, arguments, finish;
  GenerationEvent event;
  for (;;) {
    const auto status = run.next(&event);
    if (status == GenerationRun::Status::kEnd) break;
    if (status != GenerationRun::Status::kEvent) continue;
    whole.add(event, run);
    for (const Json& chunk : stream.add(event, run)) {
      const Json& choice = chunk["choices"][0];
      if (choice["delta"].contains("tool_calls")) {
        const Json& call = choice["delta"]["tool_calls"][0];
        EXPECT_EQ(call["index"], 0);
        if (call["function"].contains("name")) name = call["function"]["name"];
        arguments += call["function"]["arguments"];
      }
      if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
    }
  }
  EXPECT_EQ(name, "f");
  EXPECT_EQ(arguments, R"({"n": 3})");
  EXPECT_EQ(finish, "tool_calls");
  const Json choice = whole.json(run.usage())["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"n": 3})");
}

}  // namespace
}  // namespace smartkv::openai
