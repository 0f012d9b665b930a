// The command line of `smartkv eval`. tests/lab/evaluation tests its measurements.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/server/command_runner.h"
#include "tests/server/tiny_model_folder.h"

namespace smartkv {
namespace {

using ::testing::HasSubstr;

test::Ran run_eval(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "eval");
  return test::run(std::move(arguments));
}

TEST(Eval, RefusesWrongUsage) {
  EXPECT_EQ(run_eval({"divergence"}).code, kUsageError);
  EXPECT_EQ(run_eval({"beauty", "--model", "m", "--text", "t", "--kv-cache", "full"}).code, kUsageError);
  EXPECT_EQ(run_eval({"drift", "--model", "m", "--text", "t", "--kv-cache", "full", "--share", "0"}).code, kUsageError);
  EXPECT_EQ(run_eval({"recall", "--model", "m", "--text", "t", "--kv-cache", "full", "--depths", "0.5,1.5"}).code,
            kUsageError);
}

TEST(Eval, RefusesOptionsThatTheMetricWouldIgnore) {
  const test::Ran recall =
      run_eval({"recall", "--model", "m", "--text", "t", "--kv-cache", "full", "--context", "512"});
  EXPECT_EQ(recall.code, kUsageError);
  EXPECT_THAT(recall.error, HasSubstr("--context: not an option of eval recall"));
  const test::Ran drift = run_eval({"drift", "--model", "m", "--text", "t", "--kv-cache", "full", "--from", "5"});
  EXPECT_EQ(drift.code, kUsageError);
  EXPECT_THAT(drift.error, HasSubstr("--from"));
  const test::Ran several =
      run_eval({"recall", "--model", "m", "--text", "t", "--kv-cache", "full", "--facts-asked", "5"});
  EXPECT_EQ(several.code, kUsageError);
  EXPECT_THAT(several.error, HasSubstr("--facts-asked"));
  const test::Ran words = run_eval(
      {"recall", "--model", "m", "--text", "t", "--kv-cache", "full", "--task", "words", "--wording", "locker"});
  EXPECT_EQ(words.code, kUsageError);
  EXPECT_THAT(words.error, HasSubstr("--wording: not an option of eval recall --task words"));
}

TEST(Eval, NamesAModelThatIsNotThere) {
  const test::Ran result = run_eval({"perplexity", "--model", "no_such.gguf", "--text", "t", "--kv-cache", "full"});
  EXPECT_EQ(result.code, kRuntimeError);
  EXPECT_THAT(result.error, HasSubstr("no_such.gguf"));
}

TEST(Eval, NeedsOneTextAndPoliciesUnlessItReports) {
  EXPECT_THAT(run_eval({"recall", "--model", "m", "--kv-cache", "full"}).error,
              HasSubstr("--text: expected one file for eval recall, found 0"));
  EXPECT_THAT(run_eval({"recall", "--model", "m", "--text", "a", "--text", "b", "--kv-cache", "full"}).error,
              HasSubstr("found 2"));
  EXPECT_THAT(run_eval({"recall", "--model", "m", "--text", "t"}).error, HasSubstr("--kv-cache: required"));
  EXPECT_THAT(run_eval({"recall", "--model", "m", "--text", "t", "--kv-cache", "full", "--quick"}).error,
              HasSubstr("--quick: not an option of eval recall"));
  EXPECT_THAT(run_eval({"report", "--model", "m", "--json", "j"}).error,
              HasSubstr("--json: not an option of eval report"));
  EXPECT_THAT(run_eval({"report", "--model", "m", "--out", "page.txt"}).error,
              HasSubstr("--out: expected a file name that ends in .html, found \"page.txt\""));
  EXPECT_THAT(run_eval({"report", "--model", "m", "--out", "no/such/page.html"}).error,
              HasSubstr("--out: no/such is not a folder"));
  EXPECT_EQ(run_eval({"report", "--model", "m", "--only", "beauty"}).code, kUsageError);
}

TEST(Eval, WritesAReportAsHtmlAndMarkdown) {
  const test::TinyModelFolder model("eval_report");
  const std::string path = model.path(), out = path + "/page.html", text = "prose=" + model.text("prose.txt", 60);
  const auto report = [&](std::vector<const char*> more) {
    std::vector<const char*> arguments = {"report", "--model",    path.c_str(), "--out",     out.c_str(), "--threads",
                                          "1",      "--kv-cache", "k8v8,k2v2",  "--context", "128"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_eval(arguments);
  };
  EXPECT_THAT(report({"--text", "prose.txt"}).error, HasSubstr("--text: expected KIND=FILE for eval report"));
  EXPECT_THAT(report({"--text", text.c_str(), "--text", text.c_str()}).error, HasSubstr("prose is given twice"));
  const test::Ran ran = report({"--text", text.c_str(), "--only", "divergence,speed", "--no-speed"});
  ASSERT_EQ(ran.code, kOk) << ran.error;
  EXPECT_EQ(ran.out, out + "\n" + path + "/page.md\n");
  std::stringstream html, markdown;
  html << std::ifstream(out).rdbuf();
  markdown << std::ifstream(path + "/page.md").rdbuf();
  EXPECT_THAT(html.str(), HasSubstr("<h2>Bytes and divergence</h2>"));
  EXPECT_THAT(markdown.str(), HasSubstr("| k2v2 |"));
  EXPECT_THAT(markdown.str(), HasSubstr("prose: prose.txt"));
  EXPECT_THAT(markdown.str(), testing::Not(HasSubstr("## Speed")));
}

}  // namespace
}  // namespace smartkv
