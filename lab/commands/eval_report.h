// `smartkv eval report`: the part of eval that measures everything and writes a page.
#pragma once

#include <string>
#include <vector>

#include "lab/evaluation/model_report.h"

namespace smartkv {

struct EvalReportArguments {
  std::string out = "report.html";  // the Markdown page gets the same name with .md
  std::vector<std::string> topics;  // empty for all
  bool quick = false, all_rows = false, no_speed = false;
};

// Throws ConfigError for a file that is not named *.html or cannot be written, and for an unknown topic.
void check_report(const EvalReportArguments& arguments);
// Returns the names of the topics.
std::vector<std::string> report_topics();
// Reads texts given as KIND=FILE. Returns the shipped ones if there are none. Throws ConfigError.
std::vector<ReportText> report_texts(const std::vector<std::string>& given, const ReportModel& model);
// Measures and writes both pages. `conditions` are those of the page. Returns the exit code.
int run_report(const ReportModel& model, const std::vector<ReportText>& texts, const ModelReportOptions& options,
               const EvalReportArguments& arguments, const nlohmann::ordered_json& conditions);

}  // namespace smartkv
