// Vocabularies that a draft may have.
#include "engine/speculation/draft_vocabulary.h"

#include <gmock/gmock.h>

#include "engine/weights/weights.h"
#include "tests/engine/fake_model.h"

namespace smartkv {
namespace {

using ::testing::HasSubstr;

class ListedTokenizer final : public Tokenizer {
 public:
  explicit ListedTokenizer(std::vector<std::string> contents) : contents_(std::move(contents)) {}
  std::vector<TokenId> encode(std::string_view, const EncodeOptions&) const override { return {}; }
  std::string decode(std::span<const TokenId>, bool) const override { return {}; }
  std::string token_bytes(TokenId token) const override { return token_content(token); }
  int64_t vocab_size() const override { return static_cast<int64_t>(contents_.size()); }
  std::optional<TokenId> token_id(std::string_view) const override { return std::nullopt; }
  std::string token_content(TokenId token) const override { return contents_.at(static_cast<size_t>(token)); }
  bool is_special(TokenId) const override { return false; }
  std::optional<TokenId> bos() const override { return std::nullopt; }
  std::optional<TokenId> eos() const override { return std::nullopt; }

 private:
  std::vector<std::string> contents_;
};

// Returns the error, or an empty string if the vocabulary is accepted.
std::string vocabulary_error(std::vector<std::string> target, int64_t target_outputs, std::vector<std::string> draft,
                             int64_t draft_outputs) {
  const ListedTokenizer expected(std::move(target)), found(std::move(draft));
  try {
    check_draft_vocabulary({&expected, target_outputs}, {&found, draft_outputs});
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

TEST(DraftVocabulary, MayDifferInPadding) {
  EXPECT_EQ(vocabulary_error({"a", "b", "[PAD2]", "[PAD3]"}, 4, {"a", "b", "[PAD2]"}, 3), "");  // two GGUF files
  EXPECT_EQ(vocabulary_error({"a", "b", "[PAD2]"}, 3, {"a", "b", "[PAD2]", "[PAD3]"}, 4), "");
  EXPECT_EQ(vocabulary_error({"a", "b", "[PAD0]"}, 3, {"a", "b"}, 2), "");  // a folder drafts for a GGUF file
  EXPECT_EQ(vocabulary_error({"a", "b"}, 4, {"a", "b", "[PAD2]"}, 3), "");
  EXPECT_EQ(vocabulary_error({"a", "b", "", "c"}, 4, {"a", "b", "[PAD2]", "c"}, 4), "");
  EXPECT_EQ(vocabulary_error({"a", "b"}, 4, {"a", "b"}, 2), "");  // only the embedding is padded
}

TEST(DraftVocabulary, AnyOtherDifferenceIsNamed) {
  EXPECT_THAT(vocabulary_error({"a", "b"}, 2, {"a", "c"}, 2), HasSubstr("found \"c\" as token 1 instead of \"b\""));
  EXPECT_THAT(vocabulary_error({"a", "b"}, 2, {"a"}, 2), HasSubstr("found padding as token 1 instead of \"b\""));
  EXPECT_THAT(vocabulary_error({"a"}, 2, {"a", "b"}, 2), HasSubstr("found \"b\" as token 1 instead of padding"));
  EXPECT_THAT(vocabulary_error({"a", "[PAD]"}, 2, {"a"}, 2), HasSubstr("instead of \"[PAD]\""));  // a token of its own
  EXPECT_THAT(vocabulary_error({"a", "[PAD1"}, 2, {"a"}, 2), HasSubstr("instead of \"[PAD1\""));
  EXPECT_THAT(vocabulary_error({"a", "b", "[PAD2]"}, 3, {"a", "b"}, 1), HasSubstr("outputs for 1 tokens instead of 2"));
}

}  // namespace
}  // namespace smartkv
