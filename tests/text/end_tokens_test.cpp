// The tokens that end an answer.
#include "engine/text/end_tokens.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/tokenizer_fixtures.h"

namespace smartkv {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::set<TokenId> ends_of(const std::map<std::string, TokenId, std::less<>>& vocabulary,
                          std::optional<TokenId> eos = {}, const NamedEnds& named = {}) {
  const auto find = [&](std::string_view content) -> std::optional<TokenId> {
    const auto found = vocabulary.find(content);
    return found == vocabulary.end() ? std::nullopt : std::optional(found->second);
  };
  return find_end_tokens(find, eos, named);
}

TEST(EndTokens, AreKnownByName) {
  EXPECT_THAT(
      ends_of(
          {{"a", 0}, {"<|end|>", 1}, {"<|eom_id|>", 2}, {"<end_of_turn>", 3}, {"<|im_end|>", 4}, {"<|im_start|>", 5}}),
      ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(ends_of({{"<｜end▁of▁sentence｜>", 7}, {"[EOS]", 8}, {"<|end_of_text|>", 9}}), ElementsAre(7, 8, 9));
  EXPECT_THAT(ends_of({{"a", 0}}), IsEmpty());
}

TEST(EndTokens, AreNamedByTheFile) {
  NamedEnds named;
  named.turn = 11;
  named.message = 12;
  named.fill_pad = 13;
  EXPECT_THAT(ends_of({{"<|fim_pad|>", 3}, {"<|file_sep|>", 4}, {"<|repo_name|>", 5}}, 10, named),
              ElementsAre(4, 5, 10, 11, 12, 13));
}

TEST(EndTokens, AMessageEndsNoAnswerWhereOthersEndIt) {
  EXPECT_THAT(ends_of({{"<|end|>", 1}, {"<|return|>", 2}, {"<|call|>", 3}}), ElementsAre(2, 3));
  EXPECT_THAT(ends_of({{"<|end|>", 1}, {"<|flush|>", 2}, {"<|calls|>", 3}}), ElementsAre(2, 3));
  EXPECT_THAT(ends_of({{"<|end|>", 1}, {"<|call|>", 3}}), ElementsAre(1, 3));
}

TEST(EndTokens, ASentenceMarkIsTextWhereOthersEndTheAnswer) {
  EXPECT_THAT(ends_of({{"</s>", 1}, {"<|tool_response>", 2}}), ElementsAre(2));
  EXPECT_THAT(ends_of({{"</s>", 1}, {"<|plamo:eos|>", 2}}, 2), ElementsAre(2));
  EXPECT_THAT(ends_of({{"</s>", 1}}), ElementsAre(1));
}

TEST(EndTokens, UniteWithTheConfigurationsWithinTheVocabulary) {
  nlohmann::json json = nlohmann::json::parse(read_file(kTokenizerFixtures + "llama3.json"));
  const auto tokenizer = tokenizer_of_json(json.dump(), {"", "<|eot_id|>", ""});
  const TokenId eot = *tokenizer->token_id("<|eot_id|>"), text = *tokenizer->token_id("<|end_of_text|>");
  ModelConfig config;
  config.eos_token_ids = {5, 1'000'000, -1};
  EXPECT_THAT(end_tokens(*tokenizer, config, tokenizer->vocab_size()), testing::UnorderedElementsAre(5, eot, text));
  EXPECT_THAT(end_tokens(*tokenizer, config, 6), ElementsAre(5));
}

// Users must not see "<|im_end|>", even if the file does not call this token special.
TEST(EndTokens, AreSpecialWhateverTheFileSays) {
  nlohmann::json json = nlohmann::json::parse(read_file(kTokenizerFixtures + "llama3.json"));
  const TokenId id = static_cast<TokenId>(json["model"]["vocab"].size() + json["added_tokens"].size());
  json["added_tokens"].push_back({{"id", id}, {"content", "<|im_end|>"}, {"special", false}, {"normalized", false}});
  const auto tokenizer = tokenizer_of_json(json.dump());
  EXPECT_TRUE(tokenizer->is_special(id));
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{id}, true), "");
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{id}, false), "<|im_end|>");
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.push(id), "");
}

}  // namespace
}  // namespace smartkv
