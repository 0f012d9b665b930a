// The distinct tokens that a sequence has seen, for penalties.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "engine/text/tokenizer.h"
#include "kernels/device_sampler.h"

namespace smartkv {

// The tokens of the prompt and the output, each once, with its count in the output.
class TokenHistory {
 public:
  using Seen = kernels::SeenToken;

  TokenHistory() = default;
  explicit TokenHistory(std::span<const TokenId> prompt) {
    std::vector<TokenId> tokens(prompt.begin(), prompt.end());
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    seen_.reserve(tokens.size());
    for (const TokenId token : tokens) seen_.push_back({token, 0});
  }

  void add_output(TokenId token) {
    const auto at = std::lower_bound(seen_.begin(), seen_.end(), token,
                                     [](const Seen& seen, TokenId value) { return seen.token < value; });
    if (at != seen_.end() && at->token == token) {
      ++at->output_count;
    } else {
      seen_.insert(at, {token, 1});
    }
  }

  std::span<const Seen> seen() const { return seen_; }  // ascending by token

 private:
  std::vector<Seen> seen_;
};

}  // namespace smartkv
