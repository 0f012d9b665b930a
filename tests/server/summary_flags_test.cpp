#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "server/commands/common.h"

namespace smartkv {
namespace {

nlohmann::json policy_of(std::vector<std::string> arguments) {
  CLI::App app;
  OptionFlags flags(app, false);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them in reverse order
  app.parse(arguments);
  return flags.resolve_without_model().engine.kv_cache;
}

std::string flags_error(const std::vector<std::string>& arguments) {
  try {
    policy_of(arguments);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(SummaryFlagsTest, TheSeedsFlagsMakeAPolicy) {
  EXPECT_TRUE(policy_of({}).is_null());
  EXPECT_EQ(policy_of({"--kv-proc", "on"}), (nlohmann::json{{"policy", "block_summary"}}));
  EXPECT_EQ(
      policy_of({"--kv-proc", "on", "--kv-window", "512", "--kv-block", "128", "--kv-r", "4", "--kv-salient", "2",
                 "--kv-proc-layers", "0-11"}),
      (nlohmann::json{
          {"policy", "block_summary"}, {"window", 512}, {"block", 128}, {"r", 4}, {"salient", 2}, {"layers", "0-11"}}));
}

TEST(SummaryFlagsTest, OffOverridesAConfiguredPolicy) {
  const std::string file = testing::TempDir() + "summary_flags.json";
  std::ofstream(file) << R"({"kv_cache": {"policy": "block_summary", "window": 512}})";
  EXPECT_EQ(policy_of({"--config", file})["policy"], "block_summary");
  EXPECT_EQ(policy_of({"--config", file, "--kv-proc", "off"}), "full");
  EXPECT_EQ(policy_of({"--config", file, "--kv-proc", "on", "--kv-r", "4"}),
            (nlohmann::json{{"policy", "block_summary"}, {"r", 4}}));
}

TEST(SummaryFlagsTest, AParameterWithoutThePolicyIsAnError) {
  EXPECT_EQ(flags_error({"--kv-window", "512"}), "--kv-window: needs --kv-proc on");
  EXPECT_EQ(flags_error({"--kv-proc", "off", "--kv-proc-layers", "0-3"}), "--kv-proc-layers: needs --kv-proc on");
  EXPECT_EQ(flags_error({"--kv-proc", "on", "--kv-cache", "full"}),
            "--kv-proc: expected either --kv-proc or --kv-cache, found both");
  EXPECT_EQ(flags_error({"--kv-proc", "off", "--kv-cache", "k4v4"}),
            "--kv-proc: expected either --kv-proc or --kv-cache, found both");
}

}  // namespace
}  // namespace smartkv
