// The "speculative" field of a request, parsed and checked.
#pragma once

#include <cstdint>
#include <string_view>

#include <nlohmann/json.hpp>

namespace smartkv {

enum class DraftMethod : uint8_t { kOff, kNgram, kDraftModel, kSelf, kAuto };  // named in this order in spec.cpp

// Returns the method's name as requests spell it, such as "draft_model".
std::string_view name(DraftMethod method);

// The parsed field. The initializers are the field's defaults, except that `tokens` defaults to 10 for "ngram" and
// "auto". A comment names the methods that a parameter belongs to.
struct SpeculationSpec {
  DraftMethod method = DraftMethod::kOff;
  int64_t tokens = 4;     // most tokens to draft in a round, [1, 32]
  bool adaptive = true;   // draft fewer tokens, or none, if measured acceptance and cost say so
  int64_t ngram_min = 2;  // ngram, auto: shortest match to look up, [1, 8]
  // ngram, auto: longest match to look up, [ngram_min, 8]. The longest match wins, and the most recent one of that
  // length.
  int64_t ngram_max = 5;
  // self, draft_model, auto: policy of the draft's cache. A model that drafts for itself may also use "pillar_attn"
  // (pillar_cache.h). Null selects
  //  - "full" for a draft model;
  //  - the last 1,024 tokens for a model that drafts for itself, or "k4v4" if that model has a sliding window.
  nlohmann::json kv_cache;
  bool int4 = false;     // self: "weights": "int4" drafts with a 4-bit copy of the weights
  bool offload = false;  // self: the request's own cache is in host memory; a device holds only the draft's cache
};

// Parses `field`, which is null (off), a method's name, or {"method": name, parameters...}. Throws RequestError
// (kInvalid) whose param is "speculative" or "speculative.KEY". Unknown keys and parameters of other methods are
// errors.
SpeculationSpec parse_speculation(const nlohmann::json& field);

}  // namespace smartkv
