// What the commands that run a model share: options, signals, loading.
#pragma once

#include <chrono>
#include <csignal>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "server/commands/options.h"
#include "server/commands/summary_flags.h"
#include "server/openai/api_request.h"

namespace smartkv {

// --config, --preset (serve only), environment variables (environment.h) and the table's options on a command line; each
// overrides those before it.
class OptionFlags {
 public:
  OptionFlags(CLI::App& app, bool server);
  // Throws ConfigError. The model is required. Warns of environment variables that set nothing.
  ServerOptions resolve() const;
  ServerOptions resolve_without_model() const;

 private:
  bool server_;
  std::string config_, preset_;
  SummaryFlags summaries_;
  std::map<std::string, std::vector<std::string>> given_;  // by option name; more than one of a map's entries
};

// Fills in what follows from other options, and checks what they say of each other. Throws ConfigError.
void complete(ServerOptions* options);

// Receives signals one at a time instead of dying of them. Made before any other thread, so that all block them.
class Signals {
 public:
  explicit Signals(std::initializer_list<int> signals);
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int wait();  // which one arrived
  // Which one arrived that ends what runs; 0: none. SIGHUP, which does not, stays for wait().
  int poll(std::chrono::milliseconds timeout = std::chrono::milliseconds(0));
  void clear();                                                                  // forgets those that wait
  const sigset_t& set() const { return set_; }

 private:
  sigset_t set_, previous_;
};

// Loads the model, with its progress on a terminal's stderr. A signal ends the process.
std::unique_ptr<Engine> load_engine(const ServerOptions& options, Signals& signals);

// The names under which `engine` is served: given ones, else the model's own.
openai::ServedModel served_model(const Engine& engine, const ServerOptions& options);

}  // namespace smartkv
