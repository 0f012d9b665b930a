// The requests that the parsers accept, and the field that they name in each refusal.
#include <gtest/gtest.h>

#include <random>

#include "server/openai/api_request.h"
#include "tests/server/fake_engine.h"

namespace smartkv::openai {
namespace {

using smartkv::test::FakeEngine;

class RequestTest : public ::testing::Test {
 protected:
  ApiRequest completion(const std::string& fields) {
    return parse_completion("{\"prompt\": \"hi\"" + (fields.empty() ? "" : ", " + fields) + "}", model_);
  }
  ApiRequest chat(const std::string& fields) {
    return parse_chat(
        "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]" + (fields.empty() ? "" : ", " + fields) + "}",
        model_);
  }

  FakeEngine engine_;
  ServedModel model_{.engine = engine_, .names = {"fake", "alias"}, .max_prompts = 3};
};

template <typename Parse>
ApiError api_error_of(const Parse& parse) {
  try {
    parse();
  } catch (const ApiError& error) {
    return error;
  }
  return ApiError(200, "", "accepted");
}

struct BadField {
  const char* fields;
  const char* param;
};

// Fields that both endpoints have.
constexpr BadField kSharedBadFields[] = {
    {R"("temperature": 2.1)", "temperature"},
    {R"("temperature": -0.1)", "temperature"},
    {R"("temperature": "1")", "temperature"},
    {R"("top_p": -0.1)", "top_p"},
    {R"("top_p": 1.5)", "top_p"},
    {R"("min_p": -1)", "min_p"},
    {R"("top_k": -2)", "top_k"},
    {R"("top_k": 1.5)", "top_k"},
    {R"("repetition_penalty": 0)", "repetition_penalty"},
    {R"("presence_penalty": 3)", "presence_penalty"},
    {R"("frequency_penalty": -3)", "frequency_penalty"},
    {R"("logit_bias": [])", "logit_bias"},
    {R"("logit_bias": {"x": 1})", "logit_bias"},
    {R"("logit_bias": {"259": 1})", "logit_bias"},
    {R"("logit_bias": {"1": 101})", "logit_bias.1"},
    {R"("seed": 1.5)", "seed"},
    {R"("stop": 3)", "stop"},
    {R"("stop": [3])", "stop[0]"},
    {R"("stop": ["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])", "stop"},
    {R"("stop_token_ids": 3)", "stop_token_ids"},
    {R"("stop_token_ids": [3, 259])", "stop_token_ids[1]"},
    {R"("n": 0)", "n"},
    {R"("n": true)", "n"},
    {R"("max_tokens": 0)", "max_tokens"},
    {R"("max_tokens": 18446744073709551615)", "max_tokens"},
    {R"("min_tokens": -1)", "min_tokens"},
    {R"("ignore_eos": 1)", "ignore_eos"},
    {R"("skip_special_tokens": "no")", "skip_special_tokens"},
    {R"("kv_cache": 4)", "kv_cache"},
    {R"("speculative": [])", "speculative"},
    {R"("stream": "true")", "stream"},
    {R"("stream_options": {"include_usage": true})", "stream_options"},
    {R"("stream": true, "stream_options": {"include_usage": 1})", "stream_options.include_usage"},
    {R"("stream": true, "stream_options": {"usage": true})", "stream_options.usage"},
    {R"("user": 3)", "user"},
    {R"("model": 3)", "model"},
    {R"("max_token": 3)", "max_token"},
    {R"("beam_width": 3)", "beam_width"},
};

TEST_F(RequestTest, RefusesBadSharedFieldsByName) {
  for (const BadField& bad : kSharedBadFields) {
    for (const ApiError& error :
         {api_error_of([&] { completion(bad.fields); }), api_error_of([&] { chat(bad.fields); })}) {
      EXPECT_EQ(error.status, 400) << bad.fields;
      EXPECT_EQ(error.param, bad.param) << bad.fields << ": " << error.what();
      EXPECT_EQ(error.type, "invalid_request_error");
      EXPECT_NE(std::string(error.what()).find(bad.param), std::string::npos) << error.what();
    }
  }
}

TEST_F(RequestTest, RefusesBadCompletionFieldsByName) {
  const BadField rows[] = {
      {R"("logprobs": 21)", "logprobs"},
      {R"("logprobs": true)", "logprobs"},
      {R"("best_of": 2)", "best_of"},
      {R"("suffix": "x")", "suffix"},
      {R"("echo": "yes")", "echo"},
      {R"("messages": [])", "messages"},
      {R"("top_logprobs": 2)", "top_logprobs"},
      {R"("length_penalty": -1)", "length_penalty"},
      {R"("typical_p": -1)", "typical_p"},
      {R"("repeat_last_n": 1)", "repeat_last_n"},
  };
  for (const BadField& bad : rows) {
    EXPECT_EQ(api_error_of([&] { completion(bad.fields); }).param, bad.param) << bad.fields;
  }
  const BadField prompts[] = {
      {R"({})", "prompt"},
      {R"({"prompt": 3})", "prompt"},
      {R"({"prompt": ""})", "prompt"},
      {R"({"prompt": []})", "prompt"},
      {R"({"prompt": [[]]})", "prompt"},
      {R"({"prompt": [{}]})", "prompt[0]"},
      {R"({"prompt": [1, "a"]})", "prompt[1]"},
      {R"({"prompt": ["a", 1]})", "prompt[1]"},
      {R"({"prompt": [[1], [259]]})", "prompt[1][0]"},
      {R"({"prompt": ["a", "b", "c", "d"]})", "prompt"},
  };
  for (const BadField& bad : prompts) {
    const ApiError error = api_error_of([&] { parse_completion(bad.fields, model_); });
    EXPECT_EQ(error.status, 400) << bad.fields;
    EXPECT_EQ(error.param, bad.param) << bad.fields << ": " << error.what();
  }
}

TEST_F(RequestTest, RefusesBadChatFieldsByName) {
  const BadField rows[] = {
      {R"("logprobs": 2)", "logprobs"},
      {R"("top_logprobs": 2)", "top_logprobs"},
      {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
      {R"("max_tokens": 3, "max_completion_tokens": 4)", "max_tokens"},
      {R"("response_format": {"type": "xml"})", "response_format.type"},
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": {"not": {}}}}}})",
       "response_format.json_schema.schema.properties.a.not"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": {"type": "number", "maximum": -1e300}}}}})",
       "response_format.json_schema.schema.properties.a.maximum"},
      {R"("regex": "a(?=b", "choice": ["a"])", "regex"},
      {R"("regex": "a", "choice": ["a"])", "choice"},
      {R"x("grammar": "root ::= Token(999999)")x", "grammar"},
      {R"x("grammar": "root ::= \"(\" TagDispatch ((\"x\", root))")x", "grammar"},
      {R"("choice": [])", "choice"},
      {R"("guided_json": "{")", "guided_json"},
      {R"("structured_outputs": {"json": {"type": 3}})", "structured_outputs.json.type"},
      {R"("structured_outputs": {"xml": 3})", "structured_outputs.xml"},
      {R"("modalities": ["audio"])", "modalities"},
      {R"("audio": {})", "audio"},
      {R"("store": 1)", "store"},
      {R"("metadata": "a")", "metadata"},
      {R"("prediction": {})", "prediction"},
      {R"("service_tier": 1)", "service_tier"},
      {R"("parallel_tool_calls": 1)", "parallel_tool_calls"},
      {R"("continue_final_message": true)", "continue_final_message"},
      {R"("reasoning_effort": "low")", "reasoning_effort"},
      {R"("web_search_options": {})", "web_search_options"},
      {R"("functions": [{}])", "functions"},
      {R"("function_call": "auto")", "function_call"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("tools": {})", "tools"},
      {R"("tools": [{"type": "x"}])", "tools[0].type"},
      {R"("tools": [{"type": "function", "function": {}}])", "tools[0].function.name"},
      {R"("chat_template_kwargs": {"messages": []})", "chat_template_kwargs"},
      {R"("add_generation_prompt": 1)", "add_generation_prompt"},
      {R"("prompt": "x")", "prompt"},
      {R"("echo": true)", "echo"},
  };
  for (const BadField& bad : rows) {
    const ApiError error = api_error_of([&] { chat(bad.fields); });
    EXPECT_EQ(error.status, 400) << bad.fields;
    EXPECT_EQ(error.param, bad.param) << bad.fields << ": " << error.what();
  }
}

TEST_F(RequestTest, RefusesBadMessagesByPlace) {
  const BadField rows[] = {
      {R"([])", "messages"},
      {R"({})", "messages"},
      {R"([3])", "messages[0]"},
      {R"([{"content": "x"}])", "messages[0].role"},
      {R"([{"role": "robot", "content": "x"}])", "messages[0].role"},
      {R"([{"role": "user"}])", "messages[0].content"},
      {R"([{"role": "user", "content": null}])", "messages[0].content"},
      {R"([{"role": "user", "content": 3}])", "messages[0].content"},
      {R"([{"role": "user", "content": "x", "nme": "y"}])", "messages[0].nme"},
      {R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])", "messages[0].content[0].type"},
      {R"([{"role": "user", "content": [{"type": "text"}]}])", "messages[0].content[0].text"},
      {R"([{"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]}])", "messages[0].content[0].y"},
      {R"([{"role": "tool", "content": "x"}])", "messages[0].tool_call_id"},
      {R"([{"role": "assistant", "tool_calls": [{}]}])", "messages[0].tool_calls[0].id"},
      {R"([{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f",
          "arguments": {}}}]}])",
       "messages[0].tool_calls[0].function.arguments"},
  };
  for (const BadField& bad : rows) {
    const ApiError error =
        api_error_of([&] { parse_chat(R"({"messages": )" + std::string(bad.fields) + "}", model_); });
    EXPECT_EQ(error.status, 400) << bad.fields;
    EXPECT_EQ(error.param, bad.param) << bad.fields << ": " << error.what();
  }
}

