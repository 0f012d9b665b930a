// The text of an answer with its drafts, for a terminal: accepted tokens green, rejected ones red and struck through
// before what replaced them, the model's own plain.
#pragma once

#include <string>

#include "server/openai/draft_text.h"

namespace smartkv {

class DraftPrinter {
 public:
  explicit DraftPrinter(const Tokenizer& tokenizer) : drafts_(tokenizer) {}

  // The event's text with colours. Unlike the answer's own text it also shows what a stop string cut off.
  std::string format(const GenerationEvent& event);

 private:
  openai::DraftText drafts_;
};

// "drafted 120 tokens in 40 passes, accepted 90 (75%)"; "no drafts" without any.
std::string describe_drafts(const SpeculationUsage& usage);

}  // namespace smartkv
