// Compiles one grammar on the calling thread, within limits. GrammarCompiler (constraint.h) schedules these
// compilations.
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
  double seconds = 0;  // CPU time of the thread
  int64_t steps = 0;   // loop iterations of about 0.1 us each
  int64_t bytes = 0;   // bytes of the grammar, its automata and its token masks
};

// The compilation exceeded CompileLimits::seconds.
struct CompileTimeout : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The flag `stopped` of GrammarBackend::compile() was set.
struct CompileStopped : std::runtime_error {
  CompileStopped() : std::runtime_error("the compilation was stopped") {}
};

// Compiles grammars with XGrammar. Any number of threads may use it at the same time.
class GrammarBackend {
 public:
  // The parameters are those of GrammarCompiler.
  GrammarBackend(const Tokenizer& tokenizer, int64_t vocabulary, std::vector<TokenId> ends);
  ~GrammarBackend();

  // Throws
  //  - GrammarError (ebnf.h) with an empty path, if the text is not a grammar, if no text matches it, or if it exceeds
  //    the limits on steps or bytes;
  //  - CompileTimeout;
  //  - CompileStopped, soon after `stopped` is set.
  std::shared_ptr<const CompiledGrammar> compile(const std::string& grammar, const CompileLimits& limits,
                                                 const std::atomic<bool>& stopped);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace smartkv
