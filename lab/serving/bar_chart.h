// Pictures of benchmarks: panels of horizontal bars, as SVG.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace smartkv {

struct Bar {
  std::string label;
  double value = 0;
  std::string text;        // shown behind the bar
  bool reference = false;  // the bar with which the others are compared; it is paler
};

struct BarPanel {
  std::string title;
  std::vector<Bar> bars;  // the longest one spans the panel
};

// Returns an SVG document whose colours suit light and dark pages.
std::string bar_chart(const std::string& title, std::span<const BarPanel> panels);

}  // namespace smartkv
