// The result of an evaluation: rows of named values, printed as a table, as JSON lines, or as a page with a chart.
// Several results may share a page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace smartkv {

struct ReportColumn {
  std::string key, title;
  const char* format = nullptr;  // printf format for one double; null if the value is text
  std::string error_key = {};    // the value's standard error, shown behind it; may be empty
};

struct EvaluationReport {
  std::string title;
  nlohmann::ordered_json conditions;         // an object: model, text, context, ...
  std::vector<std::string> notes = {};       // paragraphs to show on a page above the table
  std::vector<ReportColumn> columns;         // columns of the tables; rows may hold more values
  std::vector<nlohmann::ordered_json> rows;  // objects; a null member means that there is no such value
  // Axes of the chart: quality against bytes. Rows without both values are not shown.
  std::string x_key, x_title, y_key, y_title;
  std::string y_error_key = {};  // standard error of the quality, drawn as a bar; may be empty
  bool lower_is_better = true;

  std::string to_table() const;
  std::string to_markdown_table() const;
  std::string to_json_lines() const;  // one line per row, each including the conditions
  std::string to_html() const;        // a self-contained page, with styles and the chart (SVG) inside
};

// A page of several results, each a section.
struct ReportPage {
  std::string title;
  nlohmann::ordered_json conditions;    // an object that applies to all sections
  std::vector<std::string> notes = {};  // paragraphs
  std::vector<EvaluationReport> sections;

  std::string to_html() const;      // self-contained, like EvaluationReport::to_html()
  std::string to_markdown() const;  // the same without the charts
};

// Returns conditions as "name: value, ...".
std::string listed(const nlohmann::ordered_json& conditions);
// Returns the text of a table cell, "-" for a missing or null value.
std::string cell_text(const ReportColumn& column, const nlohmann::ordered_json& row);

}  // namespace smartkv
