// Finds stop strings in a text that arrives piece by piece.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace smartkv {

// The stop string that ends first wins. If several end at the same byte, the longest wins. The result therefore does
// not depend on how the text was cut into pieces.
class StopMatcher {
 public:
  // REQUIRES: no stop string is empty.
  explicit StopMatcher(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {}

  // Appends text. Returns the text that can no longer be part of a stop string. On a match it returns the rest of the
  // text before the stop string. REQUIRES: there was no match before.
  std::string push(std::string_view text);
  std::string flush();  // returns the text held back; call it at the end of the text

  // Returns the stop string that matched, if one did.
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  size_t held_prefix() const;  // bytes at the end of held_ that may begin a stop string

  std::vector<std::string> stops_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace smartkv
