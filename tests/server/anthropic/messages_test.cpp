// The Messages API: the requests that it accepts, and the events of its streams.
#include "server/anthropic/messages.h"

#include <functional>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/test_server.h"
#include "tests/text/template_file.h"

namespace smartkv::anthropic {
namespace {

using openai::AnswerPiece;
using openai::ApiError;
using smartkv::test::FakeEngine;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MessagesTest : public ::testing::Test {
 protected:
  // Parses a request with these messages and other fields (", \"temperature\": 1").
  MessagesRequest parse(const std::string& messages, const std::string& fields = "") {
    return parse_messages("{\"max_tokens\": 50, \"messages\": " + messages + fields + "}", model_);
  }
  MessagesRequest with(const std::string& fields) { return parse(R"([{"role": "user", "content": "hi"}])", fields); }
  std::string prompt(const std::string& messages, const std::string& fields = "") {
    return engine_.tokenizer().decode(parse(messages, fields).chat.generations.front().prompt, false);
  }
  std::string refusal(const std::function<void()>& parse_it) {
    try {
      parse_it();
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400);
      const bool named = std::string(error.what()).find(error.param) != std::string::npos;
      EXPECT_TRUE(named || error.code == "context_length_exceeded")
          << error.param << " is not named by " << error.what();
      return error.param;
    }
    return "taken";
  }
  std::string refused_messages(const std::string& messages) {
    return refusal([&] { parse(messages); });
  }
  std::string refused(const std::string& fields) {
    return refusal([&] { with(fields); });
  }
  std::string refused_block(const std::string& role, const std::string& block) {
    return refused_messages(R"([{"role": "user", "content": "hi"}, {"role": ")" + role + R"(", "content": [)" + block +
                            "]}]");
  }
  Json run(const MessagesRequest& request, std::vector<Json>* events) {
    openai::GenerationRun run(engine_, request.chat);
    MessagesStream stream(request);
    *events = stream.start();
    const auto append = [&](std::vector<Json> more) { events->insert(events->end(), more.begin(), more.end()); };
    GenerationEvent event;
    for (;;) {
      const auto status = run.next(&event);
      if (status == openai::GenerationRun::Status::kEnd) break;
      if (status == openai::GenerationRun::Status::kEvent) append(stream.add(event, run));
    }
    append(stream.finish(run.usage()));
    return stream.json();
  }
  Json run(const MessagesRequest& request) {
    std::vector<Json> events;
    return run(request, &events);
  }

  FakeEngine engine_;
  openai::ServedModel model_{.engine = engine_, .names = {"fake"}, .signing_key = "key"};
};

std::vector<std::string> types_of(const std::vector<Json>& events) {
  std::vector<std::string> types;
  for (const Json& event : events) {
    const std::string type = event["type"];
    types.push_back(type == "content_block_delta" ? event["delta"]["type"].get<std::string>() : type);
  }
  return types;
}

// Returns the message that a client puts together from the events of a stream.
Json put_together(const std::vector<Json>& events) {
  Json message;
  std::string input;
  for (const Json& event : events) {
    const std::string type = event["type"];
    if (type == "message_start") message = event["message"];
    if (type == "content_block_start") message["content"].push_back(event["content_block"]);
    if (type == "content_block_delta") {
      const Json& delta = event["delta"];
      Json& block = message["content"][event["index"].get<size_t>()];
      if (delta["type"] == "text_delta")
        block["text"] = block["text"].get<std::string>() + delta["text"].get<std::string>();
      if (delta["type"] == "thinking_delta")
        block["thinking"] = block["thinking"].get<std::string>() + delta["thinking"].get<std::string>();
      if (delta["type"] == "signature_delta") block["signature"] = delta["signature"];
      if (delta["type"] == "input_json_delta") input += delta["partial_json"].get<std::string>();
    }
    if (type == "content_block_stop" && !input.empty())
      message["content"][event["index"].get<size_t>()]["input"] = Json::parse(std::exchange(input, {}));
    if (type == "message_delta") {
      message.update(event["delta"]);
      message["usage"] = event["usage"];
    }
  }
  return message;
}

const std::string kTool =
    R"({"name": "f", "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}}})";

TEST_F(MessagesTest, TakesTurnsOfEveryKind) {
  EXPECT_EQ(prompt(R"([{"role": "user", "content": "a"}])", R"(, "system": "be")"), "system:be\nuser:a\nassistant:");
  EXPECT_EQ(prompt(R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                       {"role": "assistant", "content": [{"type": "text", "text": "c", "citations": null},
                          {"type": "tool_use", "id": "t1", "name": "f", "input": {"n": 1}, "caller": {"type": "direct"}},
                          {"type": "tool_use", "id": "t2", "name": "g", "input": {}, "caller": null}]},
                       {"role": "user", "content": [
                          {"type": "tool_result", "tool_use_id": "t1", "content": "one"},
                          {"type": "tool_result", "tool_use_id": "t2", "is_error": true, "content": [{"type": "text", "text": "two"}]},
                          {"type": "text", "text": "d"}]}])",
                   R"(, "system": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}])"),
            "system:x\ny\nuser:a\nb\nassistant:c\n[{\"name\":\"f\",\"arguments\":{\"n\":1}},{\"name\":\"g\","
            "\"arguments\":{}}]\n"
            "user:Result of f: one\nuser:Result of g: Error:\ntwo\nuser:d\nassistant:");
}

