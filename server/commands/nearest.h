// Finds the known name that is nearest to a misspelt one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace smartkv {

// Returns the name with the smallest Levenshtein distance to `name`, the first of equals.
// REQUIRES: `names` is not empty.
std::string nearest(std::string_view name, const std::vector<std::string>& names);

}  // namespace smartkv
