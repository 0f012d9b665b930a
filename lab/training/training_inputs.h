// Reads the inputs of the training commands: numbers among their JSON options, and texts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"
#include "engine/weights/weights.h"

namespace smartkv {

using TokenWindows = std::vector<std::vector<int64_t>>;

// Return the option `key`, or `fallback` if it is absent. whole() requires an integer of at least `minimum`, positive()
// a number above 0. Both throw std::invalid_argument naming `key`.
int64_t whole(const nlohmann::json& json, const char* key, int64_t fallback, int64_t minimum);
double positive(const nlohmann::json& json, const char* key, double fallback);

// Returns the contents of a file. Throws ModelError.
std::string read_text(const std::filesystem::path& path);

// Returns `count` windows of `context` tokens, evenly spread over the text. Throws ModelError if the text is too short.
TokenWindows read_windows(const std::filesystem::path& path, const Tokenizer& tokenizer, int64_t context,
                          int64_t count);

}  // namespace smartkv
