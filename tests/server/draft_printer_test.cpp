#include <gtest/gtest.h>

#include "server/commands/draft_printer.h"
#include "tests/server/fake_engine.h"

namespace smartkv {
namespace {

std::vector<TokenId> bytes(std::string_view text) {
  std::vector<TokenId> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

TEST(DraftPrinter, ColoursAcceptedAndRejectedTokens) {
  const test::ByteTokenizer tokenizer;
  DraftPrinter printer(tokenizer);
  GenerationEvent event;
  event.tokens = bytes("The cat sat.");
  event.drafts = {{3, 2, bytes(" cow")}, {6, 5, bytes("t sat")}};
  EXPECT_EQ(printer.format(event), "The\033[32m c\033[0m\033[31;9mow\033[0ma\033[32mt sat\033[0m.");
}

TEST(DraftPrinter, KeepsCharactersWholeAcrossEvents) {
  const test::ByteTokenizer tokenizer;
  DraftPrinter printer(tokenizer);
  GenerationEvent event;
  event.tokens = bytes("a\xC3");
  EXPECT_EQ(printer.format(event), "a");
  event.tokens = bytes("\xA9\xC3");
  event.drafts = {{0, 1, bytes("\xA9")}};
  event.finish = FinishReason::kLength;
  EXPECT_EQ(printer.format(event), "\033[32m\xC3\xA9\033[0m\xEF\xBF\xBD");
}

TEST(DraftPrinter, SummarisesTheDrafts) {
  EXPECT_EQ(describe_drafts({}), "no drafts");
  SpeculationUsage usage;
  usage.drafted = 120;
  usage.accepted = 90;
  usage.passes = 40;
  EXPECT_EQ(describe_drafts(usage), "drafted 120 tokens in 40 passes, accepted 90 (75%)");
}

}  // namespace
}  // namespace smartkv