TEST_F(MessagesTest, MessagesOfOneRoleBecomeOne) {
  EXPECT_EQ(prompt(R"([{"role": "user", "content": "a"}, {"role": "user", "content": "b"},
                       {"role": "assistant", "content": "c"}, {"role": "assistant", "content": "d"},
                       {"role": "user", "content": "e"}])"),
            "user:a\nb\nassistant:c\nd\nuser:e\nassistant:");
  EXPECT_EQ(
      prompt(R"([{"role": "user", "content": "a"}, {"role": "system", "content": [{"type": "text", "text": "now"}]},
                       {"role": "user", "content": "b"}])"),
      "user:a\nsystem:now\nuser:b\nassistant:");
}

TEST_F(MessagesTest, AResultWithoutContentIsEmpty) {
  const std::string call = R"([{"role": "user", "content": "a"},
      {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t")";
  for (const char* content : {"", R"(, "content": "")", R"(, "content": [])", R"(, "content": null)"}) {
    EXPECT_EQ(prompt(call + content + "}]}]"),
              "user:a\nassistant:{\"name\":\"f\",\"arguments\":{}}\nuser:Result of f: \nassistant:")
        << content;
  }
}

TEST_F(MessagesTest, AnAssistantsTextAtTheEndIsContinued) {
  EXPECT_EQ(prompt(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "The answer is ("}])"),
            "user:a\nassistant:The answer is (");
  EXPECT_EQ(
      prompt(
          R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "{"}]}])"),
      "user:a\nassistant:{");
  EXPECT_EQ(refused_messages(R"([{"role": "user", "content": "a"},
      {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}])"),
            "messages");
}

TEST_F(MessagesTest, RefusesMessagesByTheirPlace) {
  EXPECT_EQ(refused_messages("[]"), "messages");
  EXPECT_EQ(refused_messages("{}"), "messages");
  EXPECT_EQ(refused_messages(R"("hi")"), "messages");
  EXPECT_EQ(refused_messages("[1]"), "messages[0]");
  EXPECT_EQ(refused_messages(R"([{"role": "user"}])"), "messages[0].content");
  EXPECT_EQ(refused_messages(R"([{"content": "a"}])"), "messages[0].role");
  EXPECT_EQ(refused_messages(R"([{"role": "tool", "content": "a"}])"), "messages[0].role");
  EXPECT_EQ(refused_messages(R"([{"role": "user", "content": 3}])"), "messages[0].content");
  EXPECT_EQ(refused_messages(R"([{"role": "user", "content": []}])"), "messages[0].content");
  EXPECT_EQ(refused_messages(R"([{"role": "user", "content": "a", "name": "n"}])"), "messages[0].name");
  EXPECT_EQ(refused_messages(R"([{"role": "user", "content": [3]}])"), "messages[0].content[0]");
  EXPECT_EQ(refused_messages(R"([{"role": "system", "content": 3}])"), "messages[0].content");
}

