// JSON text that ends too early, as an answer does that max_tokens cut.
#pragma once

#include <string>
#include <vector>

namespace smartkv::openai {

// Texts of an object of which `text` is the beginning, the fuller one first; a caller takes the first that is valid JSON. Empty if
// `text` begins no object, or is whole.
std::vector<std::string> completed_json(const std::string& text);

}  // namespace smartkv::openai
