#include "server/commands/draft_printer.h"

namespace smartkv {

std::string DraftPrinter::format(const GenerationEvent& event) {
  using enum openai::DraftPiece::Origin;
  std::string result;
  for (const auto& [origin, text] : drafts_.take(event)) {
    const std::string clean = terminal_.clean(text);
    result += origin == kModel ? clean : (origin == kAccepted ? "\033[32m" : "\033[31;9m") + clean + "\033[0m";
  }
  return result;
}

std::string describe_drafts(const SpeculationUsage& usage) {
  if (usage.drafted == 0) return "no drafts";
  return "drafted " + std::to_string(usage.drafted) + " tokens in " + std::to_string(usage.passes) +
         " passes, accepted " + std::to_string(usage.accepted) + " (" +
         std::to_string((100 * usage.accepted + usage.drafted / 2) / usage.drafted) + "%)";
}

}  // namespace smartkv
