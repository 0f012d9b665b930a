// The shapes of answers, whole and streamed, as a client receives them.
#include <gtest/gtest.h>

#include "tests/server/test_server.h"

namespace smartkv::test {
namespace {

const std::string kChat = R"("messages": [{"role": "user", "content": "hi"}])";

Json json_of(const httplib::Result& result) { return Json::parse(result->body); }

std::vector<Json> chunks_of(const httplib::Result& result) {
  std::vector<std::string> data = sse_data(result->body);
  EXPECT_EQ(data.back(), "[DONE]");
  data.pop_back();
  std::vector<Json> chunks;
  for (const std::string& one : data) chunks.push_back(Json::parse(one));
  return chunks;
}

// Returns the chunks of a stream that an error ends. The stream is cut off, without [DONE].
std::vector<Json> chunks_of_failure(const TestServer& server, const std::string& path, const std::string& body) {
  const TestServer::Streamed stream = server.stream(path, body);
  EXPECT_EQ(stream.status, 200);
  EXPECT_FALSE(stream.whole);
  std::vector<Json> chunks;
  for (const std::string& one : sse_data(stream.body)) chunks.push_back(Json::parse(one));
  return chunks;
}

TEST(ResponseTest, Chat) {
  TestServer server;
  const auto result = server.post("/v1/chat/completions", "{" + kChat + R"(, "seed": 5})");
  ASSERT_EQ(result->status, 200);
  EXPECT_EQ(result->get_header_value("Content-Type"), "application/json");
  const Json json = json_of(result);
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "fake");
  EXPECT_TRUE(json["created"].is_number_integer());
  EXPECT_TRUE(json["system_fingerprint"].is_string());
  ASSERT_EQ(json["choices"].size(), 1u);
  EXPECT_EQ(json["choices"][0], Json::parse(R"({"index": 0, "message": {"role": "assistant", "content": "Paris.",
      "refusal": null}, "logprobs": null, "finish_reason": "stop"})"));
  EXPECT_EQ(json["usage"]["prompt_tokens"], 18);
  EXPECT_EQ(json["usage"]["completion_tokens"], 6);
  EXPECT_EQ(json["usage"]["total_tokens"], 24);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(json["usage"]["completion_tokens_details"]["accepted_prediction_tokens"], 0);
  EXPECT_EQ(json["usage"]["kv_cache"]["policy"], "full");
  EXPECT_EQ(json["usage"]["seed"], 5);
  EXPECT_EQ(json["timings"]["total_ms"], 30);
}

TEST(ResponseTest, CompletionsArePromptMajor) {
  TestServer server;
  server.engine.set_answer({"x"}, FinishReason::kLength);
  const Json json = json_of(server.post("/v1/completions", R"({"prompt": ["a", "b"], "n": 2, "echo": true})"));
  EXPECT_EQ(json["object"], "text_completion");
  ASSERT_EQ(json["choices"].size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], i < 2 ? "ax" : "bx");
    EXPECT_EQ(json["choices"][i]["finish_reason"], "length");
  }
  EXPECT_EQ(json["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(json["usage"]["completion_tokens"], 4);
}

TEST(ResponseTest, LegacyLogprobsWithEcho) {
  TestServer server;
  server.engine.set_answer({"\xc3\xa9", "!"});
  const Json json = json_of(server.post("/v1/completions", R"({"prompt": "ab", "echo": true, "logprobs": 1})"));
  const Json& logprobs = json["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json::parse(R"(["a", "b", "bytes:\\xc3", "bytes:\\xa9", "!"])"));
  EXPECT_EQ(logprobs["token_logprobs"], Json::parse("[null, -0.5, -0.5, -0.5, -0.5]"));
  EXPECT_EQ(logprobs["text_offset"], Json::parse("[0, 1, 2, 3, 3]"));
  EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
  EXPECT_EQ(logprobs["top_logprobs"][1], Json::parse(R"({"b": -0.5})"));
}

TEST(ResponseTest, ChatLogprobs) {
  TestServer server;
  const std::string body = "{" + kChat + R"(, "logprobs": true, "top_logprobs": 2})";
  const Json json = json_of(server.post("/v1/chat/completions", body));
  const Json& content = json["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 6u);
  EXPECT_EQ(content[0], Json::parse(R"({"token": "P", "logprob": -0.5, "bytes": [80], "top_logprobs": [
      {"token": "P", "logprob": -0.5, "bytes": [80]}, {"token": "b", "logprob": -1.5, "bytes": [98]}]})"));
}

TEST(ResponseTest, ChatStream) {
  TestServer server;
  const auto result = server.post("/v1/chat/completions", "{" + kChat + R"(, "stream": true})");
  ASSERT_EQ(result->status, 200);
  EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream; charset=utf-8");
  const std::vector<Json> chunks = chunks_of(result);
  ASSERT_EQ(chunks.size(), 5u);
  std::string text;
  for (size_t i = 0; i < chunks.size(); ++i) {
    EXPECT_EQ(chunks[i]["id"], chunks[0]["id"]);
    EXPECT_EQ(chunks[i]["object"], "chat.completion.chunk");
    EXPECT_FALSE(chunks[i].contains("usage"));
    const Json& choice = chunks[i]["choices"][0];
    EXPECT_EQ(choice["finish_reason"], i == 4 ? Json("stop") : Json(nullptr));
    text += choice["delta"].value("content", "");
  }
  EXPECT_EQ(chunks[0]["choices"][0]["delta"], Json::parse(R"({"role": "assistant", "content": ""})"));
  EXPECT_EQ(chunks[4]["choices"][0]["delta"], Json::object());
  EXPECT_EQ(text, "Paris.");
}

TEST(ResponseTest, StreamWithUsage) {
  TestServer server;
  const std::vector<Json> chunks = chunks_of(server.post(
      "/v1/completions", R"({"prompt": "a", "n": 2, "stream": true, "stream_options": {"include_usage": true}})"));
  for (size_t i = 0; i + 1 < chunks.size(); ++i) EXPECT_TRUE(chunks[i].at("usage").is_null());
  EXPECT_EQ(chunks.back()["choices"], Json::array());
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], 12);
  std::vector<std::string> texts(2);
  int finished = 0;
  for (const Json& chunk : chunks) {
    for (const Json& choice : chunk["choices"]) {
      texts[choice["index"].get<size_t>()] += choice["text"].get<std::string>();
      finished += choice["finish_reason"].is_null() ? 0 : 1;
    }
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"Paris.", "Paris."}));
  EXPECT_EQ(finished, 2);
}

