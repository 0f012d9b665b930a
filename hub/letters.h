// Letters and digits of ASCII text.
#pragma once

#include <string>
#include <string_view>

namespace smartkv {

inline std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

inline std::string upper(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return result;
}

// Whether `text` consists of `size` hexadecimal digits in small letters, as hashes do.
inline bool is_hash(std::string_view text, size_t size) {
  return text.size() == size && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

constexpr size_t kSha1 = 40, kSha256 = 64;  // digits

}  // namespace smartkv