TEST_F(MessagesTest, RefusesBlocksByTheirPlace) {
  const std::string block = "messages[1].content[0]";
  for (const char* type : {"image", "document"}) {
    const std::string media =
        std::string(R"({"type": ")") + type + R"(", "source": {"type": "url", "url": "http://a"}})";
    EXPECT_EQ(refused_block("user", media), block + ".type") << type;
    EXPECT_EQ(refused_block("assistant", media), block + ".type") << type;
  }
  for (const char* type : {"server_tool_use", "web_search_tool_result", "search_result", "container_upload", ""}) {
    EXPECT_EQ(refused_block("user", std::string(R"({"type": ")") + type + "\"}"), block + ".type") << type;
  }
  EXPECT_EQ(refused_block("user", R"({"type": "tool_use", "id": "t", "name": "f", "input": {}})"), block + ".type");
  EXPECT_EQ(refused_block("user", R"({"type": "thinking", "thinking": "a", "signature": "s"})"), block + ".type");
  EXPECT_EQ(refused_block("assistant", R"({"type": "tool_result", "tool_use_id": "t"})"), block + ".type");
  EXPECT_EQ(refused_block("user", R"({"text": "a"})"), block + ".type");
  EXPECT_EQ(refused_block("user", R"({"type": 3})"), block + ".type");
  EXPECT_EQ(refused_block("user", R"({"type": "text"})"), block + ".text");
  EXPECT_EQ(refused_block("user", R"({"type": "text", "text": 3})"), block + ".text");
  EXPECT_EQ(refused_block("user", R"({"type": "text", "text": "a", "size": 3})"), block + ".size");
  EXPECT_EQ(refused_block("user", R"({"type": "text", "text": "a", "citations": [{}]})"), block + ".citations");
  EXPECT_EQ(refused_block("user", R"({"type": "tool_result", "tool_use_id": "t"})"), block + ".tool_use_id");
  EXPECT_EQ(refused_block("user", R"({"type": "tool_result"})"), block + ".tool_use_id");
  EXPECT_EQ(refused_block("assistant", R"({"type": "tool_use", "name": "f", "input": {}})"), block + ".id");
  EXPECT_EQ(refused_block("assistant", R"({"type": "tool_use", "id": "t", "input": {}})"), block + ".name");
  EXPECT_EQ(refused_block("assistant", R"({"type": "tool_use", "id": "t", "name": "f"})"), block + ".input");
  EXPECT_EQ(refused_block("assistant", R"({"type": "tool_use", "id": "t", "name": "f", "input": "{}"})"),
            block + ".input");
  EXPECT_EQ(refused_block("assistant",
                          R"({"type": "tool_use", "id": "t", "name": "f", "input": {}, "caller": {"type": "x"}})"),
            block + ".caller");
  EXPECT_EQ(refused_block("assistant", R"({"type": "thinking", "thinking": "a"})"), block + ".signature");
  EXPECT_EQ(refused_block("assistant", R"({"type": "thinking", "signature": "a"})"), block + ".thinking");
  EXPECT_EQ(refused_block("assistant", R"({"type": "redacted_thinking"})"), block + ".data");
  EXPECT_EQ(refused_messages(R"([{"role": "user", "content": "a"},
      {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "a"},
         {"type": "image", "source": {}}]}]}])"),
            "messages[2].content[0].content[1].type");
}

TEST_F(MessagesTest, RefusesFieldsByName) {
  EXPECT_EQ(refusal([&] { parse_messages("{}", model_); }), "messages");
  EXPECT_EQ(refusal([&] { parse_messages(R"({"messages": [{"role": "user", "content": "a"}]})", model_); }),
            "max_tokens");
  for (const char* limit : {"0", "-1", "1.5", "\"9\"", "1e30"}) {
    const std::string body = R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": )";
    EXPECT_EQ(refusal([&] { parse_messages(body + limit + "}", model_); }), "max_tokens") << limit;
  }
  EXPECT_EQ(refused(R"(, "temperature": 3)"), "temperature");
  EXPECT_EQ(refused(R"(, "top_p": 2)"), "top_p");
  EXPECT_EQ(refused(R"(, "top_k": -2)"), "top_k");
  EXPECT_EQ(refused(R"(, "stream": "yes")"), "stream");
  EXPECT_EQ(refused(R"(, "system": 3)"), "system");
  EXPECT_EQ(refused(R"(, "system": [{"type": "image"}])"), "system[0].type");
  EXPECT_EQ(refused(R"(, "system": [{"type": "text"}])"), "system[0].text");
  EXPECT_EQ(refused(R"(, "stop_sequences": "a")"), "stop_sequences");
  EXPECT_EQ(refused(R"(, "stop_sequences": [3])"), "stop_sequences[0]");
  EXPECT_EQ(refused(R"(, "stop_sequences": [")" + std::string(1025, 'a') + "\"]"), "stop_sequences");
  EXPECT_EQ(refused(R"(, "stop": ["a"])"), "stop");
  EXPECT_EQ(refused(R"(, "metadata": {"user": "a"})"), "metadata.user");
  EXPECT_EQ(refused(R"(, "metadata": {"user_id": 3})"), "metadata.user_id");
  EXPECT_EQ(refused(R"(, "service_tier": 3)"), "service_tier");
  EXPECT_EQ(refused(R"(, "container": "c")"), "container");
  EXPECT_EQ(refused(R"(, "mcp_servers": [{}])"), "mcp_servers");
  EXPECT_EQ(refused(R"(, "speed": "fast")"), "speed");
  EXPECT_EQ(refused(R"(, "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]})"),
            "context_management.edits[0].type");
  EXPECT_EQ(
      refused(
          R"(, "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}]})"),
      "context_management.edits[0].keep");
  EXPECT_EQ(refused(R"(, "kv_cache": 3)"), "kv_cache");
  EXPECT_EQ(refused(R"(, "chat_template_kwargs": 3)"), "chat_template_kwargs");
  EXPECT_EQ(refused(R"(, "chat_template_kwargs": 3, "thinking": {"type": "disabled"})"), "chat_template_kwargs");
  EXPECT_EQ(refused(R"(, "chat_template_kwargs": {"messages": []})"), "chat_template_kwargs");
  EXPECT_EQ(refused(R"(, "frequency": 1)"), "frequency");
  engine_.set_context_length(60);
  EXPECT_EQ(refused_messages(R"([{"role": "user", "content": ")" + std::string(100, 'a') + "\"}]"), "messages");
}

