// How a tokenizer cuts text into pieces before byte-pair encoding: the pre-tokenizers of the Hugging Face tokenizers library.
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
  bool first = false;  // It begins where the text begins that encode() was given.
};

// The pieces of a text, in order. Owns the text of pieces that a step changed.
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
  std::function<void(const TextPiece&, TextPieces*)> apply;  // adds what becomes of a piece
  bool removes = false;    // It may drop text.
  bool stand_ins = false;  // It writes each byte as one character (byte_level.h).
};

// What becomes of a pattern's matches.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Reads "pre_tokenizer" of tokenizer.json; null gives no steps. Throws TokenizerError naming the key at fault.
std::vector<PreTokenizerStep> read_pre_tokenizer(const JsonNode& node);

// `invert`: what lies between the matches counts as the matches.
PreTokenizerStep split_step(Pattern pattern, SplitBehavior behavior = SplitBehavior::kIsolated, bool invert = false);
PreTokenizerStep byte_level_step();  // without a cut
Pattern gpt2_pattern();              // GPT-2's words

}  // namespace smartkv