TEST_F(RequestTest, AcceptsDefaultsOfUnsupportedFieldsAndNull) {
  EXPECT_NO_THROW(completion(R"("best_of": 1, "suffix": null, "logit_bias": null, "stop": null, "user": "me")"));
  EXPECT_NO_THROW(completion(R"("best_of": 2, "n": 2)"));
  EXPECT_NO_THROW(completion(R"("length_penalty": 1, "typical_p": 1.0, "repeat_last_n": -1)"));
  EXPECT_NO_THROW(chat(R"("response_format": {"type": "text"}, "store": false, "modalities": ["text"], "tools": [],
                          "metadata": {}, "service_tier": "auto", "parallel_tool_calls": true, "audio": null,
                          "functions": [], "function_call": "none", "tool_choice": "none", "max_tokens": null)"));
}

TEST_F(RequestTest, TakesWhatFrameworksSend) {
  EXPECT_NO_THROW(
      chat(R"("store": true, "metadata": {"a": "b"}, "service_tier": "flex", "user": "u", "prompt_cache_key": "k",
                          "safety_identifier": "s", "parallel_tool_calls": false, "stream": true,
                          "stream_options": {"include_usage": true, "continuous_usage_stats": true, "include_obfuscation": true})"));
  EXPECT_EQ(completion(R"("max_tokens": 5.0)").generations.front().max_tokens, 5);
  EXPECT_EQ(completion(R"("max_tokens": -1)").generations.front().max_tokens, 998);
  const GenerationRequest all = chat(R"("max_tokens": -1)").generations.front();
  EXPECT_EQ(all.max_tokens, 1000 - static_cast<int64_t>(all.prompt.size()));
  EXPECT_NO_THROW(parse_chat(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b",
                                 "reasoning_content": "c", "provider_specific_fields": {"refusal": null}},
                                {"role": "user", "content": "d"}]})",
                             model_));
}

