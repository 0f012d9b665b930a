// The result of an evaluation: rows of named values, printed as a table, as JSON lines, or as a page with a chart.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace smartkv {

struct ReportColumn {
  std::string key, title;
  const char* format = nullptr;  // printf format for one double; null if the value is text
};

struct EvaluationReport {
  std::string title;
  nlohmann::ordered_json conditions;         // an object: model, text, context, ...
  std::vector<ReportColumn> columns;         // columns of the tables; rows may hold more values
  std::vector<nlohmann::ordered_json> rows;  // objects; a null member means that there is no such value
  // Axes of the chart: quality against bytes. Rows without both values are not shown.
  std::string x_key, x_title, y_key, y_title;
  bool lower_is_better = true;

  std::string to_table() const;
  std::string to_json_lines() const;  // one line per row, each including the conditions
  std::string to_html() const;        // a self-contained page, with styles and the chart (SVG) inside
};

// Returns the text of a table cell, "-" for a missing or null value.
std::string cell_text(const ReportColumn& column, const nlohmann::ordered_json& row);

}  // namespace smartkv
