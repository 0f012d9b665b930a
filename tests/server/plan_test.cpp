// smartkv plan and smartkv completions, as a shell calls them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "server/commands/command.h"
#include "server/commands/options.h"
#include "server/openai/json_body.h"
#include "tests/server/command_runner.h"

namespace smartkv {
namespace {

using test::Ran;
using test::run;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

bool has_program(const std::string& name) { return std::system(("command -v " + name + " >/dev/null").c_str()) == 0; }

// Returns what a shell command prints, errors included.
std::string output_of(const std::string& command) {
  FILE* shell = ::popen((command + " 2>&1").c_str(), "r");
  std::string text;
  for (int c = std::fgetc(shell); c != EOF; c = std::fgetc(shell)) text += static_cast<char>(c);
  ::pclose(shell);
  return text;
}

// Returns what bash offers after these words, the last of which is being typed.
std::string offered(const std::vector<std::string>& words) {
  const std::string script = ::testing::TempDir() + "smartkv_completions.bash";
  std::string line;
  for (const std::string& word : words) line += " '" + word + "'";
  std::ofstream(script) << run({"completions", "bash"}).out << "COMP_WORDS=(" << line
                        << ")\nCOMP_CWORD=" << words.size() - 1 << "\n_smartkv\nprintf '%s ' \"${COMPREPLY[@]}\"\n";
  const std::string text = output_of("bash " + script);
  std::filesystem::remove(script);
  return text;
}

// Returns what zsh offers for a line, each offer on a line of its own. compinit finds the script in a folder, and a
// shell's first completion loads it.
std::string offered_by_zsh(const std::string& line) {
  const std::filesystem::path folder = ::testing::TempDir() + "smartkv_zsh";
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "_smartkv") << run({"completions", "zsh"}).out;
  const std::string text = output_of("timeout 60 zsh -f '" SMARTKV_SOURCE "/tests/server/offers.zsh' '" +
                                     folder.string() + "' '" + line + "'");
  std::filesystem::remove_all(folder);
  return text;
}

// Returns what fish offers for a line, sorted and without descriptions.
std::string offered_by_fish(const std::string& line) {
  const std::string script = ::testing::TempDir() + "smartkv_completions.fish";
  std::ofstream(script) << run({"completions", "fish"}).out << "complete -C '" << line
                        << "' | string replace -r '\\t.*' ''\n";
  const std::string text = output_of("fish --no-config " + script + " | sort");
  std::filesystem::remove(script);
  return text;
}

const std::string kPlannedModel = std::string(SMARTKV_FIXTURES) + "/architectures/llama.gguf";

Json plan(const char* context, std::vector<const char*> more, const std::string& model = kPlannedModel) {
  std::vector<const char*> arguments = {"plan", "--model", model.c_str(), "--context", context, "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Ran ran = run(arguments);
  EXPECT_EQ(ran.code, kOk) << ran.error;
  return Json::parse(ran.out);
}

const Json& of(const Json& result, const char* name) {
  for (const Json& one : result["plans"]) {
    if (one["kv_cache"] == name) return one;
  }
  throw std::runtime_error(name);
}

TEST(PlanCommand, TellsWhatFitsInTheMemory) {
  const Json little = plan("512", {"--memory", "1MiB", "--concurrency", "64"});
  const Json much = plan("512", {"--memory", "1GiB", "--concurrency", "64"});
  EXPECT_EQ(little["memory_bytes"], 1 << 20);
  EXPECT_EQ(little["kv_cache_bytes"].get<int64_t>(), little["memory_bytes"].get<int64_t>() -
                                                         little["weight_bytes"].get<int64_t>() -
                                                         little["working_bytes"].get<int64_t>());
  EXPECT_GT(little["weight_bytes"], 0);
  EXPECT_EQ(of(little, "full")["fits"], false);
  EXPECT_THAT(of(little, "full")["reason"].get<std::string>(), HasSubstr("may need"));
  EXPECT_EQ(of(much, "full")["fits"], true);
  EXPECT_GE(of(much, "full")["sequences"], 64);
  // A window saves memory if the context is longer than the window.
  const Json longer = plan("20000", {"--memory", "1GiB"});
  EXPECT_GT(of(longer, "streaming")["sequences"], of(longer, "full")["sequences"]);
}

// A cache that does not fit on one device may fit on two, if the model has at least two KV heads.
TEST(PlanCommand, TellsOnHowManyDevicesItFits) {
  const std::string model = std::string(SMARTKV_FIXTURES) + "/architectures/llama_odd.gguf";
  const auto planned = [&](std::vector<const char*> more) { return plan("2048", std::move(more), model); };
  const Json much = planned({"--memory", "1GiB"});
  EXPECT_EQ(of(much, "full")["devices"], 1);
  const int64_t needed = of(much, "full")["max_bytes"].get<int64_t>() + much["weight_bytes"].get<int64_t>() +
                         much["working_bytes"].get<int64_t>();
  const std::string less = std::to_string(needed * 9 / 10);
  const Json scarce = planned({"--memory", less.c_str()});
  EXPECT_EQ(of(scarce, "full")["fits"], false);
  EXPECT_EQ(of(scarce, "full")["devices"], 2);
  EXPECT_EQ(of(planned({"--memory", "1KiB"}), "full")["devices"], nullptr);
  EXPECT_EQ(of(planned({"--memory", less.c_str(), "--weights", "int8"}), "full")["devices"], nullptr)
      << "backend torch has none";
}

TEST(PlanCommand, PrintsATable) {
  const Ran table = run({"plan", "--model", kPlannedModel.c_str(), "--context", "100000", "--memory", "1GiB"});
  EXPECT_EQ(table.code, kOk) << table.error;
  EXPECT_THAT(table.out, HasSubstr("of weights"));
  EXPECT_THAT(table.out, HasSubstr("\nfull "));
  EXPECT_THAT(table.out, HasSubstr("need --rope-scaling"));
}

TEST(PlanCommand, RefusesWhatItCannotRead) {
  const Ran size = run({"plan", "--model", kPlannedModel.c_str(), "--context", "10", "--memory", "two"});
  EXPECT_EQ(size.code, kUsageError);
  EXPECT_THAT(size.error, HasSubstr("--memory: expected a size such as 2GiB, found \"two\""));
  EXPECT_EQ(run({"plan", "--model", kPlannedModel.c_str(), "--context", "0", "--memory", "1GiB"}).code, kUsageError);
  EXPECT_EQ(run({"plan", "--model", "none.gguf", "--context", "1", "--memory", "1GiB"}).code, kRuntimeError);
}

TEST(Completions, BashOffersCommandsOptionsAndValues) {
  if (!has_program("bash")) GTEST_SKIP() << "bash is not installed";
  EXPECT_EQ(offered({"smartkv", "se"}), "serve ");
  EXPECT_EQ(offered({"smartkv", "serve", "--max-q"}), "--max-queue ");
  EXPECT_EQ(offered({"smartkv", "serve", "--dtype", ""}), "auto bf16 f16 f32 ");
  EXPECT_EQ(offered({"smartkv", "serve", "--dtype", "b"}), "bf16 ");
  EXPECT_EQ(offered({"smartkv", "generate", "--kv-cache", "bal"}), "balanced ");
  EXPECT_EQ(offered({"smartkv", "serve", "--preset", "low"}), "low_memory ");
  EXPECT_EQ(offered({"smartkv", "config", "ch"}), "check ");
  EXPECT_EQ(offered({"smartkv", "config", "preset", "low"}), "low_memory ");
  EXPECT_EQ(offered({"smartkv", "quantize", "a.gguf", "b.gguf", "--weights", ""}), "int8 int4 ");
  EXPECT_EQ(offered({"smartkv", "completions", "f"}), "fish ");
  EXPECT_EQ(offered({"smartkv", "serve", "--model", ""}), " ");  // the shell offers files by itself
  EXPECT_EQ(offered({"smartkv", "generate", "--json", "--temp"}), "--temperature ");  // a flag takes no value
}

TEST(Completions, BashOffersValuesBehindAnEqualsSign) {
  if (!has_program("bash")) GTEST_SKIP() << "bash is not installed";
  // First as readline splits the line, then as in a shell without = in COMP_WORDBREAKS.
  EXPECT_EQ(offered({"smartkv", "serve", "--dtype", "="}), "auto bf16 f16 f32 ");
  EXPECT_EQ(offered({"smartkv", "serve", "--dtype", "=", "b"}), "bf16 ");
  EXPECT_EQ(offered({"smartkv", "serve", "--preset", "=", "low"}), "low_memory ");
  EXPECT_EQ(offered({"smartkv", "serve", "--preset=low"}), "--preset=low_memory ");
  EXPECT_EQ(offered({"smartkv", "serve", "--config", "=", "x"}), " ");
  const std::string folder = SMARTKV_SOURCE "/configs/defa";
  EXPECT_EQ(offered({"smartkv", "serve", "--config=" + folder}), "--config=" + folder + "ult.json ");
}

TEST(Completions, FishOffersCommandsOptionsValuesAndFiles) {
  if (!has_program("fish")) GTEST_SKIP() << "fish is not installed";
  EXPECT_EQ(offered_by_fish("smartkv se"), "serve\n");
  EXPECT_EQ(offered_by_fish("smartkv serve --max-q"), "--max-queue\n");
  EXPECT_EQ(offered_by_fish("smartkv serve --dtype "), "auto\nbf16\nf16\nf32\n");
  EXPECT_EQ(offered_by_fish("smartkv serve --dtype=b"), "--dtype=bf16\n");
  EXPECT_EQ(offered_by_fish("smartkv serve --preset low"), "low_memory\n");
  EXPECT_EQ(offered_by_fish("smartkv config preset low"), "low_memory\n");
  const std::string folder = SMARTKV_SOURCE "/configs/defa";
  EXPECT_EQ(offered_by_fish("smartkv serve --config " + folder), folder + "ult.json\n");
}

TEST(Completions, ZshOffersCommandsOptionsAndValues) {
  if (!has_program("zsh")) GTEST_SKIP() << "zsh is not installed";
  EXPECT_EQ(offered_by_zsh("smartkv se"), "serve\n");
  EXPECT_EQ(offered_by_zsh("smartkv serve --max-q"), "--max-queue\n");
  EXPECT_EQ(offered_by_zsh("smartkv serve --dtype "), "auto\nbf16\nf16\nf32\n");
  EXPECT_EQ(offered_by_zsh("smartkv generate --kv-cache bal"), "balanced\n");
  EXPECT_EQ(offered_by_zsh("smartkv serve --preset low"), "low_memory\n");
  EXPECT_EQ(offered_by_zsh("smartkv config ch"), "check\n");
}

TEST(Completions, ZshNamesEveryOptionOfTheTable) {
  const Ran zsh = run({"completions", "zsh"});
  EXPECT_EQ(zsh.code, kOk);
  for (const Option& option : option_table()) EXPECT_THAT(zsh.out, HasSubstr("'" + flag(option) + "["));
  EXPECT_THAT(zsh.out, HasSubstr(":value:(auto bf16 f16 f32)"));
}

TEST(Completions, AnotherShellIsAnError) {
  const Ran tcsh = run({"completions", "tcsh"});
  EXPECT_EQ(tcsh.code, kUsageError);
  EXPECT_THAT(tcsh.error, HasSubstr("tcsh not in {bash,fish,zsh}"));
}

}  // namespace
}  // namespace smartkv
