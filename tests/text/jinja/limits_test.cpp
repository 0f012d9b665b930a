// No template, and no conversation, makes the interpreter crash, hang or grow without end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/text/jinja/fixture.h"

namespace smartkv::jinja_test {
namespace {

using testing::HasSubstr;

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(JinjaLimits, Steps) {
  const std::string two_loops = "{% for a in range(100000) %}{% for b in range(100000) %}";
  const std::string ends = "{% endfor %}{% endfor %}";
  EXPECT_THAT(error_of(two_loops + "x" + ends), HasSubstr("steps"));
  // Work inside one step counts, too.
  const std::string big = "{% set s = 'x' * 1000000 %}{% set l = range(10000)|list %}";
  for (const char* work : {"s|upper", "s|length", "s[1:]", "s ~ s", "s == s ~ ''", "'y' in s", "s.split('y')",
                           "l|tojson", "l + l", "l|sort", "l|unique|list", "l|map('string')|list", "99999999 in l",
                           "l|join", "l[1:]", "l == l + []", "s|replace('x', 'y')", "l ~ ''"}) {
    const std::string source = big + "{% for a in range(5000) %}{% set z = " + work + " %}{% endfor %}";
    EXPECT_THROW(ChatTemplate(source, {60'000}).render({}, fixed_now), ChatTemplateError) << work;
  }
}

TEST(JinjaLimits, Bytes) {
  const std::string loop = "{% set ns = namespace(s='x', l=[1]) %}{% for i in range(100) %}";
  EXPECT_THAT(error_of("{{ 'x' * 100000000000 }}"), HasSubstr("limit"));
  EXPECT_THAT(error_of(loop + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}"), HasSubstr("limit"));
  EXPECT_THAT(error_of(loop + "{% set ns.s = ns.s + ns.s %}{% endfor %}"), HasSubstr("limit"));
  EXPECT_THAT(error_of(loop + "{% set ns.l = ns.l + ns.l %}{% endfor %}"), HasSubstr("steps"));
  EXPECT_THAT(error_of(loop + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}"), HasSubstr("limit"));
  EXPECT_THAT(error_of(loop + "{% set ns.l = {'a': ns.l, 'b': ns.l} %}{% endfor %}{{ ns.l|tojson }}"),
              HasSubstr("limit"));
  EXPECT_THAT(error_of("{% set s = 'x' * 1000000 %}{% for i in range(1000) %}{{ s }}{% endfor %}"), HasSubstr("limit"));
  EXPECT_THAT(error_of("{% set s = 'x' * 10000000 %}{{ [s] * 1000 }}"), HasSubstr("limit"));
  EXPECT_THAT(error_of("{{ range(1000000)|list }}"), HasSubstr("range"));
  EXPECT_THAT(error_of("{{ 9223372036854775807 + 1 }}"), HasSubstr("overflow"));
  EXPECT_THAT(error_of("{{ 9223372036854775808 }}"), HasSubstr("range"));
}

TEST(JinjaLimits, DepthOfTheSource) {
  constexpr int kMany = 100'000;
  EXPECT_THAT(error_of("{{ " + repeated("(", kMany) + "1" + repeated(")", kMany) + " }}"), HasSubstr("deep"));
  EXPECT_THAT(error_of("{{ " + repeated("[", kMany) + repeated("]", kMany) + " }}"), HasSubstr("deep"));
  for (const char* before : {"-", "not ", "{'a': ", "x[", "x("})
    EXPECT_NE(error_of("{{ " + repeated(before, kMany) + "1 }}"), "no error");
  for (const char* behind :
       {"+1", "~1", "|string", ".a", "[0]", "[1:]", " is none", " or 1", " and 1", " if 1", " * 2"}) {
    EXPECT_NE(error_of("{{ x" + repeated(behind, kMany) + " }}"), "no error") << behind;
  }
  EXPECT_THAT(error_of("{{ 1" + repeated(" if 1 else 1", kMany) + " }}"), HasSubstr("deep"));
  EXPECT_THAT(error_of(repeated("{% if true %}", kMany)), HasSubstr("deep"));
  EXPECT_THAT(error_of(repeated("{% for x in y %}", kMany)), HasSubstr("deep"));
  // Chains that begin inside brackets, inside chains, ...
  EXPECT_THAT(error_of("{{ " + repeated("[", 150) + "1" + repeated(repeated("+1", 100) + "]", 150) + " }}"),
              HasSubstr("deep"));
}

TEST(JinjaLimits, DepthOfTheRun) {
  EXPECT_THAT(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("deep"));
  const std::string nest = repeated("{% if true %}", 100), ends = repeated("{% endif %}", 100);
  EXPECT_THAT(error_of("{% macro f() %}" + nest + "{{ " + repeated("(1 + ", 40) + "f()" + repeated(")", 40) + " }}" +
                       ends + "{% endmacro %}{{ f() }}"),
              HasSubstr("deep"));
  EXPECT_THAT(error_of("{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}"),
              HasSubstr("deep"));
  EXPECT_THAT(error_of("{% set ns = namespace() %}{% set ns.self = ns %}"), HasSubstr("namespace"));
  EXPECT_THAT(error_of("{% set ns = namespace() %}{% set ns.self = [{'a': ns}] %}"), HasSubstr("namespace"));
}

TEST(JinjaLimits, DepthAndSizeOfTheConversation) {
  nlohmann::ordered_json deep = 1;
  for (int i = 0; i < 100'000; ++i) deep = nlohmann::ordered_json::array({std::move(deep)});
  EXPECT_THAT(outcome("{{ x }}", {{"x", std::move(deep)}}).text, HasSubstr("variable \"x\""));
  EXPECT_EQ(outcome("{{ x }}", {{"x", 18446744073709551615u}}).text, "18446744073709551615");
  EXPECT_THAT(outcome("{{ x + 1 }}", {{"x", 18446744073709551615u}}).text, HasSubstr("unsupported operand types"));
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (int i = 0; i < 2000; ++i) {
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(500, 'x')}});
  }
  for (const char* name : {"llama31_tools.jinja", "mistral_v3_tools.jinja", "llama2.jinja", "smollm2.jinja"}) {
    const nlohmann::ordered_json context = {{"messages", messages}, {"bos_token", "<s>"}, {"eos_token", "</s>"}};
    EXPECT_FALSE(outcome(read_fixture(name), context).failed) << name;  // a long conversation is well inside the limits
  }
}

TEST(JinjaLimits, MutationsNeverCrashOrHang) {
  std::mt19937 random(7);
  std::vector<std::string> sources;
  for (const char* name : {"llama31_tools", "mistral_v3_tools", "mistral_v1", "vicuna", "llama2", "tinyllama"}) {
    sources.push_back(read_fixture(std::string(name) + ".jinja"));
  }
  for (const auto& item : expected()["snippets"]) sources.push_back(item["source"]);
  const auto& conversation = expected()["templates"][10]["context"];
  int rendered = 0, refused = 0;
  for (int i = 0; i < 6000; ++i) {
    const bool is_snippet = i % 2 == 0;
    std::string source = sources[is_snippet ? random() % sources.size() : random() % 6];
    for (uint64_t n = 1 + random() % 3; n > 0; --n) {
      const std::string& other = is_snippet ? sources[6 + random() % (sources.size() - 6)] : source;
      const std::string piece = other.empty() ? "x" : other.substr(random() % other.size(), random() % 20);
      const size_t at = random() % (source.size() + 1);
      switch (random() % 4) {
        case 0: source.insert(at, 1, "{}%#-+'\"()[]|.,: \n0x\\*~\xc3"[random() % 24]); break;
        case 1: source.erase(at, random() % 8); break;
        case 2: source.replace(at, random() % 4, piece); break;
        default: source.insert(at, piece);
      }
    }
    try {
      ChatTemplate(source, {100'000, 1 << 20}).render(is_snippet ? expected()["context"] : conversation, fixed_now);
      ++rendered;
    } catch (const ChatTemplateError&) {
      ++refused;
    }
  }
  EXPECT_GT(rendered, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace smartkv::jinja_test
