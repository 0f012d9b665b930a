// Flags that make block_summary the default KV-cache policy: --kv-proc and its parameters.
#pragma once

#include <map>
#include <string>

#include <CLI/CLI.hpp>

#include "server/commands/options.h"

namespace smartkv {

class SummaryFlags {
 public:
  explicit SummaryFlags(CLI::App& app);
  // Sets the default policy if --kv-proc is given: block_summary for "on", full for "off". Throws ConfigError if a
  // parameter is given without --kv-proc on, or if --kv-cache is given too.
  void apply(bool kv_cache_given, ServerOptions* options) const;

 private:
  std::string state_;                       // "on", "off", or "" if --kv-proc is not given
  std::map<std::string, int64_t> numbers_;  // the given parameters, by name
  std::string layers_;
};

}  // namespace smartkv
