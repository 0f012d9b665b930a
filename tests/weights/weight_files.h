// Common parts of the tests of weight files. The fixtures are made by tests/fixtures/weights/make.py.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "engine/weights/weights.h"

namespace smartkv {

inline const std::filesystem::path kFixtures = SMARTKV_FIXTURES "/weights";

inline std::string read_file(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

inline std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// A folder that belongs to the running test and is removed at the end.
class Folder {
 public:
  Folder()
      : path_(std::filesystem::path(testing::TempDir()) /
              ("smartkv_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
  }

 private:
  std::filesystem::path path_;
};

// Returns the message of the ModelError that `function` throws, or "no error".
template <typename Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const ModelError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace smartkv