TEST(ResponseTest, StreamsTellWhatWasDraftedWhereAsked) {
  TestServer server;
  server.engine.set_drafts({{1, 1, {'a', 'x'}}});  // for "Pa"; the drafted "x" is rejected
  const auto drafts_of = [&](const std::string& path, const std::string& body) {
    std::vector<Json> drafts;
    for (const Json& chunk : chunks_of(server.post(path, body))) {
      if (chunk["choices"][0].contains("drafts")) drafts.push_back(chunk["choices"][0]["drafts"]);
    }
    return drafts;
  };
  const std::vector<Json> all = {Json::parse(R"([{"origin": "model", "text": "P"}, {"origin": "accepted", "text": "a"},
                                                 {"origin": "rejected", "text": "x"}])"),
                                 Json::parse(R"([{"origin": "model", "text": "ris"}])"),
                                 Json::parse(R"([{"origin": "model", "text": "."}])")};
  const std::string asked = R"("stream": true, "stream_options": {"include_drafts": true})";
  EXPECT_EQ(drafts_of("/v1/chat/completions", "{" + kChat + ", " + asked + "}"), all);
  EXPECT_EQ(drafts_of("/v1/completions", R"({"prompt": "a", )" + asked + "}"), all);
  EXPECT_TRUE(drafts_of("/v1/chat/completions", "{" + kChat + R"(, "stream": true})").empty());
}

TEST(ResponseTest, StreamIsNotCompressed) {
  TestServer server;
  auto client = server.client();
  client.set_decompress(false);
  const auto result = client.Post("/v1/completions", {{"Accept-Encoding", "gzip, br"}},
                                  R"({"prompt": "a", "stream": true})", "application/json");
  EXPECT_FALSE(result->has_header("Content-Encoding"));
  EXPECT_TRUE(result->body.starts_with("data: "));
}

TEST(ResponseTest, OldClientsGetAnUnchunkedStream) {
  TestServer server;
  RawConnection connection(server.port);
  std::string request = post_text("/v1/completions", R"({"prompt": "a", "stream": true})");
  connection.send(request.replace(request.find("HTTP/1.1"), 8, "HTTP/1.0"));
  const std::string response = connection.read_all();
  EXPECT_EQ(response.find("chunked"), response.npos);
  EXPECT_TRUE(response.ends_with("data: [DONE]\n\n"));
}

TEST(ResponseTest, ErrorInTheMiddleOfAStream) {
  TestServer server;
  server.engine.set_answer({"a", "b"}, FinishReason::kError);
  const std::vector<Json> chunks =
      chunks_of_failure(server, "/v1/chat/completions", "{" + kChat + R"(, "stream": true})");
  EXPECT_EQ(chunks.back()["error"]["message"], "the model broke");
  EXPECT_EQ(chunks.back()["error"]["type"], "server_error");
}

TEST(ResponseTest, WithoutMemoryARequestIsToComeAgain) {
  TestServer server;
  server.engine.set_answer({"a"}, FinishReason::kOutOfMemory);
  const auto whole = server.post("/v1/completions", R"({"prompt": "a"})");
  EXPECT_EQ(whole->status, 503);
  EXPECT_EQ(whole->get_header_value("Retry-After"), "1");
  EXPECT_EQ(json_of(whole)["error"]["code"], "out_of_memory");
  const std::vector<Json> chunks =
      chunks_of_failure(server, "/v1/chat/completions", "{" + kChat + R"(, "stream": true})");
  EXPECT_EQ(chunks.back()["error"]["code"], "out_of_memory");
}

