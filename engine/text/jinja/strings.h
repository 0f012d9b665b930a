// Python's string methods over UTF-8; positions count characters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/text/jinja/builtins.h"

namespace smartkv::jinja {

// Removes characters of `set` (nullptr: white space) at the start and end.
std::string strip(const std::string& text, const std::string* set, bool start, bool end);
std::vector<std::string> split_spaces(const std::string& text, int64_t most);  // most: cuts at the most; -1: any number
std::vector<std::string> split_at(const std::string& text, const std::string& separator, int64_t most);
std::vector<std::string> split_at_from_end(const std::string& text, const std::string& separator, int64_t most);
std::vector<std::string> split_lines(const std::string& text);
std::string replace(const std::string& text, const std::string& from, const std::string& to, int64_t most,
                    const Environment& environment);
std::string escape_html(const std::string& text);  // & < > ' ", as markupsafe writes them
// Simple case mappings, and the sharp s; RuntimeError where the machine has no C.UTF-8 locale.
std::string upper(const std::string& text);
std::string lower(const std::string& text);
std::string title(const std::string& text);        // str.title: each run of letters
std::string title_words(const std::string& text);  // the filter: each word
std::string capitalize(const std::string& text);
int64_t length(const std::string& text);
int64_t find_character(const std::string& text, const std::string& part);  // -1: none
int64_t find_last_character(const std::string& text, const std::string& part);
int64_t count(const std::string& text, const std::string& part);
// The characters from, from + step, ... before `to`; all of them must exist.
std::string substring(const std::string& text, int64_t from, int64_t to, int64_t step);

}  // namespace smartkv::jinja
