#include "lab/serving/bar_chart.h"

#include <algorithm>

#include "lab/evaluation/markup.h"

namespace smartkv {

namespace {

// Sizes are in pixels.
constexpr double kBarsWidth = 860, kLabels = 300, kNumbers = 150, kBarsTop = 12, kTitle = 34, kBar = 18, kGap = 6,
                 kPanelGap = 18;
constexpr const char* kBarsStyle =
    "text{font:13px system-ui,sans-serif;fill:#222}.title{font-weight:600}.bar{fill:#2a6fdb}.reference{fill:#8fb3ee}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}";

std::string drawn(const Bar& bar, double greatest, double y) {
  const double length = greatest > 0 ? (kBarsWidth - kLabels - kNumbers) * bar.value / greatest : 0;
  const double middle = y + kBar / 2 + 4.5;
  return formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">", kLabels - 10, middle) +
         escaped_markup(bar.label) + "</text>" +
         formatted("<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>",
                   bar.reference ? "reference" : "bar", kLabels, y, length, kBar) +
         formatted("<text x=\"%.1f\" y=\"%.1f\">", kLabels + length + 8, middle) + escaped_markup(bar.text) +
         "</text>\n";
}

}  // namespace

std::string bar_chart(const std::string& title, std::span<const BarPanel> panels) {
  std::string drawing;
  double y = kBarsTop;
  for (const BarPanel& panel : panels) {
    double greatest = 0;
    for (const Bar& bar : panel.bars) greatest = std::max(greatest, bar.value);
    drawing += formatted("<text class=\"title\" x=\"%.1f\" y=\"%.1f\">", kBarsTop, y + 18) +
               escaped_markup(panel.title) + "</text>\n";
    y += kTitle;
    for (const Bar& bar : panel.bars) {
      drawing += drawn(bar, greatest, y);
      y += kBar + kGap;
    }
    y += kPanelGap;
  }
  return formatted("<svg viewBox=\"0 0 %.0f %.0f\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\">\n", kBarsWidth,
                   y) +
         "<title>" + escaped_markup(title) + "</title>\n<style>" + kBarsStyle + "</style>\n" + drawing + "</svg>\n";
}

}  // namespace smartkv
