// GPT-2's printable stand-ins of bytes, which byte-level vocabularies are written in.
#pragma once

#include <string>
#include <string_view>

namespace smartkv {

// Returns the byte that a stand-in means; -1 if `character` is none.
int byte_of_stand_in(char32_t character);
// Returns `text` with each byte as its stand-in: "Ġthe" for " the".
std::string to_stand_ins(std::string_view text);
// Returns the bytes that `text` stands for, or `text` itself if one of its characters is no stand-in. REQUIRES: valid UTF-8.
std::string from_stand_ins(std::string_view text);

}  // namespace smartkv
