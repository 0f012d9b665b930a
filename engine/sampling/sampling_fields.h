// The numbers of SamplingParams. A row has everything that requests, config files, model files, the command line and
// the documentation say about a field.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

#include "engine/engine.h"

namespace smartkv {

struct SamplingField {
  std::string_view name;  // in requests, in the option `sampling` and in generation_config.json
  std::variant<float SamplingParams::*, int32_t SamplingParams::*> member;  // its initializer is the default
  int64_t min, max;
  std::string_view help;
  std::string_view flags = {};  // of generate and chat
  std::string_view gguf = {};   // key of the recommendation in GGUF files; empty if models recommend no value
  bool above_min = false;       // excludes `min` from the range

  bool is_whole() const { return std::holds_alternative<int32_t SamplingParams::*>(member); }
  // Returns whether the value is in the range. NaN is not.
  bool allows(double value) const {
    const auto least = static_cast<double>(min);
    return (above_min ? value > least : value >= least) && value <= static_cast<double>(max);
  }
  double of(const SamplingParams& params) const {
    return std::visit([&](auto at) { return static_cast<double>(params.*at); }, member);
  }
  void set(double value, SamplingParams* params) const {
    if (is_whole()) {
      params->*std::get<int32_t SamplingParams::*>(member) = static_cast<int32_t>(value);
    } else {
      params->*std::get<float SamplingParams::*>(member) = static_cast<float>(value);
    }
  }
};

inline constexpr SamplingField kSamplingFields[] = {
    {"temperature", &SamplingParams::temperature, 0, 2, "Sampling temperature; 0 always takes the likeliest token",
     "-t,--temperature", "general.sampling.temp"},
    {"top_p", &SamplingParams::top_p, 0, 1, "Sample from the likeliest tokens with this total probability", "--top-p",
     "general.sampling.top_p"},
    {"top_k", &SamplingParams::top_k, -1, INT32_MAX, "Sample from this number of likeliest tokens; 0 and -1: from all",
     "--top-k", "general.sampling.top_k"},
    {"min_p", &SamplingParams::min_p, 0, 1, "Drop tokens below this fraction of the likeliest token's probability",
     "--min-p", "general.sampling.min_p"},
    {"repetition_penalty", &SamplingParams::repetition_penalty, 0, 10,
     "Penalty for tokens of prompt and answer; values above 1 reduce repetition", "--repetition-penalty",
     "general.sampling.penalty_repeat", true},
    {"presence_penalty", &SamplingParams::presence_penalty, -2, 2, "Penalty for tokens that the answer has"},
    {"frequency_penalty", &SamplingParams::frequency_penalty, -2, 2, "Penalty for each occurrence in the answer"}};

}  // namespace smartkv
