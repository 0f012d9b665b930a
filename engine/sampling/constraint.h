// Constrained sampling: which tokens may come next so that an output obeys a grammar. Grammars are EBNF (as llama.cpp's
// GBNF: `root ::= "yes" | "no"`, with [a-z], ( ), |, ?, *, + and {m,n}), compiled and run by XGrammar (Dong et al. 2024),
// which only grammar_constraint.cpp includes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"

namespace smartkv {

// Where an output stands in its grammar. One thread at a time. allowed() and accept() throw SamplingError (sampler.h) once the
// grammar has taken far more work than its tokens are worth, as very ambiguous grammars do. From then on they always throw.
class Constraint {
 public:
  virtual ~Constraint() = default;
  // The tokens that may come next: bit i % 32 of word i / 32 is token i, and those from the vocabulary's end on are 0.
  // End-of-sequence tokens may come where the grammar is complete. Not once ended(). Valid until the next call of
  // allowed().
  virtual std::span<const uint32_t> allowed() = 0;
  // Goes on by a token; false, and nothing changes, if it may not come next.
  virtual bool accept(TokenId token) = 0;
  // Takes back the last n tokens.
  virtual void rollback(int64_t n) = 0;
  // An end-of-sequence token was accepted.
  virtual bool ended() const = 0;
};

// A compiled grammar. Immutable; any thread.
class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;
  virtual std::unique_ptr<Constraint> start() const = 0;
  virtual int64_t bytes() const = 0;
};

// Why a grammar was not compiled although nothing is wrong with it.
class CompileAborted : public std::runtime_error {
 public:
  enum class Why : uint8_t { kGone, kStopped, kBusy };  // nobody waits for it; stop() was called; others take too long
  CompileAborted(Why reason, const std::string& message) : std::runtime_error(message), why(reason) {}
  Why why;
};

// Compiles grammars for one vocabulary and keeps the ones used last. Any thread may call it; the same grammar is compiled
// once, however many callers ask for it.
//
// Compilation is bounded, and so is the delay that one grammar causes another. There is one thread for each tier, which
// gives every grammar the tier's share of CPU time; a grammar that needs more starts again in the next tier. So a small
// grammar waits for small ones only.
class GrammarCompiler {
 public:
  static constexpr int64_t kKeptBytes = int64_t{128} << 20;       // of compiled grammars, beside those that requests hold
  static constexpr size_t kMostText = size_t{1} << 20;            // bytes of a grammar's text
  static constexpr int64_t kMostBytes = int64_t{256} << 20;       // that one compilation may take
  static constexpr int64_t kMostSteps = 2'000'000'000;            // of one compilation
  static constexpr double kWaitSeconds = 60;                      // that compile() waits

  // The tokens [0, vocabulary) of a tokenizer that outlives this. `ends`: the end-of-sequence tokens, at least one.
  // `tier_seconds`: of CPU time, ascending. `wait_seconds`: that compile() waits.
  GrammarCompiler(const Tokenizer& tokenizer, int64_t vocabulary, std::vector<TokenId> ends,
                  std::vector<double> tier_seconds = {0.05, 0.5, 10}, double wait_seconds = kWaitSeconds);
  ~GrammarCompiler();

  // Waits for the compiled grammar. `gone` is asked about every 20 ms: true ends the wait, and the compilation if nobody
  // else waits for it. Throws
  //  - GrammarError (ebnf.h) with an empty path for a text that is no grammar, a grammar that no text obeys, and one that
  //    takes more than the limits above;
  //  - CompileAborted.
  std::shared_ptr<const CompiledGrammar> compile(const std::string& grammar, const std::function<bool()>& gone = nullptr);

  // Ends every compilation; compile() throws from now on. Does not wait.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace smartkv
