// The result of an evaluation: rows of named values, as a table, JSON lines or a page with a picture.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace smartkv {

struct ReportColumn {
  std::string key, title;
  const char* format = nullptr;  // printf's, of one double; null: the value is text
};

struct EvaluationReport {
  std::string title;
  nlohmann::ordered_json conditions;         // an object: model, text, context, ...
  std::vector<ReportColumn> columns;         // what the tables show; rows may hold more
  std::vector<nlohmann::ordered_json> rows;  // objects; null: there is no such value
  // The picture: quality against bytes. Rows without both values stay out.
  std::string x_key, x_title, y_key, y_title;
  bool lower_is_better = true;

  std::string to_table() const;
  std::string to_json_lines() const;  // a row each, the conditions in every one
  std::string to_html() const;        // self-contained: styles and the picture (SVG) inside
};

// A cell of a table: "-" for null.
std::string cell_text(const ReportColumn& column, const nlohmann::ordered_json& row);

}  // namespace smartkv
