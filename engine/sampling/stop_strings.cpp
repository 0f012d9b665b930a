#include "engine/sampling/stop_strings.h"

#include <algorithm>
#include <utility>

namespace smartkv {

std::string StopMatcher::push(std::string_view text) {
  if (stops_.empty()) return std::string(text);
  size_t end = held_.size();
  held_ += text;
  while (end < held_.size()) {
    ++end;
    const std::string_view seen(held_.data(), end);
    const std::string* longest = nullptr;
    for (const std::string& stop : stops_) {
      if (seen.ends_with(stop) && (longest == nullptr || stop.size() > longest->size())) longest = &stop;
    }
    if (longest != nullptr) {
      matched_ = *longest;
      return std::exchange(held_, {}).substr(0, end - longest->size());
    }
  }
  const size_t ready = held_.size() - held_prefix();
  std::string result = held_.substr(0, ready);
  held_.erase(0, ready);
  return result;
}

std::string StopMatcher::flush() { return std::exchange(held_, {}); }

size_t StopMatcher::held_prefix() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > longest; --n) {
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) longest = n;
    }
  }
  return longest;
}

}  // namespace smartkv
