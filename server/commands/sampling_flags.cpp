#include "server/commands/sampling_flags.h"

namespace smartkv {

SamplingFlags::SamplingFlags(CLI::App& app, int64_t max_tokens) : max_tokens_(max_tokens) {
  app.add_option("-n,--max-tokens", max_tokens_, "Most tokens of an answer")->capture_default_str();
  app.add_option("-t,--temperature", temperature_, "0: always the likeliest token [1]");
  app.add_option("--top-p", top_p_, "Sample from the likeliest tokens of this total probability [1]");
  app.add_option("--top-k", top_k_, "Sample from this many of the likeliest tokens; 0: all [0]");
  app.add_option("--min-p", min_p_, "Drop tokens less likely than this fraction of the likeliest [0]");
  app.add_option("--repetition-penalty", repetition_penalty_, "Above 1: repeat less [1]");
  app.add_option("--seed", seed_, "Makes sampling repeatable");
  app.add_option("--stop", stop_, "Text that ends the answer; may be given several times")->allow_extra_args(false);
  app.add_flag("--ignore-eos", ignore_eos_, "Go on past the end-of-sequence token");
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
