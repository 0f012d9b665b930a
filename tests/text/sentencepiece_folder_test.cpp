// Compares folders with tokenizer.model and the files beside it with transformers 5's LlamaTokenizer.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/tokenizer_fixtures.h"

namespace smartkv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class SentencePieceFolder : public testing::Test {
 protected:
  SentencePieceFolder() {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
    std::filesystem::copy(kTokenizerFixtures + "sentencepiece.model", path_ / "tokenizer.model");
  }
  ~SentencePieceFolder() override { std::filesystem::remove_all(path_); }

  void write(const std::string& name, const nlohmann::json& json) { std::ofstream(path_ / name) << json; }
  std::unique_ptr<Tokenizer> load() { return load_tokenizer(path_); }
  std::vector<TokenId> encode(const std::string& text) { return load()->encode(text, {.add_special = false}); }
  std::string error() {
    try {
      load();
    } catch (const TokenizerError& error) {
      return error.what();
    }
    return "no error";
  }

  const std::filesystem::path path_ =
      std::filesystem::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
};

nlohmann::json token(const std::string& content, bool special) {
  return {{"content", content},  {"lstrip", false},      {"rstrip", false},
          {"normalized", false}, {"single_word", false}, {"special", special}};
}

TEST_F(SentencePieceFolder, AddedTokensAreTokens) {
  const std::string text = "a</s>b <|im_start|>user\nhi<|im_end|>\n";
  const auto expected = ElementsAre(295, 2, 754, 684, 801, 700, 630, 13, 711, 693, 800, 13);
  write("added_tokens.json", {{"<|im_end|>", 800}, {"<|im_start|>", 801}});
  EXPECT_THAT(encode(text), expected);
  EXPECT_FALSE(load()->is_special(801));
  write("special_tokens_map.json",
        {{"additional_special_tokens", {token("<|im_start|>", true)}}, {"eos_token", "<|im_end|>"}});
  EXPECT_TRUE(load()->is_special(801));
  EXPECT_EQ(load()->eos(), 800);
  std::filesystem::remove(path_ / "added_tokens.json");
  std::filesystem::remove(path_ / "special_tokens_map.json");
  write("tokenizer_config.json",
        {{"added_tokens_decoder", {{"800", token("<|im_end|>", true)}, {"801", token("<|im_start|>", true)}}}});
  EXPECT_THAT(encode(text), expected);
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->vocab_size(), 802);
  EXPECT_EQ(tokenizer->token_id("<|im_start|>"), 801);
  EXPECT_EQ(tokenizer->token_content(800), "<|im_end|>");
  EXPECT_EQ(tokenizer->decode(encode(text)), "ab user\nhi\n");
  EXPECT_THAT(tokenizer->end_tokens(), ElementsAre(2, 800));
}

// Ids between the pieces and an added token may belong to no token.
TEST_F(SentencePieceFolder, IdsMayHaveGaps) {
  write("added_tokens.json", {{"<x>", 805}});
  EXPECT_EQ(load()->vocab_size(), 806);
  EXPECT_EQ(load()->token_content(803), "");
  EXPECT_THAT(encode("<x>"), ElementsAre(805));
}

TEST_F(SentencePieceFolder, OnlyTheFirstTextGetsASpaceUnlessTheFolderIsOfTheOldKind) {
  EXPECT_THAT(encode("the</s>b"), ElementsAre(455, 2, 754));
  write("tokenizer_config.json", {{"legacy", false}});
  EXPECT_THAT(encode("a</s>b"), ElementsAre(295, 2, 754));
  EXPECT_THAT(encode("<s> Hello"), ElementsAre(1, 459));
  EXPECT_THAT(encode("<unk>x"), ElementsAre(0, 685));
  EXPECT_THAT(encode(" the"), ElementsAre(455));
  write("tokenizer_config.json", {{"legacy", true}});
  EXPECT_THAT(encode("a</s>b"), ElementsAre(295, 2, 570));
  EXPECT_THAT(encode("<unk>x"), ElementsAre(0, 580));
}

TEST_F(SentencePieceFolder, NamesWhatIsWrong) {
  write("added_tokens.json", {{"<x>", -1}});
  EXPECT_THAT(error(), HasSubstr("added_tokens.json: <x>: expected a token id below"));
  write("added_tokens.json", nlohmann::json::array());
  EXPECT_THAT(error(), HasSubstr("added_tokens.json: expected an object"));
  std::filesystem::remove(path_ / "added_tokens.json");
  write("tokenizer_config.json", {{"added_tokens_decoder", {{"8x", token("a", true)}}}});
  EXPECT_THAT(error(), HasSubstr("added_tokens_decoder: expected token ids below"));
  write("tokenizer_config.json", {{"added_tokens_decoder", {{"800", {{"content", 3}}}}}});
  EXPECT_THAT(error(), HasSubstr("added_tokens_decoder.800.content: expected a string"));
  write("tokenizer_config.json", {{"legacy", "no"}});
  EXPECT_THAT(error(), HasSubstr("legacy: expected true or false"));
}

}  // namespace
}  // namespace smartkv
