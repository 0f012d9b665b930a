// GPT-2's printable stand-ins for bytes. Byte-level vocabularies are written in them.
#pragma once

#include <string>
#include <string_view>

namespace smartkv {

// Returns the byte of a stand-in, or -1 if `character` is not a stand-in.
int byte_of_stand_in(char32_t character);
// Returns `text` with each byte replaced by its stand-in: "Ġthe" for " the".
std::string to_stand_ins(std::string_view text);
// Returns the bytes of the stand-ins in `text`, or `text` itself if one of its characters is not a stand-in. REQUIRES:
// `text` is valid UTF-8.
std::string from_stand_ins(std::string_view text);

}  // namespace smartkv
