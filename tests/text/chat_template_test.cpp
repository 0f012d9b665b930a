// The template interpreter against Python's jinja2: fixtures made by tests/fixtures/chat_templates/make.py.
#include "engine/text/chat_template.h"

#include <fstream>
#include <random>
#include <sstream>

#include <gtest/gtest.h>

namespace smartkv {
namespace {

const std::string kFixtures = SMARTKV_FIXTURES "/chat_templates/";

std::string read_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::tm fixed_now() {
  std::tm time{};
  time.tm_year = 126;
  time.tm_mon = 10;
  time.tm_mday = 21;
  time.tm_hour = 3;
  time.tm_min = 4;
  time.tm_sec = 5;
  return time;
}

// The output, or "error: ..." where jinja2 fails too.
nlohmann::json outcome(const std::string& source, const nlohmann::ordered_json& context) {
  try {
    return {{"output", ChatTemplate(source).render(context, fixed_now)}};
  } catch (const ChatTemplateError& error) {
    return {{"error", error.what()}};
  }
}

void expect_same(const nlohmann::json& found, const nlohmann::ordered_json& expected, const std::string& what) {
  if (expected.contains("output")) {
    EXPECT_EQ(found.value("output", "error: " + found.value("error", "")), expected["output"].get<std::string>()) << what;
  } else {
    EXPECT_TRUE(found.contains("error")) << what << " gives " << found << " where jinja2 says " << expected["error"];
  }
}

class ChatTemplates : public testing::Test {
 protected:
  const nlohmann::ordered_json expected_ = nlohmann::ordered_json::parse(read_file(kFixtures + "expected.json"));
};

TEST_F(ChatTemplates, ConversationsEqualJinja2) {
  int seen = 0;
  for (const auto& item : expected_["templates"]) {
    const std::string name = item["template"];
    expect_same(outcome(read_file(kFixtures + name), item["context"]), item, name + " of " + item["context"]["messages"].dump());
    ++seen;
  }
  EXPECT_GE(seen, 8 * 8);
}

TEST_F(ChatTemplates, SnippetsEqualJinja2) {
  for (const auto& item : expected_["snippets"]) {
    expect_same(outcome(item["source"], expected_["context"]), item, item["source"]);
  }
}

TEST_F(ChatTemplates, MutationsNeverCrashOrHang) {
  std::mt19937 random(7);
  std::vector<std::string> sources;
  for (const char* name : {"llama31_tools", "mistral_v3_tools", "vicuna", "llama2"}) sources.push_back(read_file(kFixtures + name + ".jinja"));
  const auto& context = expected_["templates"][10]["context"];
  int rendered = 0, refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string source = sources[random() % sources.size()];
    for (uint64_t n = 1 + random() % 3; n > 0; --n) {
      const size_t at = random() % source.size();
      switch (random() % 3) {
        case 0: source[at] = "{}%#-+'\"()[]|.,: \n0x"[random() % 20]; break;
        case 1: source.erase(at, random() % 8); break;
        default: source.insert(at, source.substr(random() % source.size(), random() % 20));
      }
      if (source.empty()) source = "x";
    }
    try {
      ChatTemplate(source, {100'000, 1 << 20}).render(context, fixed_now);
      ++rendered;
    } catch (const ChatTemplateError&) {
      ++refused;
    }
  }
  EXPECT_GT(rendered, 0);
  EXPECT_GT(refused, 0);
}

std::string error_of(const std::string& source, const nlohmann::ordered_json& context = nlohmann::ordered_json::object()) {
  return outcome(source, context).value("error", "no error");
}

TEST(ChatTemplate, NamesLineAndConstruct) {
  EXPECT_EQ(error_of("a\n{% include 'x' %}"), "line 2: unknown tag \"include\"");
  EXPECT_EQ(error_of("{{ x\n | frobnicate }}"), "line 2: unknown filter \"frobnicate\"");
  EXPECT_EQ(error_of("{{ x is shiny }}"), "line 1: unknown test \"shiny\"");
  EXPECT_EQ(error_of("{{ open('/etc/passwd') }}"), "line 1: unknown function \"open\"");
  EXPECT_EQ(error_of("{{ x.__class__() }}"), "line 1: unknown method \"__class__\"");
  EXPECT_EQ(error_of("\n\n{{ raise_exception('no tools') }}"), "line 3: no tools");
  EXPECT_EQ(error_of("{{ a.b }}"), "line 1: \"a\" is undefined");
  EXPECT_EQ(error_of("{% for x in y recursive %}{% endfor %}"), "line 1: recursive loops are not supported");
}

TEST(ChatTemplate, IsBounded) {
  EXPECT_NE(error_of("{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}").find("steps"), std::string::npos);
  EXPECT_NE(error_of("{{ 'x' * 100000000000 }}").find("limit"), std::string::npos);
  EXPECT_NE(error_of("{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}").find("limit"), std::string::npos);
  EXPECT_NE(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("deep"), std::string::npos);
  EXPECT_NE(error_of("{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}").find("deep"), std::string::npos);
  EXPECT_NE(error_of("{{ " + std::string(100000, '-') + "1 }}").find("deep"), std::string::npos);
  std::string nested;
  for (int i = 0; i < 5000; ++i) nested += "{% if true %}";
  EXPECT_NE(error_of(nested).find("deep"), std::string::npos);
  EXPECT_NE(error_of("{{ range(1000000)|list }}").find("range"), std::string::npos);
  EXPECT_NE(error_of("{{ 9223372036854775807 + 1 }}").find("overflow"), std::string::npos);
}

TEST(ChatTemplate, NowIsLocalTimeUnlessGiven) {
  const ChatTemplate now("{{ strftime_now('%Y') }}");
  EXPECT_EQ(now.render(nlohmann::ordered_json::object(), fixed_now), "2026");
  EXPECT_EQ(now.render(nlohmann::ordered_json::object()).size(), 4u);
}

}  // namespace
}  // namespace smartkv