TEST_F(MessagesTest, FieldsReachTheGeneration) {
  const MessagesRequest request = with(
      R"(, "temperature": 0.5, "top_p": 0.25, "top_k": 7, "stop_sequences": ["a", "b"], "seed": 3, "stream": true,
         "metadata": {"user_id": null}, "service_tier": "auto", "kv_cache": "tiny", "speculative": {"method": "ngram"},
         "cache_salt": "s", "ignore_eos": true, "mcp_servers": [], "container": null, "speed": "standard",
         "diagnostics": {"previous_message_id": null}, "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})");
  const GenerationRequest& generation = request.chat.generations.front();
  EXPECT_EQ(generation.max_tokens, 50);
  EXPECT_FLOAT_EQ(generation.sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(generation.sampling.top_p, 0.25F);
  EXPECT_EQ(generation.sampling.top_k, 7);
  EXPECT_EQ(generation.sampling.seed, 3u);
  EXPECT_THAT(generation.stop, ElementsAre("a", "b"));
  EXPECT_EQ(generation.kv_cache, "tiny");
  EXPECT_EQ(generation.speculative["method"], "ngram");
  EXPECT_EQ(generation.cache_salt, "s");
  EXPECT_TRUE(generation.ignore_eos);
  EXPECT_TRUE(request.chat.stream);
  EXPECT_TRUE(generation.id.starts_with("msg_"));
}

TEST_F(MessagesTest, CacheControlStandsAtEveryPlace) {
  const std::string mark = R"("cache_control": {"type": "ephemeral")";
  const std::string turns = R"([{"role": "user", "content": [{"type": "text", "text": "a", )" + mark +
                            R"(, "ttl": "1h"}}]},
      {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}, )" +
                            mark + R"(}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", )" +
                            mark + R"(, "scope": "global"}}]}])";
  EXPECT_EQ(parse(turns).cache_ttl, "1h");
  EXPECT_EQ(parse(turns, R"(, "system": [{"type": "text", "text": "s", )" + mark + "}}]").cache_ttl, "1h");
  EXPECT_EQ(with(", " + mark + "}").cache_ttl, "5m");
  EXPECT_EQ(with(R"(, "cache_control": null)").cache_ttl, "");
  EXPECT_EQ(with(R"(, "tools": [{"name": "f", "input_schema": {}, )" + mark + "}}]").cache_ttl, "5m");
  EXPECT_EQ(
      refusal([&] { parse(turns, R"(, "system": [{"type": "text", "text": "s", )" + mark + R"(}}], )" + mark + "}"); }),
      "messages[2].content[0].cache_control");  // the fifth
  EXPECT_EQ(refused(R"(, "cache_control": {"type": "persistent"})"), "cache_control.type");
  EXPECT_EQ(refused(R"(, "cache_control": {})"), "cache_control.type");
  EXPECT_EQ(refused(R"(, "cache_control": "ephemeral")"), "cache_control");
  EXPECT_EQ(refused(R"(, "cache_control": {"type": "ephemeral", "ttl": "1d"})"), "cache_control.ttl");
  EXPECT_EQ(refused(R"(, "cache_control": {"type": "ephemeral", "until": 3})"), "cache_control.until");
  EXPECT_EQ(refused_block("user", R"({"type": "text", "text": "a", "cache_control": {"type": "x"}})"),
            "messages[1].content[0].cache_control.type");
  EXPECT_EQ(refused_block(
                "assistant",
                R"({"type": "thinking", "thinking": "a", "signature": "s", "cache_control": {"type": "ephemeral"}})"),
            "messages[1].content[0].cache_control");
}

TEST_F(MessagesTest, ToolsAndTheirChoice) {
  const std::string tools = R"(, "tools": [)" + kTool +
                            R"(, {"type": "custom", "name": "g", "description": "d", "input_schema": {"type": "object"},
      "input_examples": [{"a": 1}], "strict": false, "eager_input_streaming": true, "defer_loading": false, "allowed_callers": ["direct"]}])";
  const auto choice = [&](const std::string& text) { return with(tools + R"(, "tool_choice": )" + text).chat.tools; };
  const auto all = with(tools).chat.tools;
  ASSERT_EQ(all->functions.size(), 2u);
  EXPECT_EQ(all->choice, openai::ToolUse::Choice::kAuto);
  EXPECT_TRUE(all->parallel);
  EXPECT_EQ(all->functions[1].declaration["function"]["description"], "d\n\nExamples of the input:\n{\"a\":1}");
  EXPECT_EQ(choice(R"({"type": "any"})")->choice, openai::ToolUse::Choice::kRequired);
  EXPECT_FALSE(choice(R"({"type": "any", "disable_parallel_tool_use": true})")->parallel);
  EXPECT_FALSE(choice(R"({"type": "auto", "disable_parallel_tool_use": true})")->parallel);
  EXPECT_EQ(choice(R"({"type": "tool", "name": "g"})")->functions.size(), 1u);
  EXPECT_FALSE(choice(R"({"type": "none"})").has_value());
  const std::string long_name(128, 'n');
  EXPECT_TRUE(with(R"(, "tools": [{"name": ")" + long_name + R"(", "input_schema": {}}])").chat.tools.has_value());
}

