// The pre-tokenizers of the Hugging Face tokenizers library. A pre-tokenizer splits text into pieces before byte-pair
// encoding.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/json_node.h"
#include "engine/text/pattern.h"

namespace smartkv {

struct TextPiece {
  std::string_view text;
  bool first = false;  // The piece is at the beginning of the text that was passed to encode().
};

// The pieces of a text, in order. Owns the texts that keep() was given, for pieces whose text a step has changed.
class TextPieces {
 public:
  void add(TextPiece piece) {
    if (!piece.text.empty()) pieces_.push_back(piece);
  }
  std::string_view keep(std::string text) { return texts_.emplace_back(std::move(text)); }
  std::vector<TextPiece>& pieces() { return pieces_; }

 private:
  std::vector<TextPiece> pieces_;
  std::deque<std::string> texts_;
};

struct PreTokenizerStep {
  std::function<void(const TextPiece&, TextPieces*)> apply;  // Adds the pieces that a piece becomes. Thread-safe.
  bool removes = false;                                      // The step may drop text.
  bool stand_ins = false;  // The step writes each byte as one character (byte_level.h).
};

// How a split treats the matches of its pattern.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Reads "pre_tokenizer" of tokenizer.json. Returns no steps for null. Throws TokenizerError naming the key at fault.
std::vector<PreTokenizerStep> read_pre_tokenizer(const JsonNode& node);

// Splits text at the matches of `pattern`. If `invert` is true, the text between the matches takes the role of the
// matches.
PreTokenizerStep split_step(Pattern pattern, SplitBehavior behavior = SplitBehavior::kIsolated, bool invert = false);
PreTokenizerStep byte_level_step();  // Writes bytes as stand-ins, without splitting.
Pattern gpt2_pattern();              // Matches the words of GPT-2's tokenizer.

}  // namespace smartkv
