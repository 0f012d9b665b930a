#include "server/openai/draft_text.h"

#include <array>
#include <span>
#include <utility>

namespace smartkv::openai {

std::string_view origin_name(DraftPiece::Origin origin) {
  static constexpr std::array<std::string_view, 3> kNames = {"model", "accepted", "rejected"};
  return kNames.at(static_cast<size_t>(origin));
}

std::vector<DraftPiece> DraftText::take(const GenerationEvent& event) {
  using enum DraftPiece::Origin;
  std::vector<DraftPiece> pieces;
  const auto add = [&](DraftPiece::Origin origin, std::string text) {
    if (text.empty()) return;
    if (!pieces.empty() && pieces.back().origin == origin) {
      pieces.back().text += text;
    } else {
      pieces.push_back({origin, std::move(text)});
    }
  };
  size_t next = 0;
  const auto take_until = [&](size_t end, DraftPiece::Origin origin) {
    for (; next < end && next < event.tokens.size(); ++next) add(origin, decoder_.push(event.tokens[next]));
  };
  for (const DraftRound& round : event.drafts) {
    take_until(static_cast<size_t>(round.first), kModel);
    take_until(static_cast<size_t>(round.first + round.accepted), kAccepted);
    const std::span<const TokenId> draft(round.tokens);
    add(kRejected, tokenizer_->decode(draft.subspan(static_cast<size_t>(round.accepted)), true));
  }
  take_until(event.tokens.size(), kModel);
  if (event.finish != FinishReason::kNone) add(kModel, decoder_.flush());
  return pieces;
}

}  // namespace smartkv::openai
