// The texts that a model is measured with, built into the program: assets/calibration/*.txt, from which its tables
// come, and assets/frontier/*.txt, which show what policies do with them.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace smartkv {

struct CalibrationText {
  std::string_view file;             // path below assets/
  std::span<const std::byte> bytes;  // UTF-8; valid as long as the program runs

  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};

std::vector<CalibrationText> calibration_texts();  // all of them

}  // namespace smartkv
