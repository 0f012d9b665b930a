// What speculative decoding is measured on: prompts of several kinds of work, in our own words.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/engine.h"

namespace smartkv {

struct SpeculationWorkload {
  std::string name;
  std::vector<std::vector<TokenId>> prompts;
  float temperature = 0;
  bool ignore_eos = false;
};

// "copy" and "extract": the answer repeats parts of the prompt; "code": a small program after a similar one; "chat":
// short questions; "depth": a long text to continue; "adversarial": random tokens at temperature 1.3.
std::span<const std::string> speculation_workload_names();

// What the methods of a workload are when none are given. draft_model: the engine has one.
std::vector<nlohmann::json> default_methods(const std::string& workload, bool draft_model);

// A workload that needs no text. Throws std::invalid_argument for an unknown name.
SpeculationWorkload make_workload(const std::string& name, const Engine& engine);

// `sequences` stretches of `depth` tokens, spread over the text file. Throws std::invalid_argument when it is too short.
SpeculationWorkload make_depth_workload(const std::filesystem::path& text, int64_t depth, int64_t sequences,
                                        const Engine& engine);

}  // namespace smartkv
