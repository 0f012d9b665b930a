// The report of a serving benchmark: its rows, its table, and its picture.
#include <algorithm>

#include "lab/evaluation/markup.h"
#include "lab/evaluation/report.h"
#include "lab/serving/bar_chart.h"
#include "lab/serving/scaled_columns.h"
#include "lab/serving/serving_benchmark.h"

namespace smartkv {

namespace {

using Json = nlohmann::ordered_json;
using Runs = std::vector<ServingRun>;

std::vector<double> values_of(const Runs& runs, double ServingRun::*field) {
  std::vector<double> values;
  for (const ServingRun& run : runs) values.push_back(run.*field);
  return values;
}

double median_of(const Runs& runs, double ServingRun::*field) { return percentile(values_of(runs, field), 0.5); }

// Returns the largest value of the repetitions, or null if the server does not report it.
Json greatest_of(const Runs& runs, std::optional<double> ServingRun::*field) {
  std::optional<double> greatest;
  for (const ServingRun& run : runs) {
    if (run.*field) greatest = std::max(greatest.value_or(0), *(run.*field));
  }
  return greatest ? Json(*greatest) : Json(nullptr);
}

// Returns the goodput of `a` over that of `b` for each repetition in which `b` completed a request.
std::vector<double> ratios(const Runs& a, const Runs& b) {
  std::vector<double> values;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (b[i].tokens_per_s > 0) values.push_back(a[i].tokens_per_s / b[i].tokens_per_s);
  }
  return values;
}

Json row_of(const ServingCase& one, const std::string& server, const Runs& runs) {
  Json row = {{"case", one.name}, {"what", one.what}, {"server", server}};
  if (one.kv_cache_bytes > 0) row["kv_cache_bytes"] = one.kv_cache_bytes;
  int64_t requests = 0, failed = 0, retries = 0, prompt_tokens = 0, cached_tokens = 0;
  std::string failure;
  for (const ServingRun& run : runs) {
    requests += run.requests;
    failed += run.failed;
    retries += run.retries;
    prompt_tokens += run.prompt_tokens;
    cached_tokens += run.cached_tokens;
    if (failure.empty()) failure = run.failure;
  }
  row.update({{"requests", requests}, {"failed", failed}, {"retries", retries}});
  if (!failure.empty()) row["failure"] = failure;
  if (failed == requests) return row;  // there are no times to report
  const auto add = [&](const char* key, double ServingRun::*field, double scale) {
    if (const double median = median_of(runs, field); median > 0) row[key] = scale * median;
  };
  add("wall_s", &ServingRun::wall_s, 1);
  if (!one.fairness()) {
    const std::vector<double> rates = values_of(runs, &ServingRun::tokens_per_s);
    row["tokens_per_s"] = percentile(rates, 0.5);
    row["tokens_per_s_min"] = *std::min_element(rates.begin(), rates.end());
  }
  add("first_token_p50_ms", &ServingRun::first_token_p50_s, 1e3);
  add("first_token_p99_ms", &ServingRun::first_token_p99_s, 1e3);
  add("per_token_p50_ms", &ServingRun::per_token_p50_s, 1e3);
  add("first_token_alone_ms", &ServingRun::alone_s, 1e3);
  add("delay", &ServingRun::delay, 1);
  if (prompt_tokens > 0) row["cached"] = static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens);
  for (const auto& [key, value] : {std::pair{"preemptions", greatest_of(runs, &ServingRun::preemptions)},
                                   std::pair{"kv_bytes_peak", greatest_of(runs, &ServingRun::kv_bytes_peak)}}) {
    if (!value.is_null()) row[key] = value;
  }
  return row;
}

void add_ratio(Json* row, const std::string& key, const std::vector<double>& values) {
  if (values.empty()) return;
  (*row)[key] = percentile(values, 0.5);
  (*row)[key + "_min"] = *std::min_element(values.begin(), values.end());
}

