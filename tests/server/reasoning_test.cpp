// Thinking: how templates mark it, the requests that steer it, and the responses that return it.
#include "server/openai/reasoning.h"

#include <gtest/gtest.h>

#include "server/openai/response.h"
#include "server/openai/responses.h"
#include "tests/server/test_server.h"
#include "tests/text/template_file.h"

namespace smartkv::openai {
namespace {

using smartkv::test::FakeEngine;
using smartkv::test::published_template;

class ReasoningTest : public ::testing::Test {
 protected:
  ReasoningTest() { engine_.set_context_length(1'000'000); }
  ApiRequest chat(const std::string& fields = "", const std::string& messages = "") {
    const std::string one = R"({"role": "user", "content": "hi"})";
    return parse_chat("{\"messages\": [" + (messages.empty() ? one : messages) + "]" + fields + "}", model_);
  }
  std::optional<Thinking> thinking(const std::string& fields = "", const std::string& messages = "") {
    return chat(fields, messages).generations.front().thinking;
  }
  std::string refused_field(const std::string& fields) {
    try {
      chat(fields);
    } catch (const ApiError& error) {
      return error.param;
    }
    return "taken";
  }
  std::string text(const std::vector<TokenId>& tokens) { return engine_.tokenizer().decode(tokens, false); }

