// Scorers by name, for tests of the stores.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "cache/policies/gated_eviction/scorers.h"
#include "cache/policies/random/random.h"

namespace smartkv {

inline TokenScorer named_scorer(const std::string& name) {
  if (name == "random") return std::make_shared<RandomScorer>();
  if (name == "key_norm") return make_key_norm_scorer();
  if (name == "attention") return make_decayed_attention_scorer();
  throw std::invalid_argument(name);
}

}  // namespace smartkv
