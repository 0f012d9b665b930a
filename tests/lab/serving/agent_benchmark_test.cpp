// `smartkv bench agents`: its servers, its report and its command line.
#include "lab/serving/agent_benchmark.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/server/command_runner.h"
#include "tests/server/tiny_model_folder.h"

namespace smartkv {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

AgentBenchmarkOptions small_options(const test::TinyModelFolder& model) {
  AgentBenchmarkOptions options;
  options.binary = SMARTKV_BINARY;
  options.model = model.path();
  options.policies = parse_policy_list("k4v4", FullReference::kWhereListed);
  options.kv_cache_bytes = 64 << 20;
  options.serve_options = {{"threads", "1"}};
  options.workload = {.sessions = 2, .turns = 3, .start_tokens = 300, .turn_tokens = 40, .reply_tokens = 4};
  options.shared_tokens = 60;
  options.at_once = 2;
  return options;
}

TEST(AgentBenchmark, MeasuresAServerWithADirectoryThroughARestart) {
  const test::TinyModelFolder model("agent_benchmark");
  AgentBenchmarkOptions options = small_options(model);
  options.directory = model.path() + "/prefixes";
  options.only_with_directory = options.restart = true;
  const AgentReport report = run_agent_benchmark(options);
  ASSERT_EQ(report.rows.size(), 1u);
  const nlohmann::ordered_json& row = report.rows[0];
  ASSERT_FALSE(row.contains("failure")) << row.dump();
  EXPECT_EQ(row["server"], "k4v4, directory");
  EXPECT_EQ(row["turns"], 4);
  EXPECT_EQ(row["failed"], 0);
  EXPECT_GT(row["turns_per_min"], 0);
  EXPECT_GT(row["first_token_p95_s"], 0);
  EXPECT_GT(row["found"], 0.5);
  EXPECT_EQ(row["found_by_turn"].size(), 2u);
  EXPECT_GT(row["kv_bytes"], 0);
  EXPECT_GT(row["written_bytes"], 0);
  EXPECT_GT(row["after_restart_ratio"], 0);
  EXPECT_GT(row["found_after_restart"], 0.5);
  EXPECT_TRUE(std::filesystem::is_empty(options.directory));
}

TEST(AgentBenchmark, MeasuresATrace) {
  const test::TinyModelFolder model("agent_benchmark_trace");
  AgentBenchmarkOptions options = small_options(model);
  options.trace =
      parse_agent_trace(R"({"session":"a","messages":[{"role":"user","content":"It rained."}],"output_tokens":5}
{"session":"b","tokens":200,"output_tokens":4}
{"session":"a","think_s":0.01,"tokens":30,"output_tokens":6}
)");
  options.trace_name = "t.jsonl";
  const AgentReport report = run_agent_benchmark(options);
  ASSERT_EQ(report.rows.size(), 1u);
  ASSERT_FALSE(report.rows[0].contains("failure")) << report.rows[0].dump();
  EXPECT_EQ(report.rows[0]["turns"], 3);
  EXPECT_FALSE(report.rows[0].contains("start_s"));
  EXPECT_EQ(report.conditions["requests"], 3);
  EXPECT_EQ(report.conditions["sessions"], 2);
}

TEST(AgentBenchmark, AServerThatFailsHasARowAndTheOthersAreMeasured) {
  const test::TinyModelFolder model("agent_benchmark_failure");
  AgentBenchmarkOptions options = small_options(model);
  options.workload.turns = 2;
  options.llama_server = {.program = "/no/such/llama-server", .cell_bytes = 1 << 30, .cache_ram_bytes = 0};
  int64_t reports = 0;
  const AgentReport report = run_agent_benchmark(options, [&](const AgentReport&) { ++reports; });
  ASSERT_EQ(report.rows.size(), 2u);
  EXPECT_EQ(reports, 2);
  EXPECT_FALSE(report.rows[0].contains("failure")) << report.rows[0].dump();
  EXPECT_THAT(report.rows[1]["failure"].get<std::string>(), HasSubstr("/no/such/llama-server -m"));
  EXPECT_THAT(report.to_table(), HasSubstr("llama-server: failed: "));
  options.llama_server->cell_bytes = 1000;
  EXPECT_THROW(run_agent_benchmark(options), std::invalid_argument);
}

const AgentReport kAgentReport = {
    {{"model", "m"}},
    {{{"server", "full"},
      {"policy", "full"},
      {"directory", false},
      {"kv_cache_bytes", 256e6},
      {"turns", 24},
      {"failed", 0},
      {"turns_per_min", 12.5},
      {"first_token_p50_s", 3.0},
      {"first_token_p95_s", 4.25},
      {"found", 0.05},
      {"found_by_turn", {0.1, 0.0}}},
     {{"server", "llama & server"}, {"kv_cache_bytes", 240e6}, {"cache_ram_bytes", 268e6}, {"failure", "it broke"}}}};

TEST(AgentReport, ShowsWhatIsKnownAndWhatFailed) {
  const AgentReport again = AgentReport::from_json(kAgentReport.to_json());
  EXPECT_EQ(again.rows, kAgentReport.rows);
  const std::string table = again.to_table();
  EXPECT_THAT(table, HasSubstr("12.5"));
  EXPECT_THAT(table, HasSubstr("10% 0%"));
  EXPECT_THAT(table, HasSubstr("llama & server: failed: it broke"));
  EXPECT_THAT(table, Not(HasSubstr("restart")));
  EXPECT_THAT(again.to_markdown(), HasSubstr("| full | 256 | - | 12.5 | 3.00 | 4.25 | 5% | 10% 0% | 0 |"));
  const std::string svg = again.to_svg();
  EXPECT_THAT(svg, HasSubstr("llama &amp; server"));
  EXPECT_THAT(svg, HasSubstr(">12.5<"));
  EXPECT_THAT(svg, HasSubstr(">failed<"));
}

TEST(BenchAgents, RefusesWrongUsage) {
  const auto refuses = [](std::vector<const char*> arguments, const char* message) {
    arguments.insert(arguments.begin(), {"bench", "agents"});
    const test::Ran ran = test::run(std::move(arguments));
    EXPECT_EQ(ran.code, kUsageError);
    EXPECT_THAT(ran.error, HasSubstr(message));
  };
  const test::TinyModelFolder model("bench_agents");
  const std::string path = model.path();
  const char* m = path.c_str();
  refuses({}, "--model is required");
  refuses({"--model", m, "--memory", "many"}, "--memory: expected a size");
  refuses({"--model", m, "--policies", "k4v4@x"}, "--policies");
  refuses({"--model", m, "--restart"}, "--dir");
  refuses({"--model", m, "--turns", "1"}, "--turns");
  refuses({"--model", m, "--serve-option", "no_such=1"}, "no option \"no_such\"");
  refuses({"--model", m, "--llama-cells", "1GB"}, "--llama-server");
  refuses({"--model", m, "--start-tokens", "100"}, "expected at least 232 tokens");
  refuses({"--convert", m}, "--out");
  refuses({"--convert", "/no/such/log", "--out", "/tmp/x"}, "--convert: /no/such/log: expected a file");
  const std::string wrong = model.path() + "/wrong.jsonl";
  std::ofstream(wrong) << "\n{\"session\": 3}\n";
  refuses({"--model", m, "--trace", wrong.c_str()}, "wrong.jsonl:\nline 2: session: expected a name, found 3");
  refuses({"--model", m, "--trace", wrong.c_str(), "--sessions", "3"}, "--sessions");
}

TEST(BenchAgents, ConvertsALog) {
  const std::string log = ::testing::TempDir() + "/agents_log.jsonl",
                    out = ::testing::TempDir() + "/agents_trace.jsonl";
  std::ofstream(log) << R"({"request": {"messages": [{"role": "user", "content": "A"}]}, )"
                     << R"("response": {"usage": {"completion_tokens": 3}}})";
  const test::Ran ran = test::run({"bench", "agents", "--convert", log.c_str(), "--out", out.c_str()});
  EXPECT_EQ(ran.code, kOk) << ran.error;
  std::stringstream trace;
  trace << std::ifstream(out).rdbuf();
  EXPECT_EQ(trace.str(), R"({"session":"1","messages":[{"role":"user","content":"A"}],"output_tokens":3})"
                         "\n");
}

TEST(BenchAgents, ShowsSavedReports) {
  const std::string file = ::testing::TempDir() + "/agents.json", plot = ::testing::TempDir() + "/agents.svg";
  std::ofstream(file) << kAgentReport.to_json();
  const test::Ran ran =
      test::run({"bench", "agents", "--saved", file.c_str(), file.c_str(), "--markdown", "--plot", plot.c_str()});
  EXPECT_EQ(ran.code, kOk) << ran.error;
  EXPECT_THAT(ran.out, HasSubstr("| server |"));
  std::stringstream svg;
  svg << std::ifstream(plot).rdbuf();
  EXPECT_TRUE(svg.str().starts_with("<svg"));
  std::ofstream(file) << "{}";
  EXPECT_THAT(test::run({"bench", "agents", "--saved", file.c_str()}).error, HasSubstr("bench agents --json"));
}

}  // namespace
}  // namespace smartkv
