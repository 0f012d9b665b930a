// The Responses API: what it takes, and what a stream tells.
#include <gtest/gtest.h>

#include "server/openai/responses.h"
#include "tests/server/fake_engine.h"

namespace smartkv::openai {
namespace {

using smartkv::testing::FakeEngine;

class ResponsesTest : public ::testing::Test {
 protected:
  ResponsesRequest parse(const std::string& fields) { return parse_responses("{\"input\": \"hi\"" + fields + "}", model_); }
  std::string refused_field(const std::string& body) {
    try {
      parse_responses(body, model_);
    } catch (const ApiError& error) {
      return error.param;
    }
    return "taken";
  }
  std::string prompt(const std::string& body) {
    return engine_.tokenizer().decode(parse_responses(body, model_).chat.generations.front().prompt, false);
  }
  Json run(const ResponsesRequest& request, std::vector<Json>* events) {
    GenerationRun run(engine_, request.chat);
    ResponsesStream stream(request);
    *events = stream.start();
    const auto append = [&](std::vector<Json> more) { events->insert(events->end(), more.begin(), more.end()); };
    GenerationEvent event;
    for (;;) {
      const auto status = run.next(&event);
      if (status == GenerationRun::Status::kEnd) break;
      if (status == GenerationRun::Status::kEvent) append(stream.add(event, run));
    }
    append(stream.finish(run.usage()));
    return stream.json();
  }

  FakeEngine engine_;
  ServedModel model_{.engine = engine_, .names = {"fake"}};
};

TEST_F(ResponsesTest, TakesTurnsOfEveryKind) {
  EXPECT_EQ(prompt(R"({"input": "a", "instructions": "be"})"), "system:be\nuser:a\nassistant:");
  EXPECT_EQ(prompt(R"({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                      {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
                      {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "async": false, "caller": null},
                      {"type": "function_call_output", "call_id": "1", "output": "r"}]})"),
            "user:a\nassistant:b\n{\"name\":\"f\",\"arguments\":{}}\nuser:Result of f: r\nassistant:");
}

TEST_F(ResponsesTest, TakesWhatBenchmarksSend) {
  EXPECT_TRUE(parse(R"(, "ignore_eos": true, "stop": null)").chat.generations.front().ignore_eos);
  EXPECT_FALSE(parse("").chat.generations.front().ignore_eos);
}

TEST_F(ResponsesTest, RefusesByItsOwnFields) {
  EXPECT_EQ(refused_field("{}"), "input");
  EXPECT_EQ(refused_field(R"({"input": [{"type": "image"}]})"), "input[0].type");
  EXPECT_EQ(refused_field(R"({"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "async": true}]})"), "input[0].async");
  EXPECT_EQ(refused_field(R"({"input": "a", "previous_response_id": "r"})"), "previous_response_id");
  EXPECT_EQ(refused_field(R"({"input": "a", "max_output_tokens": 0})"), "max_output_tokens");
  EXPECT_EQ(refused_field(R"({"input": "a", "background": true})"), "background");
  EXPECT_EQ(refused_field(R"({"input": "a", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}})"),
            "text.format.schema.not");
  EXPECT_EQ(refused_field(R"({"input": "a", "frequency": 1})"), "frequency");
}

TEST_F(ResponsesTest, TextComesInEventsAndWhole) {
  std::vector<Json> events;
  const Json response = run(parse(R"(, "max_output_tokens": 9)"), &events);
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "Paris.");
  EXPECT_EQ(response["usage"]["output_tokens"], 6);
  std::string text, types;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["sequence_number"], i);
    const auto type = events[i]["type"].get<std::string>();
    types += type.substr(std::string("response.").size()) + " ";
    if (type == "response.output_text.delta") text += events[i]["delta"];
  }
  EXPECT_EQ(text, "Paris.");
  EXPECT_EQ(types, "created in_progress output_item.added content_part.added output_text.delta output_text.delta output_text.delta "
                   "output_text.done content_part.done output_item.done completed ");
}

TEST_F(ResponsesTest, CallsAreItemsOfTheirOwn) {
  engine_.set_answer({R"({"name": "f", "arguments")", R"(: {"n": 1}})"});
  std::vector<Json> events;
  const Json response = run(parse(R"(, "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}], "tool_choice": "required")"), &events);
  EXPECT_EQ(response["output"][0]["type"], "function_call");
  EXPECT_EQ(response["output"][0]["arguments"], R"({"n": 1})");
  EXPECT_EQ(events.back()["response"]["output"], response["output"]);
}

TEST_F(ResponsesTest, WhatIsCutOffSaysSo) {
  engine_.set_answer({"Pa"}, FinishReason::kLength);
  std::vector<Json> events;
  const Json response = run(parse(""), &events);
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(events.back()["type"], "response.incomplete");
}

}  // namespace
}  // namespace smartkv::openai
