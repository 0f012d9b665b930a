#include "server/commands/summary_flags.h"

namespace smartkv {
namespace {

struct Flag {
  const char *flag, *parameter, *help;
};

constexpr std::array<Flag, 4> kFlags = {{
    {"--kv-window", "window", "With --kv-proc on: number of exact tokens at the end"},
    {"--kv-block", "block", "With --kv-proc on: tokens of a block, which is summarised as a whole"},
    {"--kv-r", "r", "With --kv-proc on: number of summaries of a block"},
    {"--kv-salient", "salient", "With --kv-proc on: number of exact tokens of a block"},
}};

}  // namespace

SummaryFlags::SummaryFlags(CLI::App& app) {
  app.add_option("--kv-proc", state_,
                 "on is short for --kv-cache '{\"policy\": \"block_summary\", ...}'; off uses the "
                 "full cache, even if a config file sets another policy")
      ->check(CLI::IsMember({"on", "off"}));
  for (const Flag& flag : kFlags) {
    const std::string parameter = flag.parameter;
    app.add_option_function<int64_t>(
           flag.flag, [this, parameter](int64_t value) { numbers_[parameter] = value; }, flag.help)
        ->type_name("N");
  }
  app.add_option("--kv-proc-layers", layers_, "With --kv-proc on: range of layers to compress, counted from 0")
      ->type_name("LO-HI");
}

void SummaryFlags::apply(bool kv_cache_given, ServerOptions* options) const {
  if (state_ != "on" && !(numbers_.empty() && layers_.empty())) {
    const std::string first = numbers_.empty() ? "proc-layers" : numbers_.begin()->first;
    throw ConfigError("--kv-" + first + ": needs --kv-proc on");
  }
  if (state_.empty()) return;
  if (kv_cache_given) throw ConfigError("--kv-proc: expected either --kv-proc or --kv-cache, found both");
  if (state_ == "off") {
    options->engine.kv_cache = "full";
    return;
  }
  nlohmann::json spec = {{"policy", "block_summary"}};
  for (const auto& [parameter, value] : numbers_) spec[parameter] = value;
  if (!layers_.empty()) spec["layers"] = layers_;
  options->engine.kv_cache = spec;
}

}  // namespace smartkv
