// Completes JSON text that ends too early, such as an answer cut by max_tokens.
#pragma once

#include <string>
#include <vector>

namespace smartkv::openai {

// Returns texts of objects that begin with `text` or with most of it, the longer one first. The caller takes the first
// that is valid JSON. Returns none if `text` does not begin an object, or is complete.
std::vector<std::string> completed_json(const std::string& text);

}  // namespace smartkv::openai
