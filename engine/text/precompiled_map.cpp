#include "engine/text/precompiled_map.h"

#include <cstring>

#include "engine/text/tokenizer.h"
#include "engine/text/unicode_text.h"
#include "engine/text/utf8.h"

namespace smartkv {
namespace {

constexpr size_t kLongestCluster = 5;  // Bytes. Longer grapheme clusters are not looked up as a whole.

uint32_t read_u32(std::string_view bytes, size_t at) {
  uint32_t value;  // Little endian in the file and on this machine.
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// Fields of a unit of the double array (Darts-clone's layout).
bool has_leaf(uint32_t unit) { return ((unit >> 8) & 1) != 0; }
uint32_t leaf_value(uint32_t unit) { return unit & 0x7fffffffu; }
uint32_t label(uint32_t unit) { return unit & 0x800000ffu; }
uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

}  // namespace

PrecompiledMap::PrecompiledMap(std::string_view blob) {
  if (blob.empty()) return;
  const uint32_t size = blob.size() < 4 ? 0 : read_u32(blob, 0);
  if (size == 0 || size % 4 != 0 || size > blob.size() - 4) {
    throw TokenizerError("expected a trie of a multiple of 4 bytes, followed by texts, found " +
                         std::to_string(blob.size()) + " bytes");
  }
  units_.resize(size / 4);
  std::memcpy(units_.data(), blob.data() + 4, size);
  texts_ = blob.substr(4 + size);
  if (!utf8_is_valid(texts_)) throw TokenizerError("expected UTF-8 texts");
  texts_ += '\0';
}

std::optional<std::string_view> PrecompiledMap::find(std::string_view text) const {
  if (units_.empty()) return std::nullopt;
  size_t at = offset(units_[0]);
  for (const char byte : text) {
    const uint32_t key = static_cast<unsigned char>(byte);
    at ^= key;
    if (key == 0 || at >= units_.size() || label(units_[at]) != key) return std::nullopt;
    const uint32_t unit = units_[at];
    at ^= offset(unit);
    if (!has_leaf(unit)) continue;
    const size_t value = at < units_.size() ? leaf_value(units_[at]) : texts_.size();
    if (value >= texts_.size()) return std::nullopt;
    return std::string_view(texts_.c_str() + value);
  }
  return std::nullopt;
}

std::string PrecompiledMap::apply(std::string_view text) const {
  std::string out;
  while (!text.empty()) {
    const std::string_view cluster = text.substr(0, grapheme_length(text));
    text.remove_prefix(cluster.size());
    if (const auto found = cluster.size() <= kLongestCluster ? find(cluster) : std::nullopt) {
      out += *found;
      continue;
    }
    for (std::string_view rest = cluster; !rest.empty();) {
      const std::string_view character = utf8_next(rest);
      out += find(character).value_or(character);
    }
  }
  return out;
}

std::optional<std::string> decode_base64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t held = 0;
  int bits = 0;
  for (const char digit : text) {
    const size_t value = kDigits.find(digit);
    if (value == std::string_view::npos) return std::nullopt;
    held = held << 6 | static_cast<uint32_t>(value);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(held >> bits & 0xff);
  }
  return bytes;
}

}  // namespace smartkv