TEST(ResponseTest, WithoutAllOfItsModelTheServerIsUnavailable) {
  TestServer server;
  server.engine.set_answer({"a"}, FinishReason::kLost);
  const auto whole = server.post("/v1/completions", R"({"prompt": "a"})");
  EXPECT_EQ(whole->status, 503);
  EXPECT_EQ(json_of(whole)["error"]["code"], "unavailable");
  const std::vector<Json> chunks =
      chunks_of_failure(server, "/v1/chat/completions", "{" + kChat + R"(, "stream": true})");
  EXPECT_EQ(chunks.back()["error"]["code"], "unavailable");
  EXPECT_EQ(openai::to_api_error(RequestError(RequestError::Kind::kLost, "", "gone")).status, 503);
}

// Memory may run out while a request is parsed, tokenized or answered.
TEST(ResponseTest, AnAllocationThatFailsIsAnErrorOfMemory) {
  const openai::ApiError error = openai::internal_error(std::bad_alloc());
  EXPECT_EQ(error.status, 503);
  EXPECT_EQ(error.code, "out_of_memory");
  EXPECT_GT(error.retry_after_s, 0);
  EXPECT_EQ(openai::internal_error(std::runtime_error("x")).status, 500);
}

TEST(ResponseTest, ErrorOfAWholeAnswer) {
  TestServer server;
  server.engine.set_answer({"a"}, FinishReason::kError);
  const auto result = server.post("/v1/completions", R"({"prompt": "a"})");
  EXPECT_EQ(result->status, 500);
  EXPECT_EQ(json_of(result), Json::parse(R"({"error": {"message": "the model broke", "type": "server_error",
      "param": null, "code": null}})"));
}

TEST(ResponseTest, TokenizeAndDetokenize) {
  TestServer server;
  EXPECT_EQ(json_of(server.post("/tokenize", R"({"prompt": "ab"})")),
            Json::parse(R"({"count": 2, "max_model_len": 1000, "tokens": [97, 98]})"));
  EXPECT_EQ(json_of(server.post("/tokenize", "{" + kChat + "}"))["count"], 18);
  EXPECT_EQ(json_of(server.post("/tokenize", R"({"prompt": "a", "return_token_strs": true})"))["token_strs"][0], "a");
  EXPECT_EQ(json_of(server.post("/detokenize", R"({"tokens": [97, 98]})")),
            Json::parse(R"({"prompt": "ab", "content": "ab"})"));
  EXPECT_EQ(server.post("/detokenize", R"({"tokens": [999]})")->status, 400);
  EXPECT_EQ(server.post("/tokenize", "{}")->status, 400);
  EXPECT_EQ(json_of(server.client().Get("/tokenizer_info")),
            Json::parse(R"({"bos_token": "<s>", "eos_token": "</s>"})"));
}

TEST(ResponseTest, ModelsHealthAndMetrics) {
  TestServer server;
  auto client = server.client();
  client.set_keep_alive(true);  // a response is counted before the next request of its connection is read
  EXPECT_EQ(json_of(client.Get("/health"))["status"], "ok");
  const Json models = json_of(client.Get("/v1/models"));
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][1]["id"], "alias");
  EXPECT_EQ(json_of(client.Get("/v1/models/fake"))["max_model_len"], 1000);
  EXPECT_EQ(json_of(client.Get("/v1/models/org/none"))["error"]["code"], "model_not_found");
  const std::string text = client.Get("/metrics")->body;
  for (const char* line : {
           "vllm:num_requests_running{model_name=\"fake\"} 0\n",
           "smartkv:kv_cache_usage_perc{model_name=\"fake\"} 0.25\n",
           "vllm:request_success_total{model_name=\"fake\",finished_reason=\"stop\"} 3\n",
           "vllm:request_queue_time_seconds_bucket{model_name=\"fake\",le=\"1\"} 3\n",
           "vllm:request_queue_time_seconds_bucket{model_name=\"fake\",le=\"+Inf\"} 4\n",
           "smartkv:requests_rejected_total{model_name=\"fake\",reason=\"overloaded\"} 2\n",
           "smartkv:requests_rejected_total{model_name=\"fake\",reason=\"key_limit\"} 0\n",
           "smartkv:http_requests_total{route=\"/v1/models\",code=\"200\"} 1\n",
           "smartkv:http_requests_total{route=\"/v1/models/*\",code=\"404\"} 1\n",
       }) {
    EXPECT_NE(text.find(line), text.npos) << line << text;
  }
}

}  // namespace
}  // namespace smartkv::test