  FakeEngine engine_;
  ServedModel model_{.engine = engine_, .names = {"fake"}};
};

struct PublishedForm {
  const char* name;
  const char* open;  // "" if the template knows no thinking
  const char* closing;
  const char* between;
  const char* at_start;  // of an answer: "opened", "open" (the model decides) or "closed"
};

TEST_F(ReasoningTest, IsFoundInPublishedTemplates) {
  const PublishedForm forms[] = {
      {"qwen3", "<think>", "\n</think>", "\n\n", "open"},
      {"qwen3_5", "<think>", "\n</think>", "\n\n", "opened"},
      {"qwq", "<think>", "\n</think>", "\n\n", "closed"},
      {"deepseek_v3_1", "<think>", "\n</think>", "\n\n", "closed"},
      {"deepseek_r1_distill", "<think>", "\n</think>", "\n\n", "closed"},
      {"glm_4_6", "<think>", "</think>", "\n", "open"},
      {"glm_4_7", "<think>", "</think>", "", "opened"},
      {"smollm3", "<think>", "\n</think>", "\n\n", "open"},
      {"seed_oss", "<seed:think>", "</seed:think>", "\n", "open"},
      {"ministral_3", "[THINK]", "[/THINK]", "", "open"},
      {"gemma_4", "<|channel>thought\n", "\n<channel|>", "", "closed"},
      {"gpt_oss", "<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant<|channel|>final<|message|>", "open"},
      {"qwen2_5", "", "", "", ""},
      {"qwen3_coder", "", "", "", ""},
      {"mistral_nemo", "", "", "", ""},
      {"mistral_small_3_2", "", "", "", ""},
  };
  for (const PublishedForm& form : forms) {
    engine_.set_chat_template(published_template(form.name).c_str());
    const auto found = reasoning_form(engine_);
    ASSERT_EQ(found.has_value(), *form.open != 0) << form.name;
    if (!found) continue;
    EXPECT_EQ(found->open, form.open) << form.name;
    EXPECT_EQ(found->closing, form.closing) << form.name;
    EXPECT_EQ(found->between, form.between) << form.name;
    const auto at_start = thinking();
    EXPECT_EQ(!at_start ? "closed" : at_start->opened ? "opened" : "open", std::string(form.at_start)) << form.name;
  }
}

TEST_F(ReasoningTest, RequestsTurnItOnAndOff) {
  engine_.set_chat_template(published_template("qwen3").c_str());
  EXPECT_FALSE(thinking(R"(, "chat_template_kwargs": {"enable_thinking": false})"));
  EXPECT_FALSE(thinking(R"(, "reasoning_effort": "none")"));
  EXPECT_TRUE(thinking(R"(, "reasoning_effort": "high")"));
  EXPECT_TRUE(thinking(R"(, "reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": true})"));
  engine_.set_chat_template(published_template("deepseek_v3_1").c_str());
  EXPECT_TRUE(thinking(R"(, "reasoning_effort": "low")")->opened);
  engine_.set_chat_template(published_template("gpt_oss").c_str());
  EXPECT_NE(text(chat(R"(, "reasoning_effort": "low")").generations.front().prompt).find("Reasoning: low"),
            std::string::npos);
  EXPECT_EQ(thinking(R"(, "reasoning_effort": "none")")->budget, 0) << "the template cannot turn it off";
  EXPECT_EQ(refused_field(R"(, "reasoning_effort": "some")"), "reasoning_effort");
}

TEST_F(ReasoningTest, ABudgetHasThreeNames) {
  engine_.set_chat_template(published_template("qwen3").c_str());
  EXPECT_EQ(thinking()->budget, -1);
  for (const char* name : {"thinking_budget", "thinking_token_budget", "thinking_budget_tokens"}) {
    const auto given = thinking(std::string(", \"") + name + "\": 7");
    EXPECT_EQ(given->budget, 7);
    EXPECT_EQ(text(given->closing) + text(given->between), "\n</think>\n\n");
    EXPECT_EQ(refused_field(std::string(", \"") + name + "\": -7"), name);
  }
  EXPECT_EQ(refused_field(R"(, "thinking_budget": 1, "thinking_token_budget": 2)"), "thinking_token_budget");
}

TEST_F(ReasoningTest, AnAnswerThatIsContinuedHasThought) {
  engine_.set_chat_template("{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}<think>\n");
  const std::string user = R"({"role": "user", "content": "hi"}, {"role": "assistant", "content": ")";
  EXPECT_TRUE(thinking()->opened);
  EXPECT_FALSE(thinking("", user + R"(So"})"));
  EXPECT_FALSE(thinking("", user + R"(<think>a</think>So"})"));
  EXPECT_TRUE(thinking("", user + R"(<think>a"})")->opened);
}

TEST_F(ReasoningTest, IsReturnedBesideTheContent) {
  engine_.set_chat_template(published_template("qwen3").c_str());
  engine_.set_answer({"<thi", "nk>\nWh", "y?\n</think>\n", "\nSo."});
  for (const bool stream : {false, true}) {
    const ApiRequest request = chat(stream ? R"(, "stream": true)" : "");
    GenerationRun run(engine_, request);
    GenerationEvent event;
    std::string reasoning, content;
    WholeResponse whole(request, engine_.tokenizer());
    StreamResponse chunks(request, engine_.tokenizer());
    while (run.next(&event) == GenerationRun::Status::kEvent) {
      if (!stream) {
        whole.add(event, run);
        continue;
      }
      for (const Json& chunk : chunks.add(event, run)) {
        const Json& delta = chunk["choices"][0]["delta"];
        reasoning += delta.value("reasoning_content", "");
        content += delta.value("content", "");
      }
    }
    if (!stream) {
      const Json message = whole.json(run.usage())["choices"][0]["message"];
      reasoning = message["reasoning_content"];
      content = message["content"];
    }
    EXPECT_EQ(reasoning, "Why?");
    EXPECT_EQ(content, "So.");
  }
  const Json without = [&] {
    engine_.set_answer({"So."});
    const ApiRequest request = chat();
    GenerationRun run(engine_, request);
    GenerationEvent event;
    WholeResponse whole(request, engine_.tokenizer());
    while (run.next(&event) == GenerationRun::Status::kEvent) whole.add(event, run);
    return whole.json(run.usage())["choices"][0]["message"];
  }();
  EXPECT_FALSE(without.contains("reasoning_content"));
}

TEST_F(ReasoningTest, IsAnItemOfResponses) {
  engine_.set_chat_template(published_template("qwen3").c_str());
  engine_.set_answer({"<think>Wh", "y?</think>", "So."});
  const ResponsesRequest request =
      parse_responses(R"({"input": "hi", "reasoning": {"effort": "low"}, "thinking_budget": 9})", model_);
  EXPECT_EQ(request.chat.generations.front().thinking->budget, 9);
  GenerationRun run(engine_, request.chat);
  ResponsesStream stream(request);
  std::vector<std::string> types;
  const auto note = [&](const std::vector<Json>& events) {
    for (const Json& event : events) types.push_back(event["type"]);
  };
  GenerationEvent event;
  while (run.next(&event) == GenerationRun::Status::kEvent) note(stream.add(event, run));
  note(stream.finish(run.usage()));
  const std::vector<std::string> expected = {"response.output_item.added",    "response.content_part.added",
                                             "response.reasoning_text.delta", "response.reasoning_text.delta",
                                             "response.reasoning_text.done",  "response.content_part.done",
                                             "response.output_item.done",     "response.output_item.added",
                                             "response.content_part.added",   "response.output_text.delta",
                                             "response.output_text.done",     "response.content_part.done",
                                             "response.output_item.done",     "response.completed"};
  EXPECT_EQ(types, expected);
  const Json& output = stream.json()["output"];
  EXPECT_EQ(output[0]["type"], "reasoning");
  EXPECT_EQ(output[0]["content"], Json::array({{{"type", "reasoning_text"}, {"text", "Why?"}}}));
  EXPECT_EQ(output[1]["content"][0]["text"], "So.");
}

}  // namespace
}  // namespace smartkv::openai
