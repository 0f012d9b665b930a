// The commands that measure cache policies on texts and prompts, as a shell calls them: bench --long, run-suite,
// train-probe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "lab/commands/prompt_suite.h"
#include "tests/server/command_runner.h"
#include "tests/server/tiny_model_folder.h"

namespace smartkv {
namespace {

using nlohmann::json;
using test::Ran;
using test::run;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

class MeasuringCommands : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = new test::TinyModelFolder("measuring_commands"); }
  static void TearDownTestSuite() { delete model_; }

  static Ran bench_long(std::vector<const char*> more) {
    static const std::string model = model_->path(), text = model_->text("long.txt", 200);
    std::vector<const char*> arguments = {"bench", "--model", model.c_str(), "--text", text.c_str(), "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
  static std::vector<json> run_suite(std::vector<const char*> more) {
    static const std::string model = model_->path();
    std::vector<const char*> arguments = {"run-suite", "--model", model.c_str(), "--max-tokens", "40",
                                          "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, kOk) << ran.error;
    std::vector<json> found;
    for (const std::string& line : lines_of(ran.out)) found.push_back(json::parse(line));
    return found;
  }
  static Ran train_probe(const std::string& out, std::vector<const char*> more) {
    static const std::string model = model_->path();
    std::vector<const char*> arguments = {"train-probe", "--model", model.c_str(), "--out", out.c_str(),
                                          "--threads",   "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
  static json parsed(const std::string& file) { return json::parse(std::ifstream(file)); }

  static inline test::TinyModelFolder* model_ = nullptr;
};

TEST_F(MeasuringCommands, BenchLongPrintsALineForEachMarkOfEachPolicy) {
  const Ran ran = bench_long({"--long", "700", "--marks", "300,500", "--long-policies", "full,streaming@0.5"});
  ASSERT_EQ(ran.code, kOk) << ran.error;
  const std::vector<std::string> lines = lines_of(ran.out);
  ASSERT_EQ(lines.size(), 11u) << ran.out;
  EXPECT_THAT(lines[0], HasSubstr("own context length 1024 tokens; no RoPE scaling"));
  EXPECT_EQ(lines[1], "\"full\"");
  EXPECT_THAT(lines[2], StartsWith("  tokens    KV MB    exact"));
  for (const auto& [line, mark] : {std::pair(3, "300"), {4, "500"}, {5, "700"}, {8, "300"}, {9, "500"}, {10, "700"}}) {
    EXPECT_THAT(lines[static_cast<size_t>(line)], StartsWith(std::string("     ") + mark + " "));
  }
  EXPECT_EQ(lines[6], R"({"policy":"streaming","tokens":350})");
  EXPECT_THAT(lines[5], Not(HasSubstr("%")));
  EXPECT_THAT(lines[10], HasSubstr("%"));  // compared with full
}

TEST_F(MeasuringCommands, BenchLongScalesPositionsBeyondTheContextAndSaysSo) {
  const Ran ran = bench_long({"--long", "1536", "--marks", "1000", "--long-policies",
                              R"({"policy": "block_summary", "tokens": 384, "window": 64})", "--json"});
  ASSERT_EQ(ran.code, kOk) << ran.error;
  const json report = json::parse(ran.out);
  EXPECT_EQ(report["rope_scaling"], "yarn");
  EXPECT_EQ(report["factor"], 1.5);
  ASSERT_EQ(report["rows"].size(), 2u);
  const json& row = report["rows"][1];
  EXPECT_EQ(row["tokens"], 1536);
  EXPECT_GT(row["kv_bytes_by_tier"]["exact"], 0);
  EXPECT_GT(row["kv_bytes_by_tier"]["summaries"], 0);
  EXPECT_LT(row["kv_bytes"], row["full_bytes"].get<int64_t>() / 2);
  EXPECT_GE(row["worst_step_ms"], row["median_step_ms"].get<double>());
  EXPECT_GT(row["resident_bytes"], 0);
  EXPECT_EQ(row["details"]["mass_error"], 0);
  EXPECT_FALSE(row.contains("perplexity_change_percent"));  // the full cache did not run
}

TEST_F(MeasuringCommands, BenchLongNamesWhatIsWrong) {
  const Ran text = bench_long({"--long", "100000"});
  EXPECT_EQ(text.code, kRuntimeError);
  EXPECT_THAT(text.error, HasSubstr("long.txt: expected more than 100000 tokens, found"));
  const Ran policy = bench_long({"--long", "512", "--long-policies", "ful"});
  EXPECT_EQ(policy.code, kUsageError);
  EXPECT_THAT(policy.error, HasSubstr("--long-policies: "));
  EXPECT_EQ(bench_long({"--long", "512", "--marks", "100"}).code, kUsageError);
  EXPECT_EQ(bench_long({"--marks", "500"}).code, kUsageError);
  const Ran no_text = run({"bench", "--model", "m", "--long", "512"});
  EXPECT_EQ(no_text.code, kUsageError);
  EXPECT_THAT(no_text.error, HasSubstr("--long: needs --text"));
}

TEST_F(MeasuringCommands, RunSuiteAnswersEachPromptInBothModes) {
  const std::vector<json> lines = run_suite({});
  ASSERT_EQ(lines.size(), 2 * kPromptSuite.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["prompt"], kPromptSuite[i / 2].name);
    EXPECT_EQ(lines[i]["mode"], i % 2 == 0 ? "full" : "dynamic");
    EXPECT_EQ(lines[i]["kv_cache"]["policy"], i % 2 == 0 ? "full" : "channel_packed");
    EXPECT_LE(lines[i]["completion_tokens"], 40);
    EXPECT_GT(lines[i]["kv_cache"]["bytes"], 0);
    EXPECT_EQ(lines[i].contains("same_text"), i % 2 == 1);
    EXPECT_EQ(lines[i].contains("logits"), i % 2 == 1);
  }
}

TEST_F(MeasuringCommands, RunSuiteComparesTheAnswers) {
  const std::vector<json> lines = run_suite({"--dynamic", "full"});
  ASSERT_EQ(lines.size(), 2 * kPromptSuite.size());
  for (size_t i = 1; i < lines.size(); i += 2) {
    EXPECT_EQ(lines[i]["text"], lines[i - 1]["text"]);
    EXPECT_EQ(lines[i]["same_text"], true);
    const json& logits = lines[i]["logits"];
    EXPECT_EQ(logits["positions"], lines[i]["completion_tokens"]);
    EXPECT_EQ(logits["overlap"], 1);
    EXPECT_EQ(logits["margin_drift"], 0);
    EXPECT_NEAR(logits["kl"].get<double>(), 0, 1e-9);
  }
  const Ran unknown = run({"run-suite", "--model", model_->path().c_str(), "--dynamic", "{"});
  EXPECT_EQ(unknown.code, kUsageError);
  EXPECT_THAT(unknown.error, HasSubstr("--dynamic"));
}

TEST_F(MeasuringCommands, TrainProbeSavesTheWorthOfEveryPair) {
  const std::string out = model_->path() + "/worth.json";
  const Ran ran = train_probe(out, {"--tokens", "512"});
  ASSERT_EQ(ran.code, kOk) << ran.error;
  EXPECT_THAT(ran.out, HasSubstr("the worth of 32 RoPE pairs of 1 KV heads in 2 layers, over 512 tokens"));
  const json query_key = parsed(out);
  EXPECT_EQ(query_key["importance"], "query_key");
  ASSERT_EQ(query_key["layers"].size(), 2u);
  for (const json& layer : query_key["layers"]) {
    ASSERT_EQ(layer.size(), 1u);
    ASSERT_EQ(layer[0].size(), 32u);
    for (const json& pair : layer[0]) EXPECT_GT(pair.get<double>(), 0);
  }
  ASSERT_EQ(query_key["values"].size(), 2u);
  for (const json& channel : query_key["values"][1][0]) EXPECT_GT(channel.get<double>(), 0);
  EXPECT_EQ(query_key["values"][0][0].size(), 64u);
  // The policy accepts the file.
  const std::string named = "mine=" + out;
  const Ran answered = run({"generate", "--model", model_->path().c_str(), "--worth", named.c_str(), "--prompt", "Hi",
                            "--max-tokens", "2", "--kv-cache", R"({"policy": "channel_packed", "worth": "mine"})"});
  EXPECT_EQ(answered.code, kOk) << answered.error;
  const Ran unknown = run({"generate", "--model", model_->path().c_str(), "--worth", named.c_str(), "--prompt", "Hi",
                           "--max-tokens", "2", "--kv-cache", R"({"policy": "channel_packed", "worth": "yours"})"});
  EXPECT_EQ(unknown.code, kUsageError);
  EXPECT_THAT(unknown.error,
              HasSubstr("kv_cache.worth: expected the name of a loaded worth file (mine), found \"yours\""));
  ASSERT_EQ(train_probe(out, {"--tokens", "512", "--importance", "magnitude"}).code, kOk);
  EXPECT_NE(parsed(out)["layers"], query_key["layers"]);
}

TEST_F(MeasuringCommands, TrainProbeNamesWhatIsWrong) {
  const Ran file = train_probe("/no/such/folder/worth.json", {"--tokens", "512"});
  EXPECT_EQ(file.code, kUsageError);
  EXPECT_THAT(file.error, HasSubstr("--out: /no/such/folder/worth.json"));
  const std::string out = model_->path() + "/none.json", text = model_->text("short.txt", 3);
  const Ran little = train_probe(out, {"--tokens", "512", "--text", text.c_str()});
  EXPECT_EQ(little.code, kUsageError);
  EXPECT_THAT(little.error, HasSubstr("--text: expected at least 512 tokens, found"));
  const Ran many = train_probe(out, {"--tokens", "2000"});
  EXPECT_EQ(many.code, kUsageError);
  EXPECT_THAT(many.error, HasSubstr("--tokens: expected at most the model's context of 1024, found 2000"));
}

}  // namespace
}  // namespace smartkv