TEST_F(RequestTest, ReadsHowLongAPrefixShouldStay) {
  const auto hint = [&](const char* fields) { return chat(fields).generations.front().retention; };
  EXPECT_EQ(hint(R"("user": "u")").priority, RetentionHint::kUsual);
  EXPECT_EQ(hint(R"("retention": {})").priority, RetentionHint::kRaised);
  EXPECT_EQ(hint(R"("retention": {"ttl_seconds": 7})").ttl_seconds, 7);
  EXPECT_EQ(hint(R"("retention": {"priority": 0})").priority, 0);
  EXPECT_EQ(hint(R"("prompt_cache_retention": "24h")").ttl_seconds, 86400);
  EXPECT_EQ(hint(R"("prompt_cache_retention": "24h")").priority, RetentionHint::kRaised);
  EXPECT_EQ(hint(R"("prompt_cache_retention": "in_memory")").priority, RetentionHint::kUsual);
  EXPECT_EQ(completion(R"("prompt_cache_key": "k")").generations.front().prompt_cache_key, "k");
  for (const auto& [fields, param] : {std::pair{R"("retention": {"priority": 101})", "retention.priority"},
                                      {R"("retention": {"ttl_seconds": 0})", "retention.ttl_seconds"},
                                      {R"("retention": {"for": 1})", "retention.for"},
                                      {R"("retention": 5)", "retention"},
                                      {R"("prompt_cache_retention": "forever")", "prompt_cache_retention"}}) {
    try {
      chat(fields);
      ADD_FAILURE() << fields;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.param, param) << error.what();
    }
  }
}

