// The workloads of the speculation benchmark: prompts for several kinds of work, written for this project.
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

// Returns the names of all workloads:
//  - "copy" and "extract": the answer repeats parts of the prompt
//  - "code": a small program after a similar one
//  - "chat": short questions
//  - "depth": a long text to continue
//  - "adversarial": random tokens at temperature 1.3
std::span<const std::string> speculation_workload_names();

// Returns the methods that suit a workload. `draft_model` says whether the engine has a draft model.
std::vector<nlohmann::json> default_methods(const std::string& workload, bool draft_model);

// Returns a workload other than "depth". Throws std::invalid_argument for an unknown name.
SpeculationWorkload make_workload(const std::string& name, const Engine& engine);

// Returns the workload "depth": `sequences` passages of `depth` tokens each, spread over the text file. Throws
// std::invalid_argument if the text cannot be read or is too short.
SpeculationWorkload make_depth_workload(const std::filesystem::path& text, int64_t depth, int64_t sequences,
                                        const Engine& engine);

}  // namespace smartkv
