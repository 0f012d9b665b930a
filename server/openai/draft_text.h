// Who wrote what of an answer: the model itself, or speculative decoding.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"

namespace smartkv::openai {

struct DraftPiece {
  enum class Origin : uint8_t {
    kModel,     // sampled, with nothing drafted for it
    kAccepted,  // drafted, and what was sampled
    kRejected,  // drafted, and no part of the answer: what was sampled instead follows
  };
  Origin origin = Origin::kModel;
  std::string text;  // never empty
};

std::string_view origin_name(DraftPiece::Origin origin);  // "model", "accepted", "rejected"

// Of one choice.
class DraftText {
 public:
  explicit DraftText(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), decoder_(tokenizer, skip_special) {}

  // The event's tokens as text, in order. Unlike the event's own text it also has what a stop string cut off or holds back.
  std::vector<DraftPiece> take(const GenerationEvent& event);

 private:
  const Tokenizer* tokenizer_;
  StreamDecoder decoder_;
};

}  // namespace smartkv::openai
