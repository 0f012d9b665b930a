#include "lab/evaluation/model_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cache/presets.h"
#include "lab/evaluation/evaluation_texts.h"
#include "lab/evaluation/simulated_policy.h"
#include "tests/lab/evaluation/evaluation_fixture.h"
#include "tests/text/byte_tokenizer.h"

namespace smartkv {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

// A tiny model without a calibration and gates, which reads one byte per token.
struct TinyReport {
  TinyEvaluation tiny{TinyWeights([] {
    ModelConfig config = tiny_config();
    config.n_layers = 2;
    config.context_length = 8192;
    return config;
  }())};
  ByteTokenizer tokenizer;
  ChatTemplate chat{kTemplate};
  EvaluationModel evaluated{*tiny.llama, tiny.threads, tiny.shape,
                            [this](const nlohmann::json& spec) {
                              const TensorRanges ranges{{4, 4}, {4, 4}};
                              return is_simulated(spec) ? make_simulated_policy(tiny.model, spec, ranges)
                                                        : make_policy(tiny.context, spec);
                            },
                            &tiny.context};
  ReportModel model{evaluated, tokenizer, &chat};

  std::vector<ReportText> texts() const {
    std::string text;
    while (text.size() < 9000) text += "it rained again and nobody came. ";
    return {{"prose", "made up", tokenizer.encode(text, {})}, {"code", "random", tiny.text(600)}};
  }
};

const ReportRow& row_of(const std::vector<ReportRow>& rows, const std::string& label) {
  return *std::find_if(rows.begin(), rows.end(), [&](const ReportRow& row) { return row.spec.label == label; });
}

TEST(ModelReport, HasARowForEveryPresetPolicyAndFormat) {
  const TinyReport tiny;
  const std::vector<ReportRow> rows = report_rows(tiny.model, {});
  std::vector<std::string> labels;
  for (const ReportRow& row : rows) labels.push_back(row.spec.label);
  EXPECT_EQ(labels[0], "full");
  for (const PolicyPreset& preset : policy_presets()) EXPECT_THAT(labels, testing::Contains(preset.name));
  for (const PolicyRow& policy : policy_registry()) {
    const bool listed = std::find(labels.begin(), labels.end(), policy.name) != labels.end();
    EXPECT_EQ(listed, policy.name != "calibrated") << policy.name;  // which is calibrated@4.5
  }
  for (const std::string& format : simulated_formats()) EXPECT_THAT(labels, testing::Contains(format + " (simulated)"));
  std::sort(labels.begin(), labels.end());
  EXPECT_EQ(std::unique(labels.begin(), labels.end()), labels.end());
}

TEST(ModelReport, SaysWhatStandsInAndWhatCannotRun) {
  const TinyReport tiny;
  const std::vector<ReportRow> rows = report_rows(tiny.model, {});
  EXPECT_THAT(row_of(rows, "quality").remark, StartsWith("stands in: "));
  EXPECT_TRUE(row_of(rows, "quality").runs);
  EXPECT_FALSE(row_of(rows, "calibrated@4.5").runs);
  EXPECT_THAT(row_of(rows, "calibrated@4.5").remark, StartsWith("cannot run: "));
  EXPECT_TRUE(row_of(rows, "q8_0 (simulated)").simulated);
  ModelReportOptions options;
  options.kv_cache = R"(k8v8,{"policy": "k8v8"},k4v4)";
  const std::vector<ReportRow> listed = report_rows(tiny.model, options);
  ASSERT_EQ(listed.size(), 4u);
  EXPECT_EQ(listed[2].same_as, 1u);
  EXPECT_EQ(listed[2].remark, "the same as k8v8");
  EXPECT_EQ(listed[3].same_as, 3u);
  options.kv_cache = "k8v8,,";
  EXPECT_THROW(report_rows(tiny.model, options), CacheError);
}

TEST(ModelReport, MeasuresEveryTopic) {
  const TinyReport tiny;
  ModelReportOptions options;
  options.kv_cache = R"(k8v8,{"policy":"k8v8"},k2v2,calibrated@4.5,kvzip@0.5,)"
                     R"({"policy":"simulated","format":"nvfp4"})";
  options.context = 256;
  options.from = 128;
  options.lengths = {1500};
  options.prompts = 1;
  options.agent_tokens = 6500;
  options.problems = 1;
  options.answer_tokens = 300;
  options.depth = 128;
  std::vector<std::string> topics;
  size_t pages = 0;
  const ReportPage page = measure_model(
      tiny.model, tiny.texts(), options,
      {[&](const std::string& topic) { topics.push_back(topic); }, nullptr, [&](const ReportPage&) { ++pages; }});
  EXPECT_EQ(topics, options.topics);
  EXPECT_EQ(pages, topics.size());
  ASSERT_EQ(page.sections.size(), topics.size());
  const EvaluationReport& divergence = page.sections[0];
  ASSERT_EQ(divergence.rows.size(), 7u);
  EXPECT_EQ(divergence.rows[0]["policy"], "full");
  EXPECT_EQ(divergence.rows[0]["prose_kl_mean"], 0);
  EXPECT_EQ(divergence.rows[1]["code_kl_mean"], divergence.rows[2]["code_kl_mean"]);
  EXPECT_GT(divergence.rows[3]["prose_kl_mean"], divergence.rows[1]["prose_kl_mean"]);
  EXPECT_THAT(divergence.rows[4]["remark"].get<std::string>(), StartsWith("cannot run: "));
  EXPECT_FALSE(divergence.rows[4].contains("ratio"));
  EXPECT_NEAR(divergence.rows[6]["ratio"].get<double>(), 4.5 / 32, 1e-9);  // of f32
  for (const EvaluationReport& section : page.sections) {
    ASSERT_FALSE(section.rows.empty()) << section.title << ": " << section.notes[0];
    EXPECT_EQ(section.rows[0]["policy"], "full") << section.title;
  }
  const std::string html = page.to_html(), markdown = page.to_markdown();
  for (const char* title : {"Bytes and divergence", "Long reasoning", "Agent traces", "Recall", "Speed"}) {
    EXPECT_THAT(html, HasSubstr(std::string("<h2>") + title + "</h2>"));
    EXPECT_THAT(markdown, HasSubstr(std::string("\n## ") + title + "\n"));
  }
  EXPECT_THAT(html, HasSubstr("<svg"));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(markdown, Not(HasSubstr("nan")));
}

TEST(ModelReport, SaysWhyATopicIsNotMeasured) {
  const TinyReport tiny;
  const ReportModel model{tiny.evaluated, tiny.tokenizer, nullptr};
  ModelReportOptions options;
  options.kv_cache = "k8v8";
  options.topics = {"agent", "recall"};
  options.lengths = {20000};
  const ReportPage page = measure_model(model, tiny.texts(), options);
  ASSERT_EQ(page.sections.size(), 2u);
  EXPECT_THAT(page.to_markdown(), HasSubstr("Not measured: the model has no chat template."));
  EXPECT_THAT(page.to_markdown(), HasSubstr("Not measured: context: expected at most the model's 8192 tokens"));
}

TEST(ModelReport, ShipsTexts) {
  const TinyReport tiny;
  const std::vector<ReportText> texts = shipped_texts(tiny.model);
  ASSERT_EQ(texts.size(), 3u);
  for (const ReportText& text : texts) EXPECT_GT(text.tokens.size(), 15000u) << text.kind;
  const std::string chat = ByteTokenizer().decode(texts[2].tokens, true);
  EXPECT_THAT(chat, StartsWith("<user>Hi! I have two courgettes"));
  const ReportModel without{tiny.evaluated, tiny.tokenizer, nullptr};
  EXPECT_THAT(shipped_texts(without)[2].source, HasSubstr("as plain text"));
}

}  // namespace
}  // namespace smartkv
