// Shared parts of the commands that run a model: options, signals, loading.
#pragma once

#include <chrono>
#include <csignal>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "server/commands/options.h"
#include "server/commands/summary_flags.h"
#include "server/openai/api_request.h"

namespace smartkv {

// Collects the options of a run from --config, --preset (serve only), environment variables (environment.h) and the
// command line. A later source in this list overrides the earlier ones. The object must outlive the parsing of `app`.
class OptionFlags {
 public:
  // Adds the flags to `app`. If `server`, these include --preset and the options that only serve has.
  OptionFlags(CLI::App& app, bool server);
  // Returns the options, and sets the level and format of the log. Warns about environment variables that set nothing.
  // Throws ConfigError, also if there is no model.
  ServerOptions resolve() const;
  // Returns the options only. Throws ConfigError.
  ServerOptions resolve_without_model() const;

 private:
  bool server_;
  std::string config_, preset_;
  SummaryFlags summaries_;
  std::map<std::string, std::vector<std::string>> given_;  // values by option name; several for a list or a map
};

// Fills in options that follow from others, and checks the options against each other. Throws ConfigError.
void complete(ServerOptions* options);

// Receives signals one at a time; without it, they would end the process. REQUIRES: constructed before any other thread
// is started, so that all threads block the signals.
class Signals {
 public:
  explicit Signals(std::initializer_list<int> signals);
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int wait();  // waits for a signal and returns it
  // Waits up to `timeout` for a signal other than SIGHUP. Returns it, or 0 if none arrived. SIGHUP ends nothing, so it
  // stays pending for wait().
  int poll(std::chrono::milliseconds timeout = std::chrono::milliseconds(0));
  void clear();  // drops pending signals
  const sigset_t& set() const { return set_; }

 private:
  sigset_t set_, previous_;
};

// Loads the model, and shows the progress if stderr is a terminal. A signal while it loads ends the process.
std::unique_ptr<Engine> load_engine(const ServerOptions& options, Signals& signals);

// Returns the served model of `engine`: its names are those in the options, or the model's own if there are none.
// `engine` must outlive the result. Throws ConfigError for wrong sampling defaults.
openai::ServedModel served_model(const Engine& engine, const ServerOptions& options);

}  // namespace smartkv
