// Constrained sampling: which tokens may come next so that an output obeys a grammar. Grammars are EBNF (as llama.cpp's
// GBNF: `root ::= "yes" | "no"`, with [a-z], ( ), |, ?, *, + and {m,n}), compiled and run by XGrammar (Dong et al. 2024),
// which only grammar_constraint.cpp includes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"

namespace smartkv {

// Where an output stands in its grammar. One thread at a time.
class Constraint {
 public:
  virtual ~Constraint() = default;
  // The tokens that may come next: bit i % 32 of word i / 32 is token i, and those from the vocabulary's end on are 0.
  // End-of-sequence tokens may come where the grammar is complete. Not once ended(). Valid until the next call.
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

// Compiles grammars for one vocabulary and keeps those used last. Any thread; the same grammar is compiled once, however
// many ask for it.
class GrammarCompiler {
 public:
  // What it keeps, beside what requests hold, and the longest text of a grammar, in bytes.
  static constexpr int64_t kKeptBytes = int64_t{128} << 20;
  static constexpr size_t kMostText = size_t{1} << 20;

  // The tokens [0, vocabulary) of a tokenizer that outlives this. `ends`: the end-of-sequence tokens, at least one.
  GrammarCompiler(const Tokenizer& tokenizer, int64_t vocabulary, std::vector<TokenId> ends);
  ~GrammarCompiler();

  // Throws GrammarError (ebnf.h) with an empty path for what is no grammar, or one that no text obeys.
  std::shared_ptr<const CompiledGrammar> compile(const std::string& grammar);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace smartkv
