// Compares published chat templates with Python's jinja2. The fixtures are made by
// tests/fixtures/chat_templates/make.py.
#include "engine/text/chat_template.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "tests/text/jinja/fixture.h"

namespace smartkv::jinja_test {
namespace {

TEST(ChatTemplate, ConversationsEqualJinja2) {
  std::map<std::string, int> rendered;  // by template; other conversations are errors in jinja2, too
  for (const auto& item : expected()["templates"]) {
    const std::string name = item["template"];
    EXPECT_EQ(difference(outcome(read_fixture(name), item["context"]), item), "") << name;
    rendered[name] += item.contains("output") ? 1 : 0;
  }
  EXPECT_GE(rendered.size(), 8u);
  for (const auto& [name, count] : rendered) EXPECT_GE(count, 8) << name;
}

TEST(ChatTemplate, NowIsLocalTimeUnlessGiven) {
  const ChatTemplate now("{{ strftime_now('%Y') }}");
  EXPECT_EQ(now.render(nlohmann::ordered_json::object(), fixed_now), "2026");
  EXPECT_EQ(now.render(nlohmann::ordered_json::object()).size(), 4u);
}

TEST(ChatTemplate, RendersInSeveralThreads) {
  const ChatTemplate shared(read_fixture("llama31_tools.jinja"));
  const nlohmann::ordered_json& context = expected()["templates"][0]["context"];
  const std::string alone = shared.render(context, fixed_now);
  std::vector<std::string> found(4);
  std::vector<std::thread> threads;
  for (std::string& text : found) threads.emplace_back([&] { text = shared.render(context, fixed_now); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : found) EXPECT_EQ(text, alone);
}

}  // namespace
}  // namespace smartkv::jinja_test
