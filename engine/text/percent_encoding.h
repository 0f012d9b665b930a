// Percent-encoding of URIs (RFC 3986, section 2.1).
#pragma once

#include <string>
#include <string_view>

namespace smartkv {

int hex_digit(char c);  // returns the value of a hexadecimal digit in either case; -1 for any other character

// Replaces each "%XX" by its byte. A "%" before anything else stays.
std::string percent_decoded(std::string_view text);

}  // namespace smartkv
