// Constrained sampling: tells which tokens may come next so that an output matches a grammar.
//
// Grammars are written in EBNF, as in llama.cpp's GBNF: `root ::= "yes" | "no"`, with [a-z], ( ), |, ?, *, + and {m,n}.
// XGrammar (Dong et al. 2024) compiles and runs them. Only grammar_constraint.cpp includes XGrammar.
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

// The position of one output in its grammar. Used by one thread at a time.
//
// allowed() and accept() throw SamplingError (row_scan.h) once the grammar has taken far more work than its tokens
// justify, as very ambiguous grammars do. From then on they always throw.
class Constraint {
 public:
  virtual ~Constraint() = default;
  // Returns a mask of the tokens that may come next: bit i % 32 of word i / 32 is token i. Bits beyond the vocabulary
  // are ignored. End-of-sequence tokens are allowed where the output is complete. The span is valid until the next call
  // of allowed(). It is empty if every token may come next; accept() then takes any token. REQUIRES: !ended().
  virtual std::span<const uint32_t> allowed() = 0;
  // Advances by one token. Returns false and changes nothing if the token may not come next.
  virtual bool accept(TokenId token) = 0;
  // Rolls back the last n accepted tokens.
  virtual void rollback(int64_t n) = 0;
  // Returns whether an end-of-sequence token was accepted.
  virtual bool ended() const = 0;
  // Whether the next token belongs to the thinking of the answer, and the number of tokens that did (thinking.h).
  virtual bool thinking() const { return false; }
  virtual int64_t reasoning_tokens() const { return 0; }
};

// A compiled grammar. Immutable, and usable from any thread.
class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;
  // Returns a constraint at the beginning of an output.
  virtual std::unique_ptr<Constraint> start() const = 0;
  virtual int64_t bytes() const = 0;
};

// The compilation of a grammar was given up, although nothing is wrong with the grammar.
class CompileAborted : public std::runtime_error {
 public:
  enum class Why : uint8_t {
    kGone,     // the caller no longer waits for it
    kStopped,  // GrammarCompiler::stop() was called
    kBusy      // other grammars take too much time or memory
  };
  CompileAborted(Why reason, const std::string& message) : std::runtime_error(message), why(reason) {}
  Why why;
};

// Compiles grammars for one vocabulary and keeps the most recently used ones. May be called from any thread. Callers
// that ask for the same grammar share one compilation.
//
// Compilation is bounded, and so is the delay that one grammar causes another. Each tier has one thread, which spends
// at most the tier's CPU time on a grammar. A grammar that needs more starts over in the next tier. A small grammar
// therefore waits only for small ones.
class GrammarCompiler {
 public:
  static constexpr int64_t kKeptBytes = int64_t{128} << 20;  // most bytes of kept grammars; requests may hold more
  static constexpr size_t kMostText = size_t{1} << 20;       // most bytes of a grammar's text
  static constexpr int64_t kMostBytes = int64_t{256} << 20;  // most bytes that one compilation may take
  static constexpr int64_t kMostSteps = 2'000'000'000;       // most steps of one compilation
  static constexpr double kWaitSeconds = 60;                 // longest time that compile() waits by default

  // Uses the tokens [0, vocabulary) of `tokenizer`, which outlives this. `ends` are the end-of-sequence tokens, at
  // least one. `tier_seconds` is the CPU time of each tier, ascending. `wait_seconds` is the longest time that
  // compile() waits.
  GrammarCompiler(const Tokenizer& tokenizer, int64_t vocabulary, std::vector<TokenId> ends,
                  const std::vector<double>& tier_seconds = {0.05, 0.5, 10}, double wait_seconds = kWaitSeconds);
  ~GrammarCompiler();

  // Waits for the compiled grammar. Calls `gone` about every 20 ms; if it returns true, the wait ends, and so does the
  // compilation unless another caller waits for it. Throws
  //  - GrammarError (ebnf.h) with an empty path, if the text is not a grammar, if no text matches the grammar, or if it
  //    exceeds the limits above;
  //  - CompileAborted.
  std::shared_ptr<const CompiledGrammar> compile(const std::string& grammar,
                                                 const std::function<bool()>& gone = nullptr);

  // Ends every compilation without waiting. From now on compile() throws CompileAborted.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace smartkv
