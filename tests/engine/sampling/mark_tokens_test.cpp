// Special tokens in grammars: those of tool calls can be named, and none matches text.
#include <gtest/gtest.h>

#include "engine/sampling/constraint.h"
#include "tests/text/byte_tokenizer.h"

namespace smartkv {
namespace {

constexpr TokenId kMarksEnd = 256, kToolCalls = 257, kOtherSpecial = 258;

// The bytes, and three special tokens.
class MarkedTokenizer final : public Tokenizer {
 public:
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override {
    return bytes_.encode(text, options);
  }
  std::string decode(std::span<const TokenId> tokens, bool skip) const override { return bytes_.decode(tokens, skip); }
  std::string token_bytes(TokenId token) const override { return token_content(token); }
  int64_t vocab_size() const override { return 259; }
  std::optional<TokenId> token_id(std::string_view content) const override {
    if (content == "[TOOL_CALLS]") return kToolCalls;
    return std::nullopt;
  }
  std::string token_content(TokenId token) const override {
    if (token == kMarksEnd) return "</s>";
    if (token == kToolCalls) return "[TOOL_CALLS]";
    return token == kOtherSpecial ? "<other>" : bytes_.token_bytes(token);
  }
  bool is_special(TokenId token) const override { return token >= kMarksEnd; }
  std::optional<TokenId> bos() const override { return std::nullopt; }
  std::optional<TokenId> eos() const override { return kMarksEnd; }

 private:
  ByteTokenizer bytes_;
};

class MarkTokens : public ::testing::Test {
 protected:
  bool takes(const std::string& grammar, const std::vector<TokenId>& tokens) {
    const auto constraint = compiler_.compile(grammar)->start();
    for (const TokenId token : tokens) {
      const auto mask = constraint->allowed();
      const bool masked = (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
      const bool accepted = constraint->accept(token);
      EXPECT_EQ(masked, accepted) << token;
      if (!accepted) return false;
    }
    return constraint->accept(kMarksEnd);
  }

  MarkedTokenizer tokenizer_;
  GrammarCompiler compiler_{tokenizer_, tokenizer_.vocab_size(), {kMarksEnd}};
};

TEST_F(MarkTokens, AreNamedByTheirId) {
  EXPECT_TRUE(takes("root ::= Token(257) \"a\"", {kToolCalls, 'a'}));
  EXPECT_FALSE(takes("root ::= Token(257) \"a\"", {'a'}));
  EXPECT_FALSE(takes("root ::= Token(257) \"a\"", {kToolCalls, kToolCalls}));
}

TEST_F(MarkTokens, MatchNoText) {
  for (const TokenId token : {kToolCalls, kOtherSpecial}) {
    EXPECT_FALSE(takes("root ::= [^b]*", {'a', token}));
    EXPECT_FALSE(takes("root ::= \"[TOOL_CALLS]\"", {token}));
  }
}

TEST_F(MarkTokens, BeginCallsWithinText) {
  const std::string grammar = "call ::= \"f\"\nroot ::= TokenTagDispatch((257, call), loop_after_dispatch=true)";
  EXPECT_TRUE(takes(grammar, {'a', '[', kToolCalls, 'f', kToolCalls, 'f'}));
  EXPECT_TRUE(takes(grammar, {'a'}));
  EXPECT_FALSE(takes(grammar, {'a', kToolCalls, 'a'}));
}

}  // namespace
}  // namespace smartkv
