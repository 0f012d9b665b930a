// The character map of a SentencePiece model, which tokenizer.json's Precompiled normalizer carries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace smartkv {

class PrecompiledMap {
 public:
  // `blob`: the bytes of precompiled_charsmap, a double-array trie and the texts that it points to. Empty: a map without entries.
  // Throws TokenizerError if it is broken.
  explicit PrecompiledMap(std::string_view blob);

  // Returns the text with each mapped grapheme cluster or character replaced. REQUIRES: `text` is valid UTF-8.
  std::string apply(std::string_view text) const;

 private:
  // The replacement of the shortest mapped prefix of `text`; nullopt: no prefix is mapped.
  std::optional<std::string_view> find(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string texts_;  // each ends with a zero byte
};

// Returns the bytes that a base64 text stands for; nullopt if it is malformed.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace smartkv
