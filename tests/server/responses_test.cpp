// The Responses API: the requests that it accepts, and the events of its streams.
#include <gtest/gtest.h>

#include "server/openai/responses.h"
#include "tests/server/test_server.h"

namespace smartkv::openai {
namespace {

using smartkv::test::FakeEngine;

class ResponsesTest : public ::testing::Test {
 protected:
  ResponsesRequest parse(const std::string& fields) {
    return parse_responses("{\"input\": \"hi\"" + fields + "}", model_);
  }
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
  EXPECT_EQ(
      refused_field(
          R"({"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "async": true}]})"),
      "input[0].async");
  EXPECT_EQ(refused_field(R"({"input": "a", "previous_response_id": "r"})"), "previous_response_id");
  EXPECT_EQ(refused_field(R"({"input": "a", "conversation": "c"})"), "conversation");
  EXPECT_EQ(refused_field(R"({"input": "a", "max_output_tokens": 0})"), "max_output_tokens");
  EXPECT_EQ(refused_field(R"({"input": "a", "background": true})"), "background");
  EXPECT_EQ(refused_field(
                R"({"input": "a", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}})"),
            "text.format.schema.not");
  EXPECT_EQ(refused_field(R"({"input": "a", "frequency": 1})"), "frequency");
}

TEST_F(ResponsesTest, ErrorsNameThePlaceInTheRequest) {
  const auto refused = [&](const std::string& fields) {
    return refused_field("{\"instructions\": \"be\", " + fields + "}");
  };
  EXPECT_EQ(refused(R"("input": [{"role": "user", "content": "a"}, {"role": "robot", "content": "a"}])"),
            "input[1].role");
  EXPECT_EQ(refused(R"("input": [{"role": "user", "content": "a"}, {"role": "user", "content": 3}])"),
            "input[1].content");
  EXPECT_EQ(refused(R"("input": [{"role": "user", "content": [{"type": "input_image"}]}])"),
            "input[0].content[0].type");
  EXPECT_EQ(refused(R"("input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                                 {"type": "function_call", "call_id": "2", "name": "f", "arguments": 3}])"),
            "input[1].arguments");
  EXPECT_EQ(refused(R"("input": [])").substr(0, 5), "taken");
  EXPECT_EQ(refused_field(R"({"input": []})"), "input");
  EXPECT_EQ(refused(R"("input": "a", "tools": [{"type": "x", "name": "f"}])"), "tools[0].type");
  EXPECT_EQ(
      refused(R"("input": "a", "tools": [{"type": "function", "name": "f"}, {"type": "function", "name": "f f"}])"),
      "tools[1].name");
  EXPECT_EQ(refused(R"("input": "a", "tools": [{"type": "function", "name": "f", "other": 1}])"), "tools[0].other");
  EXPECT_EQ(
      refused(
          R"("input": "a", "tools": [{"type": "function", "name": "f", "strict": true, "parameters": {"not": {}}}], "tool_choice": "required")"),
      "tools[0].parameters.not");
  EXPECT_EQ(
      refused(
          R"("input": "a", "tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function", "name": "g"})"),
      "tool_choice.name");
  EXPECT_EQ(refused(R"("input": "a", "text": {"format": {"type": "xml"}})"), "text.format.type");
  EXPECT_EQ(refused(R"("input": "a", "temperature": 3)"), "temperature");
  engine_.set_context_length(5);
  EXPECT_EQ(refused_field(R"({"input": "a long text"})"), "input");
}

TEST_F(ResponsesTest, ErrorsQuoteTheClientsWordsAsTheyAre) {
  const auto message = [&](const std::string& body) {
    try {
      parse_responses(body, model_);
    } catch (const ApiError& error) {
      return std::string(error.what());
    }
    return std::string("taken");
  };
  EXPECT_EQ(message(R"({"input": "a", "model": "my-messages-model"})"), "The model 'my-messages-model' does not exist");
  EXPECT_EQ(message(R"({"input": "a", "max_output_tokens": 0})"),
            "'max_output_tokens': expected an integer of at least 1, found 0");
  EXPECT_EQ(message(R"({"input": [{"role": "messages[0].role", "content": "x"}]})"),
            "'input[0].role': expected system, developer, user, assistant or tool, found \"messages[0].role\"");
  EXPECT_EQ(message(R"({"input": "a", "tools": [{"type": "function", "name": "f", "max_tokens": 1}]})"),
            "Unrecognized request argument supplied: tools[0].max_tokens");
}