TEST_F(RequestTest, KnowsWhereMessagesBegin) {
  const ApiRequest request = parse_chat(R"({"messages": [{"role": "system", "content": "Be brief."},
                                                         {"role": "user", "content": "One?"},
                                                         {"role": "assistant", "content": "One."},
                                                         {"role": "user", "content": "One?"}]})",
                                        model_);
  const GenerationRequest& generation = request.generations.front();
  ASSERT_EQ(generation.message_starts.size(), 4u);
  EXPECT_EQ(generation.message_starts[0], 0);
  const std::string ends[] = {"Be brief.", "One?", "One."};
  for (size_t i = 1; i < 4; ++i) {
    const auto start = static_cast<size_t>(generation.message_starts[i]);
    const std::string before = engine_.tokenizer().decode(std::span(generation.prompt).first(start), false);
    EXPECT_TRUE(before.ends_with(ends[i - 1])) << before;
  }
}

TEST_F(RequestTest, TakesSamplingAtItsEnds) {
  EXPECT_EQ(chat(R"("top_p": 0)").generations.front().sampling.top_p, 0);
  EXPECT_EQ(chat(R"("seed": 42.0)").generations.front().sampling.seed, 42);
  EXPECT_EQ(chat(R"("seed": -1.0)").generations.front().sampling.seed, UINT64_MAX);
  EXPECT_EQ(chat(R"("stop": "")").generations.front().stop, std::vector<std::string>());
  EXPECT_EQ(chat(R"("stop": ["", "a", ""])").generations.front().stop, std::vector<std::string>{"a"});
}

TEST_F(RequestTest, TakesMessagesAsOtherServersAnswerThem) {
  const auto text = [&](const std::string& body) {
    return engine_.tokenizer().decode(parse_chat(body, model_).generations.front().prompt, false);
  };
  EXPECT_EQ(text(R"({"messages": [
      {"role": "user", "id": "1", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], "cache_control": {"type": "ephemeral"}},
      {"role": "assistant", "id": "2", "content": "b", "reasoning_details": [{"type": "reasoning.text", "text": "r"}],
       "thinking_blocks": [{"type": "thinking", "thinking": "t", "signature": "s"}]},
      {"role": "user", "content": "c"}]})"),
            "user:a\nassistant:b\nuser:c\nassistant:");
  EXPECT_EQ(
      text(
          R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant"}, {"role": "assistant", "content": null},
      {"role": "assistant", "content": "", "tool_calls": []}, {"role": "user", "content": "c"}]})"),
      "user:a\nassistant:\nassistant:\nassistant:\nuser:c\nassistant:");
  for (const char* field :
       {R"("id": 3)", R"("cache_control": "x")", R"("reasoning_details": {})", R"("thinking_blocks": "t")"}) {
    const ApiError error = api_error_of(
        [&] { text(R"({"messages": [{"role": "assistant", "content": "x", )" + std::string(field) + "}]}"); });
    EXPECT_EQ(error.param, "messages[0]." + std::string(field).substr(1, std::string(field).find('"', 1) - 1));
  }
}

