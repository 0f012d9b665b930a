// Prints the text of an answer with its drafts on a terminal with colours. Accepted tokens are green. Rejected tokens
// are red and struck through, and stand before the tokens that replaced them. The model's own tokens have no colour.
#pragma once

#include <string>

#include "server/commands/terminal_text.h"
#include "server/openai/draft_text.h"

namespace smartkv {

class DraftPrinter {
 public:
  explicit DraftPrinter(const Tokenizer& tokenizer) : drafts_(tokenizer) {}

  // Returns the event's text with colours, without characters that a terminal takes for commands (TerminalText). Unlike
  // the answer's own text it includes text that a stop string cut off. REQUIRES: it is called with every event of one
  // choice.
  std::string format(const GenerationEvent& event);

 private:
  openai::DraftText drafts_;
  TerminalText terminal_;
};

// Returns "drafted 120 tokens in 40 passes, accepted 90 (75%)", or "no drafts" if there were none.
std::string describe_drafts(const SpeculationUsage& usage);

}  // namespace smartkv
