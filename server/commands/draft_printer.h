// The text of an answer with its drafts, for a terminal with colours: accepted tokens green, rejected ones red and struck through
// before what replaced them, the model's own plain.
#pragma once

#include <string>

#include "server/commands/terminal_text.h"
#include "server/openai/draft_text.h"

namespace smartkv {

class DraftPrinter {
 public:
  explicit DraftPrinter(const Tokenizer& tokenizer) : drafts_(tokenizer) {}

  // Returns the event's text with colours, without what a terminal takes for commands (TerminalText). Unlike the answer's own text it also shows what a stop string cut off.
  std::string format(const GenerationEvent& event);

 private:
  openai::DraftText drafts_;
  TerminalText terminal_;
};

// "drafted 120 tokens in 40 passes, accepted 90 (75%)"; "no drafts" without any.
std::string describe_drafts(const SpeculationUsage& usage);

}  // namespace smartkv
