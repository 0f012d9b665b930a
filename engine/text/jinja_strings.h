// Python's string methods over UTF-8. Case changes cover ASCII, Latin-1, Greek and Cyrillic; other letters stay.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/text/jinja_builtins.h"

namespace smartkv::jinja {

// Removes characters of `set` (nullptr: white space) at the start and end.
std::string strip(const std::string& text, const std::string* set, bool start, bool end);
std::vector<std::string> split_spaces(const std::string& text, int64_t most);  // most: cuts at the most; -1: any number
std::vector<std::string> split_at(const std::string& text, const std::string& separator, int64_t most);
std::vector<std::string> split_lines(const std::string& text);
std::string replace(const std::string& text, const std::string& from, const std::string& to, int64_t most, const Environment& environment);
std::string upper(const std::string& text);
std::string lower(const std::string& text);
std::string title(const std::string& text);
std::string capitalize(const std::string& text);
int64_t length(const std::string& text);                                       // in characters
int64_t find_character(const std::string& text, const std::string& part);      // index in characters; -1: none
int64_t count(const std::string& text, const std::string& part);

}  // namespace smartkv::jinja
