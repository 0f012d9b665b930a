// Finds stop strings in a text that comes piece by piece.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace smartkv {

// The stop string whose last byte comes first wins; of several ending at one byte, the longest. So the result does not
// depend on how the text was cut into pieces.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {}  // none is empty

  // Text that is now known not to be part of a stop string. After a match: what was before it; push() no more.
  std::string push(std::string_view text);
  std::string flush();  // what was held back, at the end of the text

  const std::optional<std::string>& matched() const { return matched_; }

 private:
  size_t held_prefix() const;  // bytes at the end of held_ that may begin a stop string

  std::vector<std::string> stops_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace smartkv
