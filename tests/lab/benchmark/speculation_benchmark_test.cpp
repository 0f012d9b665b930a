#include "lab/benchmark/speculation_benchmark.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "lab/benchmark/speculation_workloads.h"
#include "tests/engine/engine_fixture.h"

namespace smartkv {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class SpeculationBenchmark : public EngineTest {
 protected:
  SpeculationBenchmark() {
    std::ofstream file(text_);
    for (int i = 0; i < 400; ++i) file << static_cast<char>('a' + i * i % 26);
    bench.workloads = {"depth"};
    bench.text = text_;
    bench.depths = {100};
    bench.tokens = 40;
    bench.repetitions = 2;
  }
  void start_in_step() {
    options.prefill_chunk = 1024;
    start();
  }
  std::string refusal_of(const SpeculationBenchmarkOptions& wrong) {
    try {
      benchmark_speculation(*engine, wrong);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  const std::filesystem::path text_ = std::filesystem::path(::testing::TempDir()) / "speculation_benchmark.txt";
  SpeculationBenchmarkOptions bench;
};

TEST_F(SpeculationBenchmark, ComparesEachMethodWithPlainDecodingAtEachDepthAndNumberOfSequences) {
  model->memory = 1;  // its output soon repeats, which look-up finds
  start_in_step();
  bench.depths = {50, 100};
  bench.sequences = {1, 3};
  bench.methods = {"ngram", {{"method", "self"}, {"kv_cache", {{"policy", "streaming"}, {"tokens", 192}}}}};
  int64_t seen = 0;
  const SpeculationReport report = benchmark_speculation(*engine, bench, [&](const SpeculationRow&) { ++seen; });
  ASSERT_THAT(report.rows, SizeIs(8));
  EXPECT_EQ(seen, 8);
  EXPECT_TRUE(report.identical());
  for (size_t i = 0; i < report.rows.size(); ++i) {
    const SpeculationRow& row = report.rows[i];
    EXPECT_EQ(row.sequences, i < 4 ? 1 : 3);
    EXPECT_EQ(row.depth, i % 4 < 2 ? 50 : 100);
    EXPECT_EQ(row.method, bench.methods[i % 2]);
    EXPECT_EQ(row.difference, "");
    EXPECT_GT(row.plain, 0);
    EXPECT_GT(row.speculative, 0);
    EXPECT_LE(row.speedup_min, row.speedup);
    if (i % 2 == 1) continue;
    EXPECT_GT(row.tokens_per_pass, 1.5);
    EXPECT_GT(row.acceptance(), 0.5);
  }
  EXPECT_EQ(engine->stats().kv_bytes_used, 0);
}

TEST_F(SpeculationBenchmark, SamplesAtTheTemperatureThatIsAskedFor) {
  start_in_step();
  bench.sequences = {2};
  bench.methods = {{{"method", "self"}, {"adaptive", false}}};
  bench.temperature = 0.8f;
  const SpeculationReport report = benchmark_speculation(*engine, bench);
  EXPECT_TRUE(report.identical()) << report.to_table();
  EXPECT_EQ(report.rows.at(0).temperature, 0.8f);
  EXPECT_GT(report.rows.at(0).accepted, 0);
}

TEST_F(SpeculationBenchmark, PlainDecodingTakesAPassPerToken) {
  start_in_step();
  bench.sequences = {2};
  bench.methods = {"off"};
  const SpeculationRow row = benchmark_speculation(*engine, bench).rows.at(0);
  EXPECT_EQ(row.tokens_per_pass, 1);
  EXPECT_EQ(row.drafted, 0);
  EXPECT_EQ(row.acceptance(), 0);
  EXPECT_EQ(row.bound, 0);
}

// The model's answer depends on how many passes it has made, so no two runs agree.
TEST_F(SpeculationBenchmark, FindsWhereAnOutputParts) {
  int64_t passes = 0;
  model->bias = [&passes](TokenId token) { return token == 1 + passes / 60 % 20 ? 100.0f : 0.0f; };
  model->on_forward = [&passes](std::span<const SequenceInput>) { ++passes; };
  start_in_step();
  bench.sequences = {1};
  bench.methods = {"ngram"};
  const SpeculationReport report = benchmark_speculation(*engine, bench);
  EXPECT_FALSE(report.identical());
  EXPECT_THAT(report.rows.at(0).difference, HasSubstr("prompt 0, output token"));
  EXPECT_THAT(report.to_table(), HasSubstr("NOT IDENTICAL: depth, ngram, 1 sequences: prompt 0"));
  EXPECT_EQ(report.to_json()["rows"][0]["identical"], false);
}

TEST_F(SpeculationBenchmark, RefusesWhatCannotBeMeasured) {
  options.max_sequences = 4;
  start_in_step();
  SpeculationBenchmarkOptions wrong = bench;
  wrong.depths = {1000};
  EXPECT_THAT(refusal_of(wrong), HasSubstr("depth 1000: expected at most 984"));
  wrong.depths = {450};
  EXPECT_THAT(refusal_of(wrong), HasSubstr("expected at least 450 tokens, for 1 sequences of depth 450, found 400"));
  wrong = bench;
  wrong.text = "missing.txt";
  EXPECT_THAT(refusal_of(wrong), HasSubstr("missing.txt: cannot be read"));
  wrong.text.clear();
  EXPECT_THAT(refusal_of(wrong), HasSubstr("\"depth\" needs a text"));
  wrong.workloads = {"copying"};
  EXPECT_THAT(refusal_of(wrong), HasSubstr("found \"copying\""));
  wrong = bench;
  wrong.methods = {"ngram", "draft_model"};
  EXPECT_THAT(refusal_of(wrong), HasSubstr("loaded no draft model"));
  wrong = bench;
  wrong.methods = {"ngram"};
  wrong.sequences = {5};
  EXPECT_THAT(refusal_of(wrong), HasSubstr("5 sequences did not run concurrently"));
}

TEST(SpeculationReport, SaysInATableAndInJsonWhatWasMeasured) {
  SpeculationReport report{"fake", "scalar", 2, {}};
  report.rows.push_back({.workload = "depth",
                         .method = {{"method", "self"}, {"kv_cache", "k4v4"}, {"weights", "int4"}, {"tokens", 3}},
                         .sequences = 8,
                         .depth = 4096,
                         .drafted = 200,
                         .accepted = 150,
                         .tokens_per_pass = 2.5,
                         .plain = 100,
                         .speculative = 150,
                         .speedup = 1.5,
                         .speedup_min = 1.4,
                         .bound = 2.25});
  report.rows.push_back(
      {.workload = "adversarial", .method = "draft_model", .temperature = 1.3f, .difference = "prompt 0"});
  EXPECT_EQ(method_label(report.rows[0].method), "self(k4v4, tokens=3, int4)");
  EXPECT_EQ(method_label("auto"), "auto");
  const std::string table = report.to_table();
  EXPECT_THAT(table, HasSubstr("75.0      2.50      100.0      150.0     1.50   1.40   2.25       yes"));
  EXPECT_THAT(table, HasSubstr("0.00      -        NO"));
  const nlohmann::ordered_json rows = report.to_json()["rows"];
  EXPECT_EQ(rows[0]["acceptance"], 0.75);
  EXPECT_EQ(rows[0]["speedup_bound"], 2.25);
  EXPECT_EQ(rows[0]["identical"], true);
  EXPECT_EQ(rows[1]["identical"], false);
  EXPECT_FALSE(rows[1].contains("speedup_bound"));
}

TEST(SpeculationBenchmarkOfTheRealModel, CopyingIsDraftedAndNoOutputChanges) {
  SpeculationBenchmarkOptions options;
  options.engine.model.path = SMARTKV_SOURCE "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  options.engine.model.weights = WeightFormat::kBf16;  // the bounds below follow from their bytes
  options.engine.kv_cache_bytes = int64_t{1} << 30;
  options.workloads = {"copy", "adversarial"};
  options.sequences = {4};
  options.methods = {{{"method", "ngram"}, {"adaptive", false}}, {{"method", "self"}, {"kv_cache", "k8v8"}}};
  options.tokens = 24;
  options.repetitions = 1;
  const SpeculationReport report = run_speculation_benchmark(options);
  ASSERT_THAT(report.rows, SizeIs(4));
  EXPECT_TRUE(report.identical()) << report.to_table();
  EXPECT_GT(report.rows[0].accepted, 0);
  EXPECT_GT(report.rows[0].tokens_per_pass, 1.5);
  EXPECT_EQ(report.rows[0].bound, 0);
  EXPECT_GT(report.rows[1].bound, 0.8);  // nearly all bytes are weights, so there is little to gain
  EXPECT_LT(report.rows[1].bound, 1.1);
  EXPECT_GT(report.rows[3].drafted, 0);
  EXPECT_GT(report.rows[3].temperature, 1);
}

TEST(SpeculationWorkloads, EachHasMethodsAndAutoIsAmongThem) {
  for (const std::string& name : speculation_workload_names()) {
    for (const bool draft_model : {false, true}) EXPECT_EQ(default_methods(name, draft_model).back(), "auto") << name;
  }
  EXPECT_THAT(default_methods("depth", false), SizeIs(4));
  EXPECT_EQ(default_methods("chat", true).front(), "draft_model");
}

}  // namespace
}  // namespace smartkv
