// Compares expressions and statements with Python's jinja2, one small template each.
#include <gtest/gtest.h>

#include "tests/text/jinja/fixture.h"

namespace smartkv::jinja_test {
namespace {

TEST(JinjaExpression, EqualsJinja2) {
  int seen = 0;
  for (const auto& item : expected()["snippets"]) {
    const std::string source = item["source"];
    EXPECT_EQ(difference(outcome(source, expected()["context"]), item), "") << source;
    ++seen;
  }
  EXPECT_GE(seen, 1500);
}

// jinja2 runs these. Here they are refused when they are loaded, rather than run differently.
TEST(JinjaExpression, RefusesAtLoadWhatItDoesNotHave) {
  for (const auto& [source, error] : std::vector<std::pair<std::string, std::string>>{
           {"a\n{% include 'x' %}", "line 2: unknown tag \"include\""},
           {"{% call f() %}x{% endcall %}", "line 1: unknown tag \"call\""},
           {"{% for x in y recursive %}{% endfor %}", "line 1: recursive loops are not supported"},
           {"{{ x|join(*y) }}", "line 1: argument unpacking is supported for functions and macros only"},
           {"{{ x.join(*y) }}", "line 1: argument unpacking is supported for functions and macros only"},
           {"{{ x\n | frobnicate }}", "line 2: unknown filter \"frobnicate\""},
           {"{{ x | map('frobnicate') }}", "line 1: unknown filter \"frobnicate\""},
           {"{{ x | select('shiny') }}", "line 1: unknown test \"shiny\""},
           {"{{ x | selectattr('a', 'shiny') }}", "line 1: unknown test \"shiny\""},
           {"{{ x is shiny }}", "line 1: unknown test \"shiny\""},
           {"{{ x | trim('a', 'b') }}", "line 1: the filter \"trim\" takes at most 1 arguments"},
           {"{{ x | tojson(idnent=2) }}", "line 1: the filter \"tojson\" has no argument \"idnent\""},
           {"{{ x is eq }}", "line 1: the test \"eq\" takes 1 arguments"},
           {"{{ open('/etc/passwd') }}", "line 1: unknown function \"open\""},
           {"{{ range() }}", "line 1: the function \"range\" takes 1 to 3 arguments, found 0"},
           {"{{ x.__class__() }}", "line 1: unknown method \"__class__\""},
           {"{{ x.format(1) }}", "line 1: unknown method \"format\""},
           {"{{ x.strip('a', 2) }}", "line 1: the method \"strip\" takes 0 to 1 arguments, found 2"},
           {"{{ 0x1F }}", "line 1: expected }}, found \"x1F\""},
       }) {
    EXPECT_THROW(ChatTemplate{source}, ChatTemplateError) << source;
    EXPECT_EQ(error_of(source), error);
  }
}

// Templates guard filters of other engines by conditions. As in jinja2, such a filter fails only when it runs.
TEST(JinjaExpression, UnknownFiltersUnderAConditionFailWhenTheyRun) {
  for (const char* guarded :
       {"{% if x %}{{ 1|from_json }}{% endif %}", "{% if x is shiny %}{% elif y|from_json %}{% endif %}",
        "{{ (1|from_json) if x else 'b' }}"}) {
    EXPECT_NO_THROW(ChatTemplate{guarded}) << guarded;
  }
  EXPECT_EQ(error_of("{% if true %}\n{{ 1|from_json }}{% endif %}"), "line 2: unknown filter \"from_json\"");
  EXPECT_EQ(error_of("{% if false %}{{ 1|from_json }}{% endif %}"), "no error");
  for (const char* open :
       {"{{ 1|from_json }}", "{% if x %}{% for i in x %}{{ i|from_json }}{% endfor %}{% endif %}",
        "{% macro f() %}{{ 1|from_json }}{% endmacro %}", "{% for i in x|from_json %}{% endfor %}"}) {
    EXPECT_THROW(ChatTemplate{open}, ChatTemplateError) << open;
  }
}

TEST(JinjaExpression, RunTimeErrorsNameTheLine) {
  EXPECT_EQ(error_of("\n\n{{ raise_exception('no tools') }}"), "line 3: no tools");
  EXPECT_EQ(error_of("{{ a.b }}"), "line 1: \"a\" is undefined");
  EXPECT_EQ(error_of("{% if true %}\n{{ 'a' + 1 }}{% endif %}"),
            "line 2: unsupported operand types for +: \"str\" and \"int\"");
  EXPECT_EQ(error_of("\n{{ {(1, 2): 3} }}"),
            "line 2: expected a string, a number or none as a dictionary's key, found \"tuple\"");
}

}  // namespace
}  // namespace smartkv::jinja_test