TEST_F(MessagesTest, RefusesToolsByTheirPlace) {
  const auto tool = [&](const std::string& text) {
    return refused(R"(, "tools": [{"name": "e", "input_schema": {}}, )" + text + "]");
  };
  for (const char* type : {"web_search_20250305", "bash_20250124", "text_editor_20250728", "computer_20250124"}) {
    EXPECT_EQ(tool(std::string(R"({"name": "f", "type": ")") + type + "\"}"), "tools[1].type") << type;
  }
  EXPECT_EQ(tool("3"), "tools[1]");
  EXPECT_EQ(tool(R"({"input_schema": {}})"), "tools[1].name");
  EXPECT_EQ(tool(R"({"name": "f f", "input_schema": {}})"), "tools[1].name");
  EXPECT_EQ(tool(R"({"name": "e", "input_schema": {}})"), "tools[1].name");
  EXPECT_EQ(tool(R"({"name": "f"})"), "tools[1].input_schema");
  EXPECT_EQ(tool(R"({"name": "f", "input_schema": []})"), "tools[1].input_schema");
  EXPECT_EQ(tool(R"({"name": "f", "input_schema": {"type": "array"}, "strict": true})"), "tools[1].input_schema.type");
  EXPECT_EQ(
      tool(R"({"name": "f", "input_schema": {"type": "object", "properties": {"a": {"not": {}}}}, "strict": true})"),
      "tools[1].input_schema.properties.a.not");
  EXPECT_EQ(tool(R"({"name": "f", "input_schema": {}, "description": 3})"), "tools[1].description");
  EXPECT_EQ(tool(R"({"name": "f", "input_schema": {}, "strict": 3})"), "tools[1].strict");
  EXPECT_EQ(tool(R"({"name": "f", "input_schema": {}, "defer_loading": true})"), "tools[1].defer_loading");
  EXPECT_EQ(tool(R"({"name": "f", "input_schema": {}, "allowed_callers": ["code_execution_20250825"]})"),
            "tools[1].allowed_callers");
  EXPECT_EQ(tool(R"({"name": "f", "input_schema": {}, "input_examples": [3]})"), "tools[1].input_examples[0]");
  EXPECT_EQ(tool(R"({"name": "f", "input_schema": {}, "parameters": {}})"), "tools[1].parameters");
  EXPECT_EQ(tool(R"({"name": "f", "input_schema": {}, "max_tokens": 3})"), "tools[1].max_tokens");
  const std::string tools = R"(, "tools": [{"name": "f", "input_schema": {}}], "tool_choice": )";
  EXPECT_EQ(refused(tools + R"("auto")"), "tool_choice");
  EXPECT_EQ(refused(tools + R"({"type": "required"})"), "tool_choice.type");
  EXPECT_EQ(refused(tools + R"({"type": "tool"})"), "tool_choice.name");
  EXPECT_EQ(refused(tools + R"({"type": "tool", "name": "g"})"), "tool_choice.name");
  EXPECT_EQ(refused(tools + R"({"type": "auto", "name": "f"})"), "tool_choice.name");
  EXPECT_EQ(refused(tools + R"({"type": "any", "disable_parallel_tool_use": 1})"),
            "tool_choice.disable_parallel_tool_use");
  EXPECT_EQ(refused(R"(, "tool_choice": {"type": "any"})"), "tool_choice");
}

TEST_F(MessagesTest, AnOutputFormatIsAGrammar) {
  const std::string format = R"(, "output_config": {"format": {"type": "json_schema", "schema": )";
  EXPECT_FALSE(with(format + R"({"type": "object"}}})").chat.generations.front().grammar.empty());
  EXPECT_TRUE(
      with(R"(, "output_config": {"effort": "high", "format": null})").chat.generations.front().grammar.empty());
  EXPECT_EQ(refused(format + R"({"not": {}}}})"), "output_config.format.schema.not");
  EXPECT_EQ(refused(format + "3}}"), "output_config.format.schema");
  EXPECT_EQ(refused(R"(, "output_config": {"format": {"type": "text"}})"), "output_config.format.type");
  EXPECT_EQ(refused(R"(, "output_config": {"effort": "most"})"), "output_config.effort");
  EXPECT_EQ(refused(R"(, "output_config": {"style": 1})"), "output_config.style");
}

