#include "server/commands/draft_printer.h"

#include <string_view>

namespace smartkv {
namespace {

constexpr std::string_view kAccepted = "\033[32m", kRejected = "\033[31;9m", kPlain = "\033[0m";

std::string coloured(std::string_view colour, const std::string& text) {
  return text.empty() ? text : std::string(colour) + text + std::string(kPlain);
}

}  // namespace

std::string DraftPrinter::format(const GenerationEvent& event) {
  std::string result;
  size_t next = 0;
  const auto take = [&](size_t end, std::string_view colour) {
    std::string text;
    for (; next < end && next < event.tokens.size(); ++next) text += decoder_.push(event.tokens[next]);
    result += colour.empty() ? text : coloured(colour, text);
  };
  for (const DraftRound& round : event.drafts) {
    take(static_cast<size_t>(round.first), "");
    take(static_cast<size_t>(round.first + round.accepted), kAccepted);
    const std::span<const TokenId> draft(round.tokens);
    result += coloured(kRejected, tokenizer_.decode(draft.subspan(static_cast<size_t>(round.accepted)), true));
  }
  take(event.tokens.size(), "");
  if (event.finish != FinishReason::kNone) result += decoder_.flush();
  return result;
}

std::string describe_drafts(const SpeculationUsage& usage) {
  if (usage.drafted == 0) return "no drafts";
  return "drafted " + std::to_string(usage.drafted) + " tokens in " + std::to_string(usage.passes) +
         " passes, accepted " + std::to_string(usage.accepted) + " (" +
         std::to_string((100 * usage.accepted + usage.drafted / 2) / usage.drafted) + "%)";
}

}  // namespace smartkv