TEST_F(RequestTest, KeepsLargeIntegersOfCallsExact) {
  const std::string body =
      R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f",
      "arguments": "{\"a\": [123456789012345678901234567890, -98765432109876543210], \"b\": 18446744073709551615, \"c\": 0.5}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "r"}]})";
  EXPECT_EQ(
      engine_.tokenizer().decode(parse_chat(body, model_).generations.front().prompt, false),
      R"(assistant:{"name":"f","arguments":{"a":[123456789012345678901234567890,-98765432109876543210],"b":18446744073709551615,"c":0.5}})"
      "\nuser:Result of f: r\nassistant:");
}

TEST_F(RequestTest, DefaultsOfSamplingAreTheServedModels) {
  model_.sampling = {{"temperature", 0.25}, {"top_k", 5}};
  EXPECT_FLOAT_EQ(chat("").generations.front().sampling.temperature, 0.25f);
  EXPECT_EQ(completion("").generations.front().sampling.top_k, 5);
  EXPECT_FLOAT_EQ(chat(R"("temperature": 1)").generations.front().sampling.temperature, 1);
}

TEST_F(RequestTest, ContinuesAnAssistantsMessage) {
  const auto text = [&](const std::string& more) {
    const std::string body =
        R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b c "}])" + more + "}";
    return engine_.tokenizer().decode(parse_chat(body, model_).generations.front().prompt, false);
  };
  EXPECT_EQ(text(""), "user:a\nassistant:b c ");
  EXPECT_EQ(text(R"(, "continue_final_message": true)"), "user:a\nassistant:b c ");
  EXPECT_EQ(text(R"(, "add_generation_prompt": true)"), "user:a\nassistant:b c \nassistant:");
  EXPECT_EQ(api_error_of([&] { text(R"(, "continue_final_message": true, "add_generation_prompt": true)"); }).param,
            "continue_final_message");
}

// The text to continue may also occur in what the template writes behind it. It may be empty, or trimmed by the
// template.
TEST_F(RequestTest, ContinuesWhateverTextTheMessageHas) {
  constexpr const char* kChatMl =
      "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  constexpr const char* kTrimming =
      "{% for message in messages %}[{{ message.role }}]{{ message.content|trim }}</s>{% endfor %}";
  const auto text = [&](const char* source, const std::string& content) {
    engine_.set_chat_template(source);
    const Json body = {{"messages", Json::array({{{"role", "user"}, {"content", "q"}},
                                                 {{"role", "assistant"}, {"content", content}}})}};
    return engine_.tokenizer().decode(parse_chat(body.dump(), model_).generations.front().prompt, false);
  };
  for (const char* content : {">", "<", "e", "end", "im", "im_end", "|", "<|im_end|>", "\n", "", " ", "b ", "b\n\n",
                              "assistant", "ContinueHere"}) {
    EXPECT_EQ(text(kChatMl, content), "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n" + std::string(content));
  }
  EXPECT_EQ(text(kTrimming, "b "), "[user]q</s>[assistant]b ");
  EXPECT_EQ(text(kTrimming, "s"), "[user]q</s>[assistant]s");
  EXPECT_EQ(text(kTrimming, ""), "[user]q</s>[assistant]");
  EXPECT_NE(std::string(api_error_of([&] { text("{{ messages[0].content }}", "b"); }).what()).find("does not show"),
            std::string::npos);
}