const std::vector<ScaledColumn>& serving_columns() {
  static const std::vector<ScaledColumn> table = {{{"case", "case"}},
                                                  {{"what", "requests"}},
                                                  {{"server", "server"}},
                                                  {{"kv_cache_bytes", "KV MB", "%.0f"}, 1e-6},
                                                  {{"tokens_per_s", "tokens/s", "%.1f"}},
                                                  {{"tokens_per_s_min", "least", "%.1f"}},
                                                  {{"ratio", "ratio", "%.2f"}},
                                                  {{"ratio_min", "least", "%.2f"}},
                                                  {{"base_ratio", "base / variant", "%.2f"}},
                                                  {{"wall_s", "wall s", "%.1f"}},
                                                  {{"first_token_p50_ms", "first token ms p50", "%.0f"}},
                                                  {{"first_token_p99_ms", "p99", "%.0f"}},
                                                  {{"first_token_alone_ms", "alone", "%.0f"}},
                                                  {{"delay", "delay", "%.2f"}},
                                                  {{"per_token_p50_ms", "per token ms", "%.1f"}},
                                                  {{"cached", "cached", "%.0f%%"}, 100},
                                                  {{"kv_bytes_peak", "peak KV MB", "%.1f"}, 1e-6},
                                                  {{"preemptions", "preempted", "%.0f"}},
                                                  {{"retries", "retries", "%.0f"}},
                                                  {{"failed", "failed", "%.0f"}}};
  return table;
}

const char* plotted_key(const Json& row) { return row.contains("delay") ? "delay" : "tokens_per_s"; }

Bar bar_of(const Json& row, bool reference) {
  Bar bar{.label = row.at("server").get<std::string>(),
          .value = row.value(plotted_key(row), 0.0),
          .text = {},
          .reference = reference};
  if (row.contains("delay")) {
    bar.text = formatted("%.1f ×", bar.value);
  } else if (!row.contains("tokens_per_s")) {
    bar.text = "failed";
  } else {
    bar.text = formatted("%.0f", bar.value);
    if (!reference && row.contains("ratio")) bar.text += formatted(" (%.2f ×)", row.at("ratio").get<double>());
  }
  return bar;
}

BarPanel panel_of(std::span<const Json> rows) {
  const bool fairness = std::any_of(rows.begin(), rows.end(), [](const Json& row) { return row.contains("delay"); });
  BarPanel panel;
  panel.title = rows[0].at("case").get<std::string>() + ": " + rows[0].at("what").get<std::string>();
  if (const double bytes = rows[0].value("kv_cache_bytes", 0.0); bytes > 0) {
    panel.title += formatted(", %.0f MB of KV cache", bytes * 1e-6);
  }
  panel.title += fairness ? ": time to first token, relative to the request alone" : ": tokens per second";
  for (const Json& row : rows) panel.bars.push_back(bar_of(row, panel.bars.empty()));
  return panel;
}

}  // namespace

std::vector<Json> serving_rows(const ServingCase& one, std::span<const std::string> servers,
                               std::span<const size_t> base, std::span<const Runs> runs) {
  std::vector<Json> rows;
  for (size_t i = 0; i < servers.size(); ++i) {
    Json row = row_of(one, servers[i], runs[i]);
    if (row.contains("tokens_per_s")) {
      add_ratio(&row, "ratio", ratios(runs[i], runs[0]));
      if (base[i] != i) add_ratio(&row, "base_ratio", ratios(runs[base[i]], runs[i]));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Json ServingReport::to_json() const { return {{"conditions", conditions}, {"rows", rows}}; }

ServingReport ServingReport::from_json(const Json& json) {
  return {json.at("conditions"), json.at("rows").get<std::vector<Json>>()};
}

std::string ServingReport::to_table() const {
  std::string text = used_columns(conditions, rows, serving_columns()).to_table();
  for (const Json& row : rows) {
    if (!row.contains("failure")) continue;
    text += row.at("case").get<std::string>() + ", " + row.at("server").get<std::string>() +
            ": failed: " + row.at("failure").get<std::string>() + "\n";
  }
  return text;
}

std::string ServingReport::to_svg() const {
  std::vector<BarPanel> panels;
  for (size_t first = 0; first < rows.size();) {
    size_t end = first + 1;
    while (end < rows.size() && rows[end].at("case") == rows[first].at("case")) ++end;
    panels.push_back(panel_of(std::span(rows).subspan(first, end - first)));
    first = end;
  }
  return bar_chart("Goodput at fixed cache memory", panels);
}

}  // namespace smartkv
