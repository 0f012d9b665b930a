// The texts that `smartkv eval report` measures by default: assets/evaluation/*, built into the program. Nothing is
// fitted to them; calibration has texts of its own.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace smartkv {

struct EvaluationText {
  std::string_view file;             // path below assets/
  std::span<const std::byte> bytes;  // UTF-8; valid as long as the program runs

  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};

std::vector<EvaluationText> evaluation_texts();

}  // namespace smartkv
