// Splits the text of an answer by its origin: the model itself, or speculative decoding.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace smartkv::openai {

struct DraftPiece {
  enum class Origin : uint8_t {
    kModel,     // sampled without a matching draft
    kAccepted,  // drafted and accepted
    kRejected,  // drafted and rejected: not part of the answer, which continues with the next piece
  };
  Origin origin = Origin::kModel;
  std::string text;  // never empty
};

std::string_view origin_name(DraftPiece::Origin origin);  // "model", "accepted", "rejected"

// The pieces of one choice.
class DraftText {
 public:
  // The parameters are those of StreamDecoder.
  explicit DraftText(const Tokenizer& tokenizer, bool skip_special = true, std::vector<TokenId> shown = {})
      : tokenizer_(&tokenizer), decoder_(tokenizer, skip_special, std::move(shown)) {}

  // Returns the text of the event's tokens in order, and of rejected drafts. Unlike the event's own text it includes
  // text that a stop string cut off or holds back. REQUIRES: it is called with every event of the choice.
  std::vector<DraftPiece> take(const GenerationEvent& event);

 private:
  const Tokenizer* tokenizer_;
  StreamDecoder decoder_;
};

}  // namespace smartkv::openai
