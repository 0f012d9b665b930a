// The character map of a SentencePiece model. The Precompiled normalizer of tokenizer.json contains one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace smartkv {

class PrecompiledMap {
 public:
  // `blob`: the bytes of precompiled_charsmap, a double-array trie and the texts that it points to. An empty blob is a
  // map without entries. Throws TokenizerError if the blob is malformed.
  explicit PrecompiledMap(std::string_view blob);

  // Returns the text with each mapped grapheme cluster or character replaced. REQUIRES: `text` is valid UTF-8.
  std::string apply(std::string_view text) const;

 private:
  // Returns the replacement of the shortest mapped prefix of `text`, or nullopt if no prefix is mapped.
  std::optional<std::string_view> find(std::string_view text) const;

  std::vector<uint32_t> units_;  // The trie.
  std::string texts_;            // Replacements, each followed by a zero byte.
};

// Decodes base64. Returns nullopt if `text` is malformed.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace smartkv