TEST_F(MessagesTest, ABudgetAndAnEffortSteerTheThinking) {
  engine_.set_chat_template((test::published_template("qwen3") + "{{ reasoning_effort }}").c_str());
  engine_.set_context_length(9000);
  const auto generation = [&](const std::string& fields) {
    const std::string body = R"({"max_tokens": 2000, "messages": [{"role": "user", "content": "hi"}])" + fields + "}";
    return parse_messages(body, model_).chat.generations.front();
  };
  const auto budget = [&](const std::string& fields) { return generation(fields).thinking.value().budget; };
  EXPECT_EQ(budget(""), -1);
  EXPECT_EQ(budget(R"(, "thinking": {"type": "enabled", "budget_tokens": 1024})"), 1024);
  const std::string with_effort =
      engine_.tokenizer().decode(generation(R"(, "output_config": {"effort": "low"})").prompt, false);
  EXPECT_TRUE(with_effort.ends_with("low")) << with_effort;
}

TEST_F(MessagesTest, ThinkingSetsTheVariableOfTemplates) {
  engine_.set_chat_template("{{ enable_thinking }}{{ thinking }}|{{ depth }}");
  const auto text = [&](const std::string& fields) {
    const std::string body = R"({"max_tokens": 2000, "messages": [{"role": "user", "content": "hi"}])" + fields + "}";
    return engine_.tokenizer().decode(parse_messages(body, model_).chat.generations.front().prompt, false);
  };
  engine_.set_context_length(9000);
  EXPECT_EQ(text(""), "|");
  EXPECT_EQ(text(R"(, "thinking": {"type": "enabled", "budget_tokens": 1024})"), "TrueTrue|");
  EXPECT_EQ(text(R"(, "thinking": {"type": "adaptive"}, "chat_template_kwargs": {"depth": 2})"), "TrueTrue|2");
  EXPECT_EQ(text(R"(, "thinking": {"type": "disabled"})"), "FalseFalse|");
  const auto refused_thinking = [&](const std::string& thinking) {
    return refusal([&] { text(", \"thinking\": " + thinking); });
  };
  EXPECT_EQ(refused_thinking(R"("enabled")"), "thinking");
  EXPECT_EQ(refused_thinking(R"({})"), "thinking.type");
  EXPECT_EQ(refused_thinking(R"({"type": "on"})"), "thinking.type");
  EXPECT_EQ(refused_thinking(R"({"type": "enabled"})"), "thinking.budget_tokens");
  EXPECT_EQ(refused_thinking(R"({"type": "enabled", "budget_tokens": 1023})"), "thinking.budget_tokens");
  EXPECT_EQ(refused_thinking(R"({"type": "enabled", "budget_tokens": 2000})"), "thinking.budget_tokens");
  EXPECT_EQ(refused_thinking(R"({"type": "adaptive", "budget_tokens": 1024})"), "thinking.budget_tokens");
  EXPECT_EQ(refused_thinking(R"({"type": "disabled", "display": "omitted"})"), "thinking.display");
  EXPECT_EQ(refused_thinking(R"({"type": "adaptive", "display": "full"})"), "thinking.display");
  EXPECT_EQ(refused_thinking(R"({"type": "adaptive"}, "chat_template_kwargs": {"enable_thinking": false})"),
            "chat_template_kwargs.enable_thinking");
}

TEST_F(MessagesTest, ThinkingOfTheHistoryIsShownIfThisServerSignedIt) {
  engine_.set_chat_template(
      "{% for m in messages %}{{ m.role }}:{{ m.content }}({{ m.reasoning_content }}){% endfor %}");
  const auto history = [&](const std::string& thinking, const std::string& signature) {
    return R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "thinking", "thinking": ")" +
           thinking + R"(", "signature": ")" + signature +
           R"("}, {"type": "text", "text": "b"}]}, {"role": "user", "content": "c"}])";
  };
  const ThinkingSigner signer("key");
  EXPECT_EQ(prompt(history("why", signer.sign("why"))), "user:a()assistant:b(why)user:c()");
  EXPECT_EQ(prompt(history("", signer.seal("why"))), "user:a()assistant:b(why)user:c()");
  EXPECT_EQ(prompt(history("why not", signer.sign("why"))), "user:a()assistant:b()user:c()");
  EXPECT_EQ(parse(history("why not", signer.sign("why"))).ignored_thinking, 1);
  EXPECT_EQ(parse(history("why", signer.sign("why"))).ignored_thinking, 0);
  const MessagesRequest redacted = parse(
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "Ep"}]},
          {"role": "user", "content": "c"}])");
  EXPECT_EQ(redacted.ignored_thinking, 1);
  EXPECT_EQ(run(redacted)["usage"]["smartkv"]["prompt_tokens_details"]["ignored_thinking"], 1);
}

