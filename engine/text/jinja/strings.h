// Python's string methods for UTF-8. Positions and lengths count characters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/text/jinja/builtins.h"

namespace smartkv::jinja {

// Removes the characters in `set` from the start, the end, or both. Removes white space if `set` is null.
std::string strip(const std::string& text, const std::string* set, bool start, bool end);
// The next three functions split at most `most` times; -1 for no limit. split_spaces() splits at runs of white space.
std::vector<std::string> split_spaces(const std::string& text, int64_t most);
std::vector<std::string> split_at(const std::string& text, const std::string& separator, int64_t most);
std::vector<std::string> split_at_from_end(const std::string& text, const std::string& separator, int64_t most);
std::vector<std::string> split_lines(const std::string& text);
// Replaces at most `most` occurrences of `from` by `to`; -1 for all. Throws RuntimeError if the result exceeds the
// limit.
std::string replace(const std::string& text, const std::string& from, const std::string& to, int64_t most,
                    const Environment& environment);
std::string escape_html(const std::string& text);  // & < > ' ", as markupsafe writes them
// Unicode's simple case mappings, plus the full one of the sharp s. Throw RuntimeError if the machine has no C.UTF-8
// locale.
std::string upper(const std::string& text);
std::string lower(const std::string& text);
std::string title(const std::string& text);        // str.title(), which capitalizes each run of letters.
std::string title_words(const std::string& text);  // The filter "title", which capitalizes each word.
std::string capitalize(const std::string& text);
int64_t length(const std::string& text);
// Return the position of the first or last occurrence of `part`, or -1 if there is none.
int64_t find_character(const std::string& text, const std::string& part);
int64_t find_last_character(const std::string& text, const std::string& part);
int64_t count(const std::string& text, const std::string& part);
// Returns the characters at from, from + step, ... up to but excluding `to`. REQUIRES: all of them exist.
std::string substring(const std::string& text, int64_t from, int64_t to, int64_t step);

}  // namespace smartkv::jinja
