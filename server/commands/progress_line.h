// A line on the terminal of stderr that shows how far a command is.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <string>

namespace smartkv {

// Nothing is shown if stderr is no terminal.
class ProgressLine {
 public:
  ~ProgressLine() { clear(); }
  // fraction: 0 to 1. The line is redrawn at most ten times a second.
  void show(double fraction, const std::string& what) {
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ || now - shown_ < std::chrono::milliseconds(100)) return;
    shown_ = now;
    constexpr int kWidth = 20;
    const int done = std::clamp(static_cast<int>(kWidth * fraction), 0, kWidth);
    std::cerr << "\r\033[K[" << std::string(static_cast<size_t>(done), '#')
              << std::string(static_cast<size_t>(kWidth - done), ' ') << "] " << std::setw(3)
              << static_cast<int>(100 * fraction) << "%  " << what << std::flush;
  }
  void clear() const {
    if (terminal_) std::cerr << "\r\033[K" << std::flush;
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  std::chrono::steady_clock::time_point shown_;
};

}  // namespace smartkv
