#include "server/commands/sampling_flags.h"

namespace smartkv {

SamplingFlags::SamplingFlags(CLI::App& app, int64_t max_tokens) : max_tokens_(max_tokens) {
  app.add_option("-n,--max-tokens", max_tokens_, "Limit of tokens of an answer")->capture_default_str();
  app.add_option("-t,--temperature", temperature_, "Sampling temperature; 0 always takes the likeliest token [1]");
  app.add_option("--top-p", top_p_, "Sample from the likeliest tokens with this total probability [1]");
  app.add_option("--top-k", top_k_, "Sample from this number of likeliest tokens; 0 samples from all [0]");
  app.add_option("--min-p", min_p_,
                 "Drop tokens with less than this fraction of the likeliest token's probability [0]");
  app.add_option("--repetition-penalty", repetition_penalty_,
                 "Penalty for repeated tokens; values above 1 reduce repetition [1]");
  app.add_option("--seed", seed_, "Seed that makes sampling repeatable");
  app.add_option("--stop", stop_, "Text that ends the answer; may be given several times")->allow_extra_args(false);
  app.add_flag("--ignore-eos", ignore_eos_, "Continue after the end-of-sequence token");
}

nlohmann::ordered_json SamplingFlags::body() const {
  nlohmann::ordered_json body = {{"max_tokens", max_tokens_}};
  const auto add = [&body](const char* name, const auto& value) {
    if (value) body[name] = *value;
  };
  add("temperature", temperature_);
  add("top_p", top_p_);
  add("top_k", top_k_);
  add("min_p", min_p_);
  add("repetition_penalty", repetition_penalty_);
  add("seed", seed_);
  if (!stop_.empty()) body["stop"] = stop_;
  if (ignore_eos_) body["ignore_eos"] = true;
  return body;
}

}  // namespace smartkv
