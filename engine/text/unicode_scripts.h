// Runs of one script, as the UnicodeScripts pre-tokenizer of the Hugging Face tokenizers library defines them.
#pragma once

#include <string>

namespace smartkv {

// Returns an expression (pattern.h) that matches a run of characters of one script. Hiragana and Katakana count as Han.
// Spaces and characters of unknown scripts continue a run, but do not begin one.
std::string one_script_expression();

}  // namespace smartkv
