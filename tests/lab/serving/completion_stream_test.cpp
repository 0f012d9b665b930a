// How the load generator reads a streamed response.
#include "lab/serving/completion_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace smartkv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kToken = R"({"choices": [{"text": "a", "finish_reason": null}], "usage": null})";
const std::string kLast = R"({"choices": [{"text": "", "finish_reason": "length"}]})";
const std::string kUsage =
    R"({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}})";

TEST(SseParser, FindsEventsHoweverTheBytesAreCut) {
  const std::string bytes =
      ": comment\nevent: x\ndata: one\n\ndata:two\r\ndata: three\r\n\r\n\n\ndata: {\"a\": 1}\n\ndata: cut";
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    std::vector<std::string> events;
    SseParser parser([&](std::string_view data) { events.emplace_back(data); });
    for (size_t i = 0; i < bytes.size(); i += piece) parser.feed(std::string_view(bytes).substr(i, piece));
    ASSERT_THAT(events, ElementsAre("one", "two\nthree", "{\"a\": 1}")) << "pieces of " << piece;
  }
}

TEST(CompletionReader, TimesAWholeResponse) {
  CompletionReader reader;
  reader.add(R"({"choices": [{"text": "", "finish_reason": null}]})", 0.5);  // no token yet
  reader.add(kToken, 1);
  reader.add(kToken, 1.5);
  reader.add(kLast, 2);
  reader.add(kUsage, 3);
  reader.add("[DONE]", 3);
  const RequestOutcome outcome = reader.finish(5, 3);
  EXPECT_TRUE(outcome.completed()) << outcome.failure;
  EXPECT_EQ(outcome.first_token_s, 1);
  EXPECT_EQ(outcome.last_token_s, 2);
  EXPECT_EQ(outcome.per_token_s(), 0.5);
  EXPECT_EQ(outcome.output_tokens, 3);
  EXPECT_EQ(outcome.cached_tokens, 2);
}

TEST(CompletionReader, TakesUsageWhereverItStands) {
  CompletionReader reader;
  reader.add(
      R"({"choices": [{"text": "a", "finish_reason": "length"}], "usage": {"prompt_tokens": 5, "completion_tokens": 1}})",
      1);
  reader.add("[DONE]", 1);
  EXPECT_TRUE(reader.finish(5, 1).completed());
  EXPECT_EQ(reader.finish(5, 1).per_token_s(), 0);
}

TEST(CompletionReader, ReadsAChat) {
  CompletionReader reader;
  reader.add(R"({"choices": [{"delta": {"role": "assistant", "content": null}, "finish_reason": null}]})", 0.5);
  reader.add(R"({"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": null}]})", 1);
  reader.add(R"({"choices": [{"delta": {"content": "He"}, "finish_reason": null}]})", 2);
  reader.add(R"({"choices": [{"delta": {"content": "llo"}, "finish_reason": null}]})", 2.5);
  reader.add(R"({"choices": [{"delta": {}, "finish_reason": "length"}]})", 3);
  reader.add(R"({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "kv_cache": {"bytes": 77}}})", 3);
  reader.add("[DONE]", 3);
  const RequestOutcome outcome = reader.finish(std::nullopt, 3);
  EXPECT_TRUE(outcome.completed()) << outcome.failure;
  EXPECT_EQ(outcome.text, "Hello");
  EXPECT_EQ(outcome.first_token_s, 1);
  EXPECT_EQ(outcome.last_token_s, 3);
  EXPECT_EQ(outcome.prompt_tokens, 5);
  EXPECT_EQ(outcome.kv_bytes, 77);
}

std::string failure_of(const std::vector<std::string>& events, int64_t prompt_tokens = 5, int64_t output_tokens = 3) {
  CompletionReader reader;
  for (const std::string& event : events) reader.add(event, 1);
  return reader.finish(prompt_tokens, output_tokens).failure;
}

TEST(CompletionReader, SaysWhatIsMissing) {
  EXPECT_EQ(failure_of({kToken, kLast, kUsage, "[DONE]"}), "");
  EXPECT_THAT(failure_of({kToken, kLast, kUsage}), HasSubstr("[DONE]"));
  EXPECT_THAT(failure_of({kToken, kLast, "[DONE]"}), HasSubstr("usage"));
  EXPECT_THAT(failure_of({kToken, kLast, kUsage, "[DONE]"}, 6), HasSubstr("prompt_tokens: expected 6, found 5"));
  EXPECT_THAT(failure_of({kToken, kLast, kUsage, "[DONE]"}, 5, 4), HasSubstr("completion_tokens: expected 4, found 3"));
  EXPECT_THAT(failure_of({kToken, kUsage, "[DONE]"}), HasSubstr("finish_reason"));
  EXPECT_EQ(failure_of({kToken, R"({"error": {"message": "the model broke"}})", "[DONE]"}), "the model broke");
  EXPECT_THAT(failure_of({"nonsense", "[DONE]"}), HasSubstr("nonsense"));
  EXPECT_THAT(failure_of({R"({"choices": [{"text": 3}]})"}), HasSubstr("not a completion"));
}

TEST(ErrorMessage, ReadsOpenAisForm) {
  EXPECT_EQ(error_message(R"({"error": {"message": "full", "code": null}})"), "full");
  EXPECT_EQ(error_message("Bad gateway"), "Bad gateway");
}

}  // namespace
}  // namespace smartkv
