// The command line of `smartkv eval`; what it measures is tested in tests/engine/evaluation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/commands/command.h"

namespace smartkv {
namespace {

using testing::HasSubstr;

struct Result {
  int code;
  std::string error;
};

Result run_eval(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), {"smartkv", "eval"});
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  const int code = run_command_line(static_cast<int>(arguments.size()), arguments.data());
  testing::internal::GetCapturedStdout();
  return {code, testing::internal::GetCapturedStderr()};
}

TEST(Eval, RefusesWrongUsage) {
  EXPECT_EQ(run_eval({"divergence"}).code, kUsageError);
  EXPECT_EQ(run_eval({"beauty", "--model", "m", "--text", "t", "--kv-cache", "full"}).code, kUsageError);
  EXPECT_EQ(run_eval({"drift", "--model", "m", "--text", "t", "--kv-cache", "full", "--share", "0"}).code, kUsageError);
  EXPECT_EQ(run_eval({"recall", "--model", "m", "--text", "t", "--kv-cache", "full", "--depths", "0.5,1.5"}).code,
            kUsageError);
}

TEST(Eval, RefusesOptionsThatTheMetricWouldIgnore) {
  const Result recall = run_eval({"recall", "--model", "m", "--text", "t", "--kv-cache", "full", "--context", "512"});
  EXPECT_EQ(recall.code, kUsageError);
  EXPECT_THAT(recall.error, HasSubstr("--context: not an option of eval recall"));
  const Result drift = run_eval({"drift", "--model", "m", "--text", "t", "--kv-cache", "full", "--from", "5"});
  EXPECT_EQ(drift.code, kUsageError);
  EXPECT_THAT(drift.error, HasSubstr("--from"));
}

TEST(Eval, NamesAModelThatIsNotThere) {
  const Result result = run_eval({"perplexity", "--model", "no_such.gguf", "--text", "t", "--kv-cache", "full"});
  EXPECT_EQ(result.code, kRuntimeError);
  EXPECT_THAT(result.error, HasSubstr("no_such.gguf"));
}

}  // namespace
}  // namespace smartkv
