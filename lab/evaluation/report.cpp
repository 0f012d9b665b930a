#include "lab/evaluation/report.h"

#include <algorithm>

#include "lab/evaluation/markup.h"

namespace smartkv {

std::string cell_text(const ReportColumn& column, const nlohmann::ordered_json& row) {
  const auto value = row.find(column.key);
  if (value == row.end() || value->is_null()) return "-";
  if (column.format == nullptr) return value->is_string() ? value->get<std::string>() : value->dump();
  const double number = value->get<double>();
  if (number != number) return "-";
  return formatted(column.format, number);
}

std::string EvaluationReport::to_table() const {
  std::vector<std::vector<std::string>> lines(1 + rows.size());
  std::string table = conditions.dump() + "\n";
  std::vector<size_t> widths;
  for (const ReportColumn& column : columns) {
    lines[0].push_back(column.title);
    size_t width = column.title.size();
    for (size_t i = 0; i < rows.size(); ++i)
      width = std::max(width, lines[i + 1].emplace_back(cell_text(column, rows[i])).size());
    widths.push_back(width);
  }
  for (const std::vector<std::string>& line : lines) {
    for (size_t c = 0; c < line.size(); ++c) {
      const std::string padding(widths[c] - line[c].size(), ' ');
      const bool text = columns[c].format == nullptr;  // text is aligned left, numbers right
      table += (c == 0 ? "" : "  ") + (text ? line[c] + padding : padding + line[c]);
    }
    table.erase(table.find_last_not_of(' ') + 1);
    table += '\n';
  }
  return table;
}

std::string EvaluationReport::to_json_lines() const {
  std::string lines;
  for (const nlohmann::ordered_json& row : rows) {
    nlohmann::ordered_json line = conditions;
    line.update(row);
    lines += line.dump() + "\n";
  }
  return lines;
}

}  // namespace smartkv
