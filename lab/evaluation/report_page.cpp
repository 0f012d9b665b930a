// Renders a report as an HTML page: its table, and a chart (SVG) with the frontier of quality against bytes.
#include <algorithm>
#include <cmath>

#include "lab/evaluation/markup.h"
#include "lab/evaluation/report.h"

namespace smartkv {
namespace {

constexpr double kWidth = 860, kHeight = 480, kLeft = 80, kRight = 30, kTop = 20, kBottom = 60;

constexpr const char* kPageStyle =
    R"(body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;color:#222;background:#fff}
table{border-collapse:collapse;margin:1em 0;font-variant-numeric:tabular-nums}
th,td{padding:.25em .7em;text-align:right;border-bottom:1px solid #ddd}
th.text,td.text{text-align:left;font-family:ui-monospace,monospace}
th.text{font-family:inherit}
.tables{overflow-x:auto}
svg{width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:#222}
.grid{stroke:#e4e4e4}
.frontier{fill:none;stroke:#2a6fdb;stroke-width:1.5;stroke-dasharray:5 4}
.point{fill:#2a6fdb}
.simulated{fill:none;stroke:#2a6fdb;stroke-width:1.5}
.error{stroke:#2a6fdb;stroke-width:1;opacity:.6}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}th,td{border-color:#444}svg text{fill:#ddd}.grid{stroke:#3a3a3a}})";

// An axis of the chart. It maps values to pixels and has ticks at round values.
class Axis {
 public:
  Axis(double low, double high, bool log, double pixel_low, double pixel_high)
      : log_(log), from_(pixel_low), to_(pixel_high) {
    low_ = scaled(low);
    high_ = scaled(high);
    const double margin = high_ > low_ ? 0.06 * (high_ - low_) : 0.5;
    low_ -= margin;
    high_ += margin;
  }
  double pixel(double value) const { return from_ + (scaled(value) - low_) / (high_ - low_) * (to_ - from_); }
  // The pixel of a value that may lie outside the axis, cut to its ends.
  double end(double value) const {
    const double at = log_ && value <= 0 ? from_ : pixel(value);
    return std::clamp(at, std::min(from_, to_), std::max(from_, to_));
  }
  std::vector<double> ticks() const {
    std::vector<double> ticks;
    if (log_) {
      for (double exponent = std::floor(low_); exponent <= high_; ++exponent) {
        for (const double digit : {1.0, 2.0, 5.0}) {
          const double tick = digit * std::pow(10.0, exponent);
          if (scaled(tick) >= low_ && scaled(tick) <= high_) ticks.push_back(tick);
        }
      }
      return ticks;
    }
    const double power = std::pow(10.0, std::floor(std::log10((high_ - low_) / 5)));
    const double digits = (high_ - low_) / 5 / power;
    const double step = power * (digits < 1.5 ? 1 : digits < 3.5 ? 2 : digits < 7.5 ? 5 : 10);
    for (double i = std::ceil(low_ / step); i * step <= high_; ++i) ticks.push_back(i * step);
    return ticks;
  }

 private:
  double scaled(double value) const { return log_ ? std::log10(value) : value; }
  bool log_;
  double low_ = 0, high_ = 0, from_, to_;
};

struct Point {
  double x, y;
  double error;  // standard error of y; 0 if it is not known
  bool simulated;
  std::string label;
};

std::vector<Point> points_of(const EvaluationReport& report) {
  std::vector<Point> points;
  for (const nlohmann::ordered_json& row : report.rows) {
    const auto x = row.find(report.x_key), y = row.find(report.y_key);
    if (x == row.end() || y == row.end() || !x->is_number() || !y->is_number()) continue;
    if (!std::isfinite(x->get<double>()) || !std::isfinite(y->get<double>())) continue;
    const double error = row.value(report.y_error_key, nlohmann::ordered_json()).is_number()
                             ? row.at(report.y_error_key).get<double>()
                             : 0;
    points.push_back({x->get<double>(), y->get<double>(), std::isfinite(error) ? error : 0,
                      row.value("simulated", false), row.at("policy").get<std::string>()});
  }
  std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
  return points;
}

// Returns whether the y axis should be logarithmic: if positive values span more than one order of magnitude, and none
// is negative. Zeros are left out of a logarithmic axis.
bool wants_log(const std::vector<Point>& points) {
  double low = 0, high = 0;
  for (const Point& point : points) {
    if (point.y < 0) return false;
    if (point.y == 0) continue;
    low = low == 0 ? point.y : std::min(low, point.y);
    high = std::max(high, point.y);
  }
  return low > 0 && high > 10 * low;
}

std::string grid(const Axis& x, const Axis& y) {
  std::string svg;
  for (const double tick : x.ticks()) {
    const double at = x.pixel(tick);
    svg += formatted("<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", at, at, kTop,
                     kHeight - kBottom);
    svg +=
        formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>\n", at, kHeight - kBottom + 18, tick);
  }
  for (const double tick : y.ticks()) {
    const double at = y.pixel(tick);
    svg += formatted("<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", kLeft, kWidth - kRight,
                     at, at);
    svg += formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", kLeft - 8, at + 4, tick);
  }
  return svg;
}

std::string labelled(const std::vector<Point>& points, const Axis& x, const Axis& y) {
  std::string svg;
  struct Place {
    double x, y;
  };
  std::vector<Place> taken;
  for (const Point& point : points) {
    const double px = x.pixel(point.x), py = y.pixel(point.y);
    const bool left = px > 0.75 * kWidth;  // keeps the label inside the chart
    double label_y = py - 6;
    const auto collides = [&](const Place& place) {
      return std::abs(place.x - px) < 150 && std::abs(place.y - label_y) < 13;
    };
    while (label_y > kTop + 13 && std::any_of(taken.begin(), taken.end(), collides)) label_y -= 13;
    taken.push_back({px, label_y});
    if (point.error > 0) {
      svg += formatted("<line class=\"error\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", px, px,
                       y.end(point.y - point.error), y.end(point.y + point.error));
    }
    svg += formatted("<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>",
                     point.simulated ? "point simulated" : "point", px, py);
    svg += formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", px + (left ? -7 : 7), label_y,
                     left ? "end" : "start");
    svg += escaped_markup(point.label) + "</text>\n";
  }
  return svg;
}

// Joins the points that no other point beats in both directions.
std::string frontier(const std::vector<Point>& points, bool lower_is_better, const Axis& x, const Axis& y) {
  std::string path;
  const Point* best = nullptr;
  for (const Point& point : points) {
    if (best != nullptr && (lower_is_better ? point.y >= best->y : point.y <= best->y)) continue;
    best = &point;
    path += formatted("%s%.1f,%.1f", path.empty() ? "" : " ", x.pixel(point.x), y.pixel(point.y));
  }
  return "<polyline class=\"frontier\" points=\"" + path + "\"/>\n";
}

std::string picture(const EvaluationReport& report) {
  std::vector<Point> points = points_of(report);
  const bool log = wants_log(points);
  std::string left_out;
  if (log) {
    for (const Point& point : points) {
      if (point.y == 0) left_out += (left_out.empty() ? "" : ", ") + escaped_markup(point.label);
    }
    std::erase_if(points, [](const Point& point) { return point.y == 0; });
  }
  if (points.empty()) return "";
  const auto [low, high] =
      std::minmax_element(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.y < b.y; });
  const Axis x(points.front().x, points.back().x, false, kLeft, kWidth - kRight);
  const Axis y(low->y, high->y, log, kHeight - kBottom, kTop);
  std::string svg =
      formatted("<svg viewBox=\"0 0 %.0f %.0f\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\">\n", kWidth, kHeight);
  svg += "<title>" + escaped_markup(report.y_title + " against " + report.x_title) + "</title>\n";
  svg += grid(x, y) + frontier(points, report.lower_is_better, x, y) + labelled(points, x, y);
  svg += formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", (kLeft + kWidth - kRight) / 2, kHeight - 14);
  svg += escaped_markup(report.x_title) + "</text>\n";
  svg += formatted("<text transform=\"translate(18 %.1f) rotate(-90)\" text-anchor=\"middle\">",
                   (kTop + kHeight - kBottom) / 2);
  svg += escaped_markup(report.y_title) + (log ? " (logarithmic)" : "") + "</text>\n</svg>\n";
  if (!left_out.empty()) svg += "<p>At exactly 0, below the logarithmic axis: " + left_out + ".</p>\n";
  return svg;
}

std::string paragraph(const std::string& text) { return "<p>" + escaped_markup(text) + "</p>\n"; }

std::string html_table(const EvaluationReport& report) {
  std::string html = "<div class=\"tables\"><table>\n<tr>";
  const auto attribute = [](const ReportColumn& column) { return column.format == nullptr ? " class=\"text\"" : ""; };
  for (const ReportColumn& column : report.columns)
    html += std::string("<th") + attribute(column) + ">" + escaped_markup(column.title) + "</th>";
  html += "</tr>\n";
  for (const nlohmann::ordered_json& row : report.rows) {
    html += "<tr>";
    for (const ReportColumn& column : report.columns) {
      html += std::string("<td") + attribute(column) + ">" + escaped_markup(cell_text(column, row)) + "</td>";
    }
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

}  // namespace

std::string EvaluationReport::to_html() const { return ReportPage{title, conditions, notes, {*this}}.to_html(); }

std::string ReportPage::to_html() const {
  std::string html = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>" +
                     escaped_markup(title) + "</title>\n<style>\n" + kPageStyle + "\n</style>\n</head>\n<body>\n";
  html += "<h1>" + escaped_markup(title) + "</h1>\n" + paragraph(listed(conditions));
  for (const std::string& note : notes) html += paragraph(note);
  const bool alone = sections.size() == 1 && sections[0].title == title;
  for (const EvaluationReport& section : sections) {
    if (!alone) {
      html += "<h2>" + escaped_markup(section.title) + "</h2>\n";
      if (!section.conditions.empty()) html += paragraph(listed(section.conditions));
      for (const std::string& note : section.notes) html += paragraph(note);
    }
    html += picture(section);
    if (!section.rows.empty() || alone) html += html_table(section);
  }
  return html + "</body>\n</html>\n";
}

}  // namespace smartkv