TEST_F(MessagesTest, TextComesInEventsAndWhole) {
  std::vector<Json> events;
  const Json message = run(with(""), &events);
  EXPECT_THAT(types_of(events), ElementsAre("message_start", "ping", "content_block_start", "text_delta", "text_delta",
                                            "text_delta", "content_block_stop", "message_delta", "message_stop"));
  EXPECT_EQ(put_together(events), message);
  EXPECT_TRUE(message["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(message["type"], "message");
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["model"], "fake");
  EXPECT_EQ(message["content"], Json::array({{{"type", "text"}, {"text", "Paris."}}}));
  EXPECT_EQ(message["stop_reason"], "end_turn");
  EXPECT_EQ(message["stop_sequence"], nullptr);
  const Json start = events.front()["message"];
  EXPECT_EQ(start["content"], Json::array());
  EXPECT_EQ(start["stop_reason"], nullptr);
  EXPECT_EQ(start["usage"]["input_tokens"], message["usage"]["input_tokens"]);
  EXPECT_EQ(start["usage"]["output_tokens"], 0);
}

TEST_F(MessagesTest, UsageHasTheirMembersAndOursUnderOne) {
  const size_t tokens = std::string("user:hi\nassistant:").size();
  Json usage = run(with(""))["usage"];
  EXPECT_EQ(usage["input_tokens"], tokens);
  EXPECT_EQ(usage["cache_creation_input_tokens"], 0);
  EXPECT_EQ(usage["cache_read_input_tokens"], 0);
  EXPECT_EQ(usage["output_tokens"], 6);
  EXPECT_EQ(usage["smartkv"]["kv_cache"]["policy"], "full");
  EXPECT_EQ(usage["smartkv"]["seed"], 7);
  EXPECT_TRUE(usage["smartkv"]["timings"].contains("total_ms"));
  EXPECT_FALSE(usage["smartkv"].contains("prompt_tokens"));
  usage = run(with(R"(, "cache_control": {"type": "ephemeral", "ttl": "1h"})"))["usage"];
  EXPECT_EQ(usage["input_tokens"], 0);
  EXPECT_EQ(usage["cache_creation_input_tokens"], tokens);
  EXPECT_EQ(usage["cache_creation"]["ephemeral_1h_input_tokens"], tokens);
  EXPECT_EQ(usage["cache_creation"]["ephemeral_5m_input_tokens"], 0);
}

TEST_F(MessagesTest, CallsAreBlocksOfTheirOwn) {
  engine_.set_answer({R"([{"name": "f", "arguments")", R"(: {"n": 12345678901234567890123}}, {"na)",
                      R"(me": "f", "arguments": {}}])"});
  std::vector<Json> events;
  const Json message = run(with(", \"tools\": [" + kTool + R"(], "tool_choice": {"type": "any"})"), &events);
  EXPECT_EQ(message["stop_reason"], "tool_use");
  ASSERT_EQ(message["content"].size(), 2u);
  const Json& call = message["content"][0];
  EXPECT_EQ(call["type"], "tool_use");
  EXPECT_EQ(call["name"], "f");
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("toolu_"));
  EXPECT_EQ(openai::dump(call["input"]), R"({"n":12345678901234567890123})");
  EXPECT_NE(call["id"], message["content"][1]["id"]);
  EXPECT_EQ(message["content"][1]["input"], Json::object());
  EXPECT_EQ(put_together(events)["content"][0]["id"], call["id"]);
  EXPECT_EQ(events[2]["content_block"]["input"], Json::object());
}

