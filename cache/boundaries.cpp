#include "cache/boundaries.h"

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

int64_t Boundaries::last(int64_t tokens) const {
  if (window == kNever) return 0;
  int64_t last = stride == kNever ? 0 : std::min(tokens, prompt_tokens) / stride * stride;
  if (last < window + kPageTokens) last = 0;  // No page can be evicted yet.
  if (tokens < prompt_tokens) return last;
  if (leaving(prompt_tokens) > leaving(last)) last = prompt_tokens;
  return leaving(tokens) > leaving(last) ? leaving(tokens) + window : last;
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
