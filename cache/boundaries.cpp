#include "cache/boundaries.h"

#include <algorithm>

namespace smartkv {

using kernels::kPageTokens;

int64_t Boundaries::after(int64_t tokens) const {
  if (window == kNever) return kNever;
  // Where the next page can be evicted. Always past `tokens`.
  const int64_t least = leaving(tokens) + window + kPageTokens;
  if (tokens < prompt_tokens && least <= prompt_tokens) {
    if (stride == kNever) return prompt_tokens;
    return std::min(prompt_tokens, (least + stride - 1) / stride * stride);
  }
  return least;
}

int64_t Boundaries::most_in_tail(int64_t n_tokens) const {
  if (window == kNever) return n_tokens;
  const int64_t prompt = stride == kNever ? prompt_tokens : std::min(prompt_tokens, whole_pages(window) + stride);
  return std::min(n_tokens, std::max(prompt, window + kPageTokens));
}

int64_t Boundaries::next(int64_t tokens) const {
  int64_t boundary = after(0);
  while (boundary <= tokens) boundary = after(boundary);
  return boundary;
}

bool Boundaries::agree(const Boundaries& other, int64_t tokens, int64_t n_probes) const {
  int64_t a = after(0), b = other.after(0);
  while (a == b && a <= tokens) {
    a = after(a);
    b = other.after(b);
  }
  return a == b || std::min(a, b) - std::max<int64_t>(1, n_probes) >= tokens;
}

}  // namespace smartkv
