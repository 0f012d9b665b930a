// Results of Hugging Face transformers for every architecture and every scaling of RoPE, in f32. The fixtures are made
// by tests/fixtures/architectures/make.py.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/weights/weight_files.h"

namespace smartkv {

inline const std::filesystem::path kArchitectures = SMARTKV_FIXTURES "/architectures";
inline constexpr const char* kGgufCases[] = {"llama",  "mistral", "qwen2",     "qwen3",     "smollm3",    "granite",
                                             "olmo2",  "phi3",    "llama_odd", "qwen3_odd", "seed_oss",   "gemma2",
                                             "gemma3", "mixtral", "qwen2moe",  "qwen3moe",  "granitemoe", "gpt_oss"};

inline const nlohmann::json& architecture_cases() {
  static const nlohmann::json json = nlohmann::json::parse(std::ifstream(kArchitectures / "cases.json"));
  return json;
}

inline std::vector<std::string> names_of(const nlohmann::json& json) {
  std::vector<std::string> names;
  for (const auto& [name, item] : json.items()) names.push_back(name);
  return names;
}

// Writes a case's weights and configuration as a Hugging Face folder.
inline void write_case(const Folder& folder, const nlohmann::json& item) {
  folder.write("config.json", item["config"].dump());
  folder.write("model.safetensors", read_file(kArchitectures / (item["weights"].get<std::string>() + ".safetensors")));
}

// Expects the logits that transformers computed. logits: f32 [tokens, vocab] of the case's tokens.
inline void expect_transformers(const nlohmann::json& item, const std::vector<float>& logits, int64_t vocab) {
  size_t row = 0;
  for (const int64_t position : item["positions"].get<std::vector<int64_t>>()) {
    const std::vector<float> expected = item["logits"][row++];
    for (int64_t i = 0; i < vocab; ++i) {
      ASSERT_NEAR(logits[static_cast<size_t>(position * vocab + i)], expected[static_cast<size_t>(i)], 1e-3)
          << "position " << position << ", token " << i;
    }
  }
}

}  // namespace smartkv
