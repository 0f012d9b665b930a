// Tables that show only the columns that some row has a value for.
#pragma once

#include <span>
#include <vector>

#include <nlohmann/json.hpp>

#include "lab/evaluation/report.h"

namespace smartkv {

// A column of a table. Values are multiplied by `scale`, which converts the row's unit to the title's.
struct ScaledColumn {
  ReportColumn shown;
  double scale = 1;
};

// Returns a report of the rows with those of the columns for which some row has a value.
inline EvaluationReport used_columns(const nlohmann::ordered_json& conditions,
                                     const std::vector<nlohmann::ordered_json>& rows,
                                     std::span<const ScaledColumn> columns) {
  EvaluationReport table;
  table.conditions = conditions;
  table.rows = rows;
  for (const ScaledColumn& column : columns) {
    bool used = false;
    for (nlohmann::ordered_json& row : table.rows) {
      const auto value = row.find(column.shown.key);
      if (value == row.end()) continue;
      used = true;
      if (column.scale != 1) *value = column.scale * value->get<double>();
    }
    if (used) table.columns.push_back(column.shown);
  }
  return table;
}

}  // namespace smartkv
