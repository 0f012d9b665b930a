// The report of the benchmark of agents: its table and its picture.
#include <algorithm>

#include "lab/evaluation/markup.h"
#include "lab/serving/agent_benchmark.h"
#include "lab/serving/bar_chart.h"
#include "lab/serving/scaled_columns.h"

namespace smartkv {

namespace {

using Json = nlohmann::ordered_json;

const std::vector<ScaledColumn>& agent_columns() {
  static const std::vector<ScaledColumn> table = {{{"server", "server"}},
                                                  {{"kv_cache_bytes", "KV MB", "%.0f"}, 1e-6},
                                                  {{"cache_ram_bytes", "more MB", "%.0f"}, 1e-6},
                                                  {{"turns_per_min", "turns/min", "%.1f"}},
                                                  {{"first_token_p50_s", "TTFT p50 s", "%.2f"}},
                                                  {{"first_token_p95_s", "p95", "%.2f"}},
                                                  {{"found", "found", "%.0f%%"}, 100},
                                                  {{"shown_by_turn", "by turn"}},
                                                  {{"start_s", "first turns s", "%.0f"}},
                                                  {{"kv_bytes", "sessions' KV MB", "%.0f"}, 1e-6},
                                                  {{"written_bytes", "written MB", "%.0f"}, 1e-6},
                                                  {{"before_restart_s", "a turn s", "%.1f"}},
                                                  {{"after_restart_ratio", "after a restart", "%.2f"}},
                                                  {{"failed", "failed", "%.0f"}}};
  return table;
}

EvaluationReport agent_table(const AgentReport& report) {
  std::vector<Json> rows = report.rows;
  for (Json& row : rows) {
    std::string shares;
    for (const Json& share : row.value("found_by_turn", Json::array())) {
      shares += (shares.empty() ? "" : " ") + formatted("%.0f%%", 100 * share.get<double>());
    }
    if (!shares.empty()) row["shown_by_turn"] = shares;
  }
  return used_columns(report.conditions, rows, agent_columns());
}

std::string agent_failures(const AgentReport& report) {
  std::string text;
  for (const Json& row : report.rows) {
    if (!row.contains("failure")) continue;
    text += row.at("server").get<std::string>() + ": failed: " + row.at("failure").get<std::string>() + "\n";
  }
  return text;
}

BarPanel agent_panel(const AgentReport& report, const std::string& title, const char* key, double scale,
                     const char* format) {
  BarPanel panel{.title = title, .bars = {}};
  for (const Json& row : report.rows) {
    const double value = scale * row.value(key, 0.0);
    panel.bars.push_back({.label = row.at("server").get<std::string>(),
                          .value = value,
                          .text = row.contains(key) ? formatted(format, value) : "failed",
                          .reference = !row.contains("policy")});
  }
  return panel;
}

}  // namespace

Json AgentReport::to_json() const { return {{"conditions", conditions}, {"rows", rows}}; }

AgentReport AgentReport::from_json(const Json& json) {
  return {json.at("conditions"), json.at("rows").get<std::vector<Json>>()};
}

std::string AgentReport::to_table() const { return agent_table(*this).to_table() + agent_failures(*this); }

std::string AgentReport::to_markdown() const { return agent_table(*this).to_markdown_table(); }

std::string AgentReport::to_svg() const {
  return bar_chart(
      "Turns of agents at fixed cache memory",
      std::vector<BarPanel>{
          agent_panel(*this, "Turns per minute", "turns_per_min", 1, "%.1f"),
          agent_panel(*this, "Prompt tokens found in the cache", "found", 100, "%.0f %%"),
          agent_panel(*this, "Seconds to the first token, 95th percentile", "first_token_p95_s", 1, "%.2f")});
}

}  // namespace smartkv