TEST_F(MessagesTest, TextMayStandBeforeACall) {
  engine_.set_chat_template(
      "{% if tools %}{{ tools[0].function.name }}{% endif %}"
      "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}<tool_call>{% endif %}{% endfor %}");
  engine_.set_answer({"Let me see.\n", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>"});
  std::vector<Json> events;
  const Json message = run(with(", \"tools\": [" + kTool + "]"), &events);
  ASSERT_EQ(message["content"].size(), 2u);
  EXPECT_EQ(message["content"][0]["text"], "Let me see.");
  EXPECT_EQ(message["content"][1]["input"], (Json{{"n", 1}}));
  EXPECT_EQ(put_together(events), message);
}

TEST_F(MessagesTest, ACallThatIsCutIsCompleted) {
  engine_.set_answer({R"({"name": "f", "arguments": {"n": 1, "text": "ab)"}, FinishReason::kLength);
  MessagesRequest request = with(", \"tools\": [" + kTool + R"(], "tool_choice": {"type": "any"})");
  request.chat.generations.front().max_tokens = 5;
  const Json message = run(request);
  EXPECT_EQ(message["stop_reason"], "max_tokens");
  EXPECT_EQ(message["content"][0]["input"]["n"], 1);
}

TEST_F(MessagesTest, AnswersTellWhyTheyEnd) {
  engine_.set_answer({"Pa"}, FinishReason::kLength);
  MessagesRequest request = with("");
  EXPECT_EQ(run(request)["stop_reason"], "model_context_window_exceeded");  // 2 of 50 tokens
  request.chat.generations.front().max_tokens = 2;
  EXPECT_EQ(run(request)["stop_reason"], "max_tokens");
  engine_.set_answer({"Paris"});
  engine_.set_stop_string("END");
  const Json message = run(with(R"(, "stop_sequences": ["END"])"));
  EXPECT_EQ(message["stop_reason"], "stop_sequence");
  EXPECT_EQ(message["stop_sequence"], "END");
}

TEST_F(MessagesTest, AnEmptyAnswerHasNoBlocks) {
  engine_.set_answer({""});
  std::vector<Json> events;
  const Json message = run(with(""), &events);
  EXPECT_EQ(message["content"], Json::array());
  EXPECT_THAT(types_of(events), ElementsAre("message_start", "ping", "message_delta", "message_stop"));
}

TEST_F(MessagesTest, ReasoningBecomesASignedBlock) {
  const MessagesRequest request = with("");
  MessagesStream stream(request);
  AnswerPiece one, two, text;
  one.reasoning = "Let me ";
  two.reasoning = "see.";
  text.text = "Paris.";
  std::vector<Json> events = stream.add({one, two, text}, {});
  for (Json& event : stream.finish({})) events.push_back(std::move(event));
  EXPECT_THAT(types_of(events),
              ElementsAre("message_start", "ping", "content_block_start", "thinking_delta", "thinking_delta",
                          "signature_delta", "content_block_stop", "content_block_start", "text_delta",
                          "content_block_stop", "message_delta", "message_stop"));
  const Json block = stream.json()["content"][0];
  EXPECT_EQ(block["thinking"], "Let me see.");
  EXPECT_EQ(put_together(events), stream.json());
  engine_.set_chat_template("{% for m in messages %}{{ m.content }}({{ m.reasoning_content }}){% endfor %}");
  EXPECT_EQ(prompt(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": )" +
                   stream.json()["content"].dump() + R"(}, {"role": "user", "content": "b"}])"),
            "a()Paris.(Let me see.)b()");
}

TEST_F(MessagesTest, OmittedReasoningComesBackInItsSignature) {
  const MessagesRequest request = with(R"(, "thinking": {"type": "adaptive", "display": "omitted"})");
  MessagesStream stream(request);
  AnswerPiece piece;
  piece.reasoning = "secret";
  std::vector<Json> events = stream.add({piece}, {});
  for (Json& event : stream.finish({})) events.push_back(std::move(event));
  EXPECT_EQ(stream.json()["content"][0]["thinking"], "");
  EXPECT_EQ(put_together(events), stream.json());
  EXPECT_EQ(request.signer.open("", stream.json()["content"][0]["signature"].get<std::string>()), "secret");
}

TEST_F(MessagesTest, ItsAnswersCanBeSentBack) {
  engine_.set_answer({R"({"name": "f", "arguments": {"n": 1}})"});
  const Json answer = run(with(", \"tools\": [" + kTool + R"(], "tool_choice": {"type": "any"})"));
  const std::string id = answer["content"][0]["id"];
  EXPECT_EQ(
      prompt(R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": )" + answer["content"].dump() +
             R"(}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": ")" + id +
             R"(", "content": "r"}]}])"),
      "user:hi\nassistant:{\"name\":\"f\",\"arguments\":{\"n\":1}}\nuser:Result of f: r\nassistant:");
}

TEST_F(MessagesTest, CountsTheTokensOfThePrompt) {
  const auto count = [&](const std::string& fields) {
    return count_tokens(R"({"model": "fake", "messages": [{"role": "user", "content": "hi"}])" + fields + "}", model_);
  };
  EXPECT_EQ(count(""), (Json{{"input_tokens", std::string("user:hi\nassistant:").size()}}));
  EXPECT_EQ(count(R"(, "system": "be", "thinking": {"type": "enabled", "budget_tokens": 1024})")["input_tokens"],
            std::string("system:be\nuser:hi\nassistant:").size());
  EXPECT_GT(count(", \"tools\": [" + kTool + "]")["input_tokens"], 100);
  engine_.set_context_length(5);  // a client asks whether the prompt fits
  EXPECT_EQ(count("")["input_tokens"], std::string("user:hi\nassistant:").size());
  const auto refused_count = [&](const std::string& fields) { return refusal([&] { count(fields); }); };
  EXPECT_EQ(refused_count(R"(, "max_tokens": 5)"), "max_tokens");
  EXPECT_EQ(refused_count(R"(, "stream": true)"), "stream");
  EXPECT_EQ(refused_count(R"(, "tools": [{"name": "f"}])"), "tools[0].input_schema");
  EXPECT_EQ(refusal([&] { count_tokens("{}", model_); }), "messages");
  EXPECT_EQ(refusal([&] { count_tokens("[]", model_); }), "");
  EXPECT_THROW(count_tokens(R"({"model": "gpt", "messages": [{"role": "user", "content": "hi"}]})", model_), ApiError);
}

}  // namespace
}  // namespace smartkv::anthropic
