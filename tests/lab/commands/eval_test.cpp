// The command line of `smartkv eval`. tests/lab/evaluation tests its measurements.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/command_runner.h"

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

}  // namespace
}  // namespace smartkv
