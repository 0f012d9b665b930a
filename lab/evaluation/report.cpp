#include "lab/evaluation/report.h"

#include <algorithm>

#include "lab/evaluation/markup.h"

namespace smartkv {
namespace {

// Returns `text` for a cell of a Markdown table.
std::string markdown_cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

}  // namespace

std::string cell_text(const ReportColumn& column, const nlohmann::ordered_json& row) {
  const auto value = row.find(column.key);
  if (value == row.end() || value->is_null()) return "-";
  if (column.format == nullptr) return value->is_string() ? value->get<std::string>() : value->dump();
  const double number = value->get<double>();
  if (number != number) return "-";
  std::string text = formatted(column.format, number);
  const auto error = row.find(column.error_key);
  if (column.error_key.empty() || error == row.end() || error->is_null()) return text;
  const double deviation = error->get<double>();
  if (deviation != deviation) return text;
  std::string format = column.format;  // of the value; an error has no sign
  std::erase(format, '+');
  return text + " ± " + formatted(format.c_str(), deviation);
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

std::string EvaluationReport::to_markdown_table() const {
  std::string header = "|", rule = "|", lines;
  for (const ReportColumn& column : columns) {
    header += " " + markdown_cell(column.title) + " |";
    rule += column.format == nullptr ? "---|" : "--:|";
  }
  for (const nlohmann::ordered_json& row : rows) {
    lines += "|";
    for (const ReportColumn& column : columns) lines += " " + markdown_cell(cell_text(column, row)) + " |";
    lines += "\n";
  }
  return header + "\n" + rule + "\n" + lines;
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

std::string listed(const nlohmann::ordered_json& conditions) {
  std::string text;
  for (const auto& [key, value] : conditions.items())
    text += (text.empty() ? "" : ", ") + key + ": " + (value.is_string() ? value.get<std::string>() : value.dump());
  return text;
}

std::string ReportPage::to_markdown() const {
  std::string text = "# " + title + "\n\n" + listed(conditions) + "\n";
  for (const std::string& note : notes) text += "\n" + note + "\n";
  for (const EvaluationReport& section : sections) {
    text += "\n## " + section.title + "\n\n";
    if (!section.conditions.empty()) text += listed(section.conditions) + "\n\n";
    for (const std::string& note : section.notes) text += note + "\n\n";
    if (!section.rows.empty()) text += section.to_markdown_table();
  }
  return text;
}

}  // namespace smartkv
