// The command line's short way to block_summary as the default KV-cache policy: --kv-proc and its parameters.
#pragma once

#include <map>
#include <string>

#include <CLI/CLI.hpp>

#include "server/commands/options.h"

namespace smartkv {

class SummaryFlags {
 public:
  explicit SummaryFlags(CLI::App& app);
  // Sets the default policy if --kv-proc is given: block_summary, or full for "off". Throws ConfigError for a parameter unless it
  // is on, and beside --kv-cache.
  void apply(bool kv_cache_given, ServerOptions* options) const;

 private:
  std::string state_;                         // "on", "off" or "": not given
  std::map<std::string, int64_t> numbers_;    // parameters given, by name
  std::string layers_;
};

}  // namespace smartkv