TEST_F(ResponsesTest, ErrorsOfTheEngineNameItsFieldsToo) {
  smartkv::test::TestServer server;
  server.engine.set_submit_error(RequestError(RequestError::Kind::kTooLarge, "max_tokens", "'max_tokens': too many"));
  const Json error = Json::parse(server.post("/v1/responses", R"({"input": "a"})")->body)["error"];
  EXPECT_EQ(error["param"], "max_output_tokens");
  EXPECT_EQ(error["message"], "'max_output_tokens': too many");
  server.engine.set_submit_error(RequestError(RequestError::Kind::kInvalid, "grammar", "grammar: bad"));
  const char* body = R"({"input": "a", "text": {"format": {"type": "json_object"}}})";
  EXPECT_EQ(Json::parse(server.post("/v1/responses", body)->body)["error"]["param"], "text.format");
}

TEST_F(ResponsesTest, TakesItsOwnAnswersBack) {
  engine_.set_answer({R"({"name": "f", "arguments": {"n": 1}})"});
  const std::string tools =
      R"("tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}], "tool_choice": "required")";
  std::vector<Json> events;
  Json answer = run(parse(", " + tools), &events);
  // As a client may send it: the fields that the answer repeats from the request, and its items.
  Json again = answer;
  for (const char* key :
       {"id", "object", "created_at", "status", "error", "incomplete_details", "output", "usage", "model"})
    again.erase(key);
  again["input"] = answer["output"];
  again["input"].insert(again["input"].begin(), Json{{"role", "user"}, {"content", "hi"}});
  again["input"].push_back(
      {{"type", "function_call_output"}, {"call_id", answer["output"][0]["call_id"]}, {"output", "r"}});
  again["tool_choice"] = "none";
  EXPECT_EQ(refused_field(again.dump()), "taken");
  EXPECT_EQ(prompt(again.dump()),
            "user:hi\nassistant:{\"name\":\"f\",\"arguments\":{\"n\":1}}\nuser:Result of f: r\nassistant:");
}

TEST_F(ResponsesTest, TakesReasoningThatIsNotItsOwn) {
  for (const char* fields :
       {R"(, "reasoning": {})", R"(, "reasoning": {"effort": null, "summary": null})",
        R"(, "reasoning": {"effort": "none", "summary": "auto"})", R"(, "include": ["reasoning.encrypted_content"])",
        R"(, "include": [])", R"(, "include": null, "reasoning": null)"}) {
    EXPECT_NO_THROW(parse(fields)) << fields;
  }
  EXPECT_EQ(refused_field(R"({"input": "a", "reasoning": {"effort": "high"}})"), "reasoning.effort");
  EXPECT_EQ(refused_field(R"({"input": "a", "reasoning": {"budget": 1}})"), "reasoning.budget");
  EXPECT_EQ(refused_field(R"({"input": "a", "include": ["message.output_text.logprobs"]})"), "include[0]");
  engine_.set_chat_template(
      "{% for m in messages %}{{ m.role }}:{{ m.content }}({{ m.reasoning_content }}){% endfor %}");
  EXPECT_EQ(prompt(R"({"input": [{"role": "user", "content": "a"},
      {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "gAAA", "status": "completed"},
      {"type": "reasoning", "id": "rs_2", "summary": [], "content": [{"type": "reasoning_text", "text": "why"}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]}, {"role": "user", "content": "c"}]})"),
            "user:a()assistant:b(why)user:c()");
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
  EXPECT_EQ(
      types,
      "created in_progress output_item.added content_part.added output_text.delta output_text.delta output_text.delta "
      "output_text.done content_part.done output_item.done completed ");
}

TEST_F(ResponsesTest, CallsAreItemsOfTheirOwn) {
  engine_.set_answer({R"({"name": "f", "arguments")", R"(: {"n": 1}})"});
  std::vector<Json> events;
  const Json response = run(
      parse(
          R"(, "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}], "tool_choice": "required")"),
      &events);
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
