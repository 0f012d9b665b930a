// A policy that simulates another program's format: a full cache whose K and V have been through the format.
#pragma once

#include <memory>

#include "lab/evaluation/evaluation.h"
#include "lab/evaluation/simulated_format.h"

namespace smartkv {

// Returns whether `spec` is {"policy": "simulated", ...}.
inline bool is_simulated(const nlohmann::json& spec) {
  return spec.is_object() && spec.value("policy", nlohmann::json()) == "simulated";
}

// Makes the policy of {"policy": "simulated", "format": NAME}, with one of simulated_formats(). stats().bytes are those
// of the format. Throws CacheError naming the key, and for tiles of several tokens in a model with a sliding window.
std::unique_ptr<KvCachePolicy> make_simulated_policy(const EvaluationModel& model, const nlohmann::json& spec,
                                                     const TensorRanges& ranges);

// Measures the ranges of K and V over these tokens with the full cache.
TensorRanges measure_ranges(const EvaluationModel& model, std::span<const TokenId> tokens);

}  // namespace smartkv
