// The texts from which a model is calibrated: assets/calibration/*.txt, built into the program.
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

std::vector<CalibrationText> calibration_texts();

}  // namespace smartkv
