#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/text/chat_template.h"
#include "lab/evaluation/recall.h"
#include "tests/lab/evaluation/evaluation_fixture.h"
#include "tests/text/byte_tokenizer.h"

namespace smartkv {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kWithTools =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr const char* kWithoutTools =
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}<{{ m.role }}>"
    "{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

RecallOptions agent_options(const char* source) {
  RecallOptions options;
  options.task = "agent";
  options.render_chat = [chat = std::make_shared<ChatTemplate>(source)](const Json& messages, bool open) {
    return chat->render({{"messages", messages}, {"add_generation_prompt", open}});
  };
  return options;
}

RecallPrompt make(const RecallOptions& options, int64_t length, int64_t index) {
  return make_recall_prompt(ByteTokenizer(), {}, options, length, index, 4);
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(AgentPrompt, EarlyResultsAreAskedForTwentyCallsLater) {
  for (const char* source : {kWithTools, kWithoutTools}) {
    const RecallPrompt prompt = make(agent_options(source), 8000, 1);
    EXPECT_LE(prompt.context.size(), 8000u);
    EXPECT_GT(prompt.context.size(), 7500u);
    const std::string text = ByteTokenizer().decode(prompt.context, true);
    EXPECT_EQ(count(text, "<tool>") > 0, source == kWithTools);
    ASSERT_EQ(prompt.questions.size(), static_cast<size_t>(kNeedles));
    for (const RecallPrompt::Question& question : prompt.questions) {
      ASSERT_EQ(question.answers.size(), 1u);
      const size_t at = text.find("\"port\":" + question.answers[0]);
      ASSERT_NE(at, std::string::npos);
      EXPECT_GE(count(text.substr(at + 7), "\"port\":"), static_cast<size_t>(kAgentTurns));
      EXPECT_EQ(question.text.find(question.answers[0]), std::string::npos);
      EXPECT_THAT(question.text, testing::StartsWith("<user>"));
      EXPECT_THAT(question.text, testing::HasSubstr("<assistant>The tool reported: {\"machine\":"));
    }
  }
}

TEST(AgentPrompt, IsTheSameEveryTimeAndAnotherForEachIndex) {
  const RecallOptions options = agent_options(kWithTools);
  EXPECT_EQ(make(options, 8000, 1).context, make(options, 8000, 1).context);
  EXPECT_NE(make(options, 8000, 1).context, make(options, 8000, 2).context);
}

TEST(AgentPrompt, NamesWhatIsMissing) {
  const auto error_of = [](const RecallOptions& options, int64_t length) -> std::string {
    try {
      make(options, length, 0);
      return "no error";
    } catch (const EvaluationError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(error_of(agent_options(kWithTools), 2000), testing::HasSubstr("fits 24 tool calls, found 2000 tokens"));
  RecallOptions options;
  options.task = "agent";
  EXPECT_THAT(error_of(options, 8000), testing::HasSubstr("chat template"));
  const char* const last_only = "{% for m in messages %}{{ messages | length }}{{ m.content }}{% endfor %}";
  EXPECT_THAT(error_of(agent_options(last_only), 8000), testing::HasSubstr("changes earlier messages"));
}

}  // namespace
}  // namespace smartkv
