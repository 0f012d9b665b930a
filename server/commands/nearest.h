// The known name that a misspelt one is nearest to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace smartkv {

// By Levenshtein distance; of equals the first. `names` is not empty.
std::string nearest(std::string_view name, const std::vector<std::string>& names);

}  // namespace smartkv