TEST_F(RequestTest, FillsDefaults) {
  const GenerationRequest request = completion("").generations.front();
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.n, 1);
  EXPECT_EQ(request.logprobs, -1);
  EXPECT_EQ(request.prompt_logprobs, -1);
  EXPECT_FLOAT_EQ(request.sampling.temperature, 1);
  EXPECT_FALSE(request.sampling.seed.has_value());
  EXPECT_TRUE(request.kv_cache.is_null());
  const GenerationRequest chat_request = chat("").generations.front();
  EXPECT_EQ(chat_request.max_tokens, 1000 - static_cast<int64_t>(chat_request.prompt.size()));
}

TEST_F(RequestTest, PassesEveryFieldOn) {
  const GenerationRequest request =
      completion(R"("temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1,
                    "presence_penalty": -1, "frequency_penalty": 1.5, "logit_bias": {"65": -100, "66": 3.5},
                    "seed": -1, "stop": ["a", "b"], "stop_token_ids": [1, 2], "n": 2, "max_tokens": 9,
                    "min_tokens": 4, "ignore_eos": true, "skip_special_tokens": false, "logprobs": 3, "echo": true,
                    "kv_cache": {"policy": "full"}, "speculative": "off")")
          .generations.front();
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_FLOAT_EQ(request.sampling.top_p, 0.9f);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_FLOAT_EQ(request.sampling.min_p, 0.1f);
  EXPECT_FLOAT_EQ(request.sampling.repetition_penalty, 1.1f);
  EXPECT_FLOAT_EQ(request.sampling.presence_penalty, -1);
  EXPECT_FLOAT_EQ(request.sampling.frequency_penalty, 1.5f);
  const std::vector<std::pair<TokenId, float>> bias = {{65, -100.0f}, {66, 3.5f}};
  EXPECT_EQ(request.sampling.logit_bias, bias);
  EXPECT_EQ(request.sampling.seed, UINT64_MAX);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.stop_token_ids, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.min_tokens, 4);
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_FALSE(request.skip_special_tokens);
  EXPECT_EQ(request.logprobs, 3);
  EXPECT_EQ(request.prompt_logprobs, 3);
  EXPECT_EQ(request.kv_cache["policy"], "full");
  EXPECT_EQ(request.speculative, "off");
}

TEST_F(RequestTest, ReadsEveryShapeOfPrompt) {
  const auto prompts = [&](const std::string& prompt) {
    std::vector<std::vector<TokenId>> tokens;
    for (const auto& one : parse_completion("{\"prompt\": " + prompt + "}", model_).generations) {
      tokens.push_back(one.prompt);
    }
    return tokens;
  };
  using Prompts = std::vector<std::vector<TokenId>>;
  EXPECT_EQ(prompts(R"("ab")"), (Prompts{{97, 98}}));
  EXPECT_EQ(prompts(R"(["a", "b"])"), (Prompts{{97}, {98}}));
  EXPECT_EQ(prompts("[1, 2]"), (Prompts{{1, 2}}));
  EXPECT_EQ(prompts("[[1, 2], [3]]"), (Prompts{{1, 2}, {3}}));
  EXPECT_EQ(prompts(R"(["a", [3]])"), (Prompts{{97}, {3}}));
}

TEST_F(RequestTest, RendersMessagesThroughTheTemplate) {
  const auto text = [&](const std::string& body) {
    return engine_.tokenizer().decode(parse_chat(body, model_).generations.front().prompt, false);
  };
  EXPECT_EQ(text(R"({"messages": [{"role": "developer", "content": "be"},
                     {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})"),
            "system:be\nuser:a\nb\nassistant:");
  EXPECT_EQ(text(R"({"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": false})"), "user:a\n");
  // The fake template shows tools but no calls. Calls then take the form that a built-in text explains.
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f"}}])";
  EXPECT_NE(text(R"({"messages": [{"role": "user", "content": "a"}], )" + tools + "}").find("{\"name\":\"f\""),
            std::string::npos);
  EXPECT_EQ(text(R"({"messages": [{"role": "user", "content": "a"}], "tool_choice": "none", )" + tools + "}"),
            "user:a\nassistant:");
}

