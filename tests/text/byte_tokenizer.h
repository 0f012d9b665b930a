// A tokenizer for tests that need no vocabulary: one token for each byte.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"

namespace smartkv {

class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions&) const override {
    std::vector<TokenId> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::string decode(std::span<const TokenId> tokens, bool) const override {
    std::string text;
    for (const TokenId token : tokens) text += token_bytes(token);
    return text;
  }
  std::string token_bytes(TokenId token) const override {
    return token < 256 ? std::string(1, static_cast<char>(token)) : "";
  }
  int64_t vocab_size() const override { return 259; }
  std::optional<TokenId> token_id(std::string_view) const override { return std::nullopt; }
  std::string token_content(TokenId token) const override { return token_bytes(token); }
  bool is_special(TokenId) const override { return false; }
  std::optional<TokenId> bos() const override { return std::nullopt; }
  std::optional<TokenId> eos() const override { return std::nullopt; }
};

}  // namespace smartkv
