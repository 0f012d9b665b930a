// Compiles one grammar on the calling thread, within limits: what GrammarCompiler (constraint.h) schedules.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/sampling/constraint.h"

namespace smartkv {

struct CompileLimits {
  double seconds = 0;  // of the thread's CPU time
  int64_t steps = 0;   // loop iterations of about 0.1 us
  int64_t bytes = 0;   // of the grammar, its automata and its token masks
};

// The time of CompileLimits is over.
struct CompileTimeout : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// `stopped` was set.
struct CompileStopped : std::runtime_error {
  CompileStopped() : std::runtime_error("the compilation was stopped") {}
};

// Any number of threads at a time.
class GrammarBackend {
 public:
  // As GrammarCompiler's.
  GrammarBackend(const Tokenizer& tokenizer, int64_t vocabulary, std::vector<TokenId> ends);
  ~GrammarBackend();

  // Throws GrammarError (ebnf.h) with an empty path, CompileTimeout, or CompileStopped soon after `stopped` is set.
  std::shared_ptr<const CompiledGrammar> compile(const std::string& grammar, const CompileLimits& limits,
                                                 const std::atomic<bool>& stopped);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace smartkv