TEST_F(RequestTest, NamesUnknownModelsAndAcceptsAliases) {
  const ApiError error = api_error_of([&] { completion(R"("model": "gpt-4")"); });
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error.code, "model_not_found");
  EXPECT_EQ(completion(R"("model": "alias")").model, "fake");
}

TEST_F(RequestTest, RefusesWhatIsNotStrictJson) {
  for (const std::string body : {"", "{", "[]", "null", "{\"prompt\": \"a\", \"prompt\": \"b\"}",
                                 "{\"prompt\": \"\xff\"}", "{\"prompt\": NaN}", "{\"n\": 1e999}", "// x\n{}", "{} x"}) {
    EXPECT_EQ(api_error_of([&] { parse_completion(body, model_); }).status, 400) << body;
  }
  EXPECT_EQ(api_error_of([&] { parse_completion(std::string(100'000, '['), model_); }).status, 400);
  const std::string deep = "\"kv_cache\": " + std::string(5000, '[') + std::string(5000, ']');
  EXPECT_EQ(api_error_of([&] { completion(deep); }).status, 400);
}

TEST_F(RequestTest, BoundsWhatIsLookedAtForEveryToken) {
  const auto list = [](size_t n, const auto& item) {
    std::string text;
    for (size_t i = 0; i < n; ++i) text += (i == 0 ? "" : ",") + item(i);
    return text;
  };
  const auto param = [this](const std::string& fields) { return api_error_of([&] { completion(fields); }).param; };
  EXPECT_EQ(param(R"("stop": ")" + std::string(1025, 'a') + "\""), "stop");
  EXPECT_EQ(param("\"stop_token_ids\": [" + list(1001, [](size_t) { return std::string("1"); }) + "]"),
            "stop_token_ids");
  EXPECT_EQ(param("\"logit_bias\": {" + list(1001, [](size_t i) { return '"' + std::to_string(i) + "\": 1"; }) + "}"),
            "logit_bias");
  EXPECT_EQ(param(R"("kv_cache": {"policy": ")" + std::string(5000, 'a') + "\"}"), "kv_cache");
  EXPECT_EQ(param(R"("speculative": ")" + std::string(5000, 'a') + "\""), "speculative");
}

TEST_F(RequestTest, BoundsTheValuesAndKeysOfABody) {
  std::string keys, values;
  for (int i = 0; i < 1100; ++i) keys += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":0";
  for (int i = 0; i < (1 << 20); ++i) values += ",0";
  const auto error = [this](const std::string& fields) {
    return std::string(api_error_of([&] { completion(fields); }).what());
  };
  EXPECT_NE(error("\"x\": {" + keys + "}").find("more than 1024 keys"), std::string::npos);
  EXPECT_NE(error("\"x\": [0" + values + "]").find("more than 1048576 values"), std::string::npos);
}

TEST_F(RequestTest, PromptsThatCannotFitAreRefusedBeforeTheyAreTokenized) {
  engine_.set_context_length(100);
  const std::string text = '"' + std::string(101, 'a') + '"';
  std::string ids = "1";
  for (int i = 0; i < 100; ++i) ids += ",1";
  for (const std::string& prompt : {text, "[" + text + "]", "[" + ids + "]", "[[" + ids + "]]"}) {
    const ApiError error = api_error_of([&] { parse_completion("{\"prompt\": " + prompt + "}", model_); });
    EXPECT_EQ(error.code, "context_length_exceeded") << prompt;
    EXPECT_EQ(error.param, "prompt");
  }
  const ApiError error =
      api_error_of([&] { parse_chat("{\"messages\": [{\"role\": \"user\", \"content\": " + text + "}]}", model_); });
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_EQ(error.param, "messages");
  EXPECT_EQ(engine_.tokenizer_.encoded, 0);
  EXPECT_NO_THROW(parse_completion("{\"prompt\": " + text.substr(0, 101) + "\"}", model_));  // 100 bytes may fit
  EXPECT_EQ(engine_.tokenizer_.encoded, 1);
}

TEST_F(RequestTest, SaysThatThereIsNoChatTemplate) {
  engine_.remove_chat_template();
  EXPECT_NE(std::string(api_error_of([&] { chat(""); }).what()).find("chat template"), std::string::npos);
}

// Models write the arguments, and max_tokens may cut them off. The history must accept every call of an answer.
TEST_F(RequestTest, TakesTheCallsOfItsOwnAnswers) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "{}"},
      {"  ", "{}"},
      {R"({"a": 1})", R"({"a":1})"},
      {R"({"a": 1, "b": 2, "a": 3})", R"({"a":3,"b":2})"},
      {R"({"a": "Par)", R"({"a":"Par"})"},
      {R"({"a": "x\u00)", R"({"a":"x"})"},
      {R"({"a": "x\)", R"({"a":"x"})"},
      {R"({"a": [1, {"b": tr)", R"({"a":[1,{}]})"},
      {R"({"a": 1, "b)", R"({"a":1})"},
      {R"({"a": 1, "b":)", R"({"a":1})"},
      {R"({"a": {"x": "}"}, )", R"({"a":{"x":"}"}})"},
      {"{", "{}"},
      {"[1]", R"("[1]")"},
      {"nonsense", R"("nonsense")"},
      {R"({"a": 1}})", R"x("{\"a\": 1}}")x"},
  };
  for (const auto& [arguments, shown] : cases) {
    const Json call = {{"id", "1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}};
    const Json messages = {{{"role", "user"}, {"content", "q"}},
                           {{"role", "assistant"}, {"tool_calls", {call}}},
                           {{"role", "tool"}, {"tool_call_id", "1"}, {"content", "r"}}};
    const ApiRequest request = parse_chat(Json{{"messages", messages}}.dump(), model_);
    const std::string prompt = engine_.tokenizer().decode(request.generations.front().prompt);
    EXPECT_NE(prompt.find("{\"name\":\"f\",\"arguments\":" + std::string(shown) + "}\n"), std::string::npos)
        << arguments << ": " << prompt;
  }
}

// Any bytes must lead to a request, or to an ApiError with status 400 or 404.
TEST_F(RequestTest, SurvivesMutatedBodies) {
  const std::string seeds[] = {
      R"({"model": "fake", "prompt": ["a", "b"], "n": 2, "stop": ["x"], "logit_bias": {"5": -1}, "stream": true,
          "stream_options": {"include_usage": true}, "seed": 3, "logprobs": 2, "echo": true, "temperature": 0.5})",
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "t"}]},
          {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f",
          "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "r"}], "tools": [{"type": "function",
          "function": {"name": "f", "parameters": {}}}], "logprobs": true, "top_logprobs": 2, "max_tokens": 5})"};
  const std::string tokens = R"({}[]":,0-19.eE+truefalsn\u)";
  std::mt19937 random(1);
  for (int i = 0; i < 6000; ++i) {
    std::string body = seeds[i % 2];
    for (int k = static_cast<int>(random() % 4); k >= 0; --k) {
      const size_t at = random() % body.size();
      switch (random() % 4) {
        case 0: body[at] = static_cast<char>(random()); break;
        case 1: body.erase(at, random() % 8); break;
        case 2: body.insert(at, 1, tokens[random() % tokens.size()]); break;
        default: body.insert(at, body.substr(random() % body.size(), random() % 12));
      }
      if (body.empty()) body = "{";
    }
    const ApiError error =
        api_error_of([&] { i % 2 == 0 ? parse_completion(body, model_) : parse_chat(body, model_); });
    EXPECT_TRUE(error.status == 200 || error.status == 400 || error.status == 404) << body;
    EXPECT_NO_THROW(dump(error.body()));
  }
}

}  // namespace
}  // namespace smartkv::openai
