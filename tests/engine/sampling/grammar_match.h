// Matches texts against a grammar, byte by byte.
#pragma once

#include <string>

#include "engine/sampling/constraint.h"
#include "tests/text/byte_tokenizer.h"

namespace smartkv {

// Returns whether `grammar` accepts `text` as a whole.
inline bool obeys(const std::string& grammar, const std::string& text) {
  static const ByteTokenizer tokenizer;
  static GrammarCompiler compiler(tokenizer, tokenizer.vocab_size(), {258});
  const std::unique_ptr<Constraint> constraint = compiler.compile(grammar)->start();
  for (const char c : text) {
    if (!constraint->accept(static_cast<unsigned char>(c))) return false;
  }
  return constraint->accept(258);
}

}  // namespace smartkv
