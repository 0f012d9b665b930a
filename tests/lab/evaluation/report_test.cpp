#include "lab/evaluation/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>
#include <vector>

namespace smartkv {
namespace {

using testing::HasSubstr;
using testing::Not;

EvaluationReport sample() {
  EvaluationReport report;
  report.title = "A <test>";
  report.conditions = {{"model", "tiny"}, {"context", 100}};
  report.columns = {{"policy", "policy"}, {"bits", "bits", "%.1f"}, {"kl", "KL", "%.3f"}};
  report.rows = {{{"policy", "full"}, {"bits", 16.0}, {"kl", 0.0}, {"hidden", 7}},
                 {{"policy", R"({"policy":"a&b"})"}, {"bits", 4.0}, {"kl", 0.001}},
                 {{"policy", "small"}, {"bits", 2.0}, {"kl", 0.5}},
                 {{"policy", "unknown"}, {"bits", 2.5}, {"kl", nullptr}}};
  report.x_key = "bits";
  report.x_title = "bits per value";
  report.y_key = "kl";
  report.y_title = "KL";
  return report;
}

// Returns whether every tag that opens is closed in order. Ignores HTML tags without an end tag.
bool well_formed(const std::string& html) {
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = html.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find(' '));
    if (tag.starts_with('!') || tag.ends_with('/') || name == "meta") continue;
    if (!tag.starts_with('/')) {
      open.push_back(name);
    } else if (open.empty() || open.back() != tag.substr(1)) {
      return false;
    } else {
      open.pop_back();
    }
  }
  return open.empty();
}

TEST(Report, TableAlignsAndMarksWhatIsMissing) {
  EvaluationReport report = sample();
  report.rows.erase(report.rows.begin() + 1);
  EXPECT_EQ(report.to_table(),
            "{\"model\":\"tiny\",\"context\":100}\n"
            "policy   bits     KL\n"
            "full     16.0  0.000\n"
            "small     2.0  0.500\n"
            "unknown   2.5      -\n");
}

TEST(Report, JsonLinesCarryTheConditionsAndAllValues) {
  std::istringstream lines(sample().to_json_lines());
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(rows.size(), 4u);
  for (const auto& row : rows) EXPECT_EQ(row["context"], 100);
  EXPECT_EQ(rows[0]["hidden"], 7);
  EXPECT_EQ(rows[2]["kl"], 0.5);
}

TEST(Report, PageIsWellFormedAndSelfContained) {
  const std::string html = sample().to_html();
  EXPECT_TRUE(well_formed(html)) << html;
  EXPECT_THAT(html, HasSubstr("A &lt;test&gt;"));
  EXPECT_THAT(html, HasSubstr("{&quot;policy&quot;:&quot;a&amp;b&quot;}"));
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("src=")));
  EXPECT_THAT(html, HasSubstr("<svg"));
  EXPECT_THAT(html, HasSubstr("KL (logarithmic)"));
  EXPECT_THAT(html, HasSubstr("At exactly 0, below the logarithmic axis: full."));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
}

TEST(Report, PictureBearsOnePointAndNone) {
  EvaluationReport report = sample();
  report.rows.resize(1);
  EXPECT_TRUE(well_formed(report.to_html()));
  EXPECT_THAT(report.to_html(), Not(HasSubstr("nan")));
  report.rows.clear();
  EXPECT_TRUE(well_formed(report.to_html()));
  EXPECT_THAT(report.to_html(), Not(HasSubstr("<svg")));
}

TEST(Report, ErrorsStandBehindTheirValuesAndInTheChart) {
  EvaluationReport report = sample();
  report.columns[2].error_key = report.y_error_key = "error";
  report.rows[1]["error"] = 0.0004;
  report.rows[2]["error"] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(cell_text(report.columns[2], report.rows[1]), "0.001 ± 0.000");
  EXPECT_EQ(cell_text(report.columns[2], report.rows[2]), "0.500");
  EXPECT_EQ(cell_text(report.columns[2], report.rows[3]), "-");
  const std::string html = report.to_html();
  EXPECT_TRUE(well_formed(html));
  EXPECT_THAT(html, HasSubstr("class=\"error\""));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
}

TEST(Report, SeveralResultsShareAPage) {
  ReportPage page{"All <results>", {{"model", "tiny"}}, {"A note & more."}, {sample(), sample()}};
  page.sections[1].title = "Second";
  page.sections[1].rows.clear();
  page.sections[1].notes = {"Not measured."};
  page.sections[0].rows[0]["policy"] = "a|b";
  const std::string html = page.to_html();
  EXPECT_TRUE(well_formed(html)) << html;
  EXPECT_THAT(html, HasSubstr("<h1>All &lt;results&gt;</h1>"));
  EXPECT_THAT(html, HasSubstr("<p>A note &amp; more.</p>"));
  EXPECT_THAT(html, HasSubstr("<h2>Second</h2>"));
  EXPECT_EQ(page.to_markdown(),
            "# All <results>\n\nmodel: tiny\n\nA note & more.\n\n## A <test>\n\nmodel: tiny, context: 100\n\n"
            "| policy | bits | KL |\n|---|--:|--:|\n| a\\|b | 16.0 | 0.000 |\n"
            "| {\"policy\":\"a&b\"} | 4.0 | 0.001 |\n| small | 2.0 | 0.500 |\n| unknown | 2.5 | - |\n"
            "\n## Second\n\nmodel: tiny, context: 100\n\nNot measured.\n\n");
}

}  // namespace
}  // namespace smartkv
