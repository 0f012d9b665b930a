// The flags of generate and chat are fields of requests.
#include "server/commands/sampling_flags.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace smartkv {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

Json body_of(std::vector<std::string> arguments) {
  CLI::App app;
  const SamplingFlags flags(app, 256);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them in reverse order
  app.parse(arguments);
  return flags.body();
}

TEST(SamplingFlagsTest, AreFieldsOfARequest) {
  EXPECT_EQ(body_of({}), (Json{{"max_tokens", 256}}));
  EXPECT_EQ(body_of({"-n", "9", "-t", "0.5", "--top-p", "0.9", "--top-k", "7", "--min-p", "0.1", "--repetition-penalty",
                     "1.5", "--seed", "3", "--stop", "a", "--stop", "b", "--ignore-eos"}),
            (Json{{"max_tokens", 9},
                  {"temperature", 0.5},
                  {"top_p", 0.9},
                  {"top_k", 7},
                  {"min_p", 0.1},
                  {"repetition_penalty", 1.5},
                  {"seed", 3},
                  {"stop", {"a", "b"}},
                  {"ignore_eos", true}}));
}

TEST(SamplingFlagsTest, AreOfTheFieldsType) {
  EXPECT_THROW(body_of({"--top-k", "1.5"}), CLI::ParseError);
  EXPECT_THROW(body_of({"--temperature", "hot"}), CLI::ParseError);
  EXPECT_THROW(body_of({"--presence-penalty", "1"}), CLI::ParseError);  // not a flag
}

TEST(SamplingFlagsTest, HelpShowsDefaults) {
  CLI::App app;
  const SamplingFlags flags(app, 256);
  const std::string help = app.help();
  EXPECT_THAT(help, HasSubstr("--max-tokens INT=256"));
  EXPECT_THAT(help, HasSubstr("--temperature FLOAT=1"));
  EXPECT_THAT(help, HasSubstr("--top-k INT=0"));
}

}  // namespace
}  // namespace smartkv
