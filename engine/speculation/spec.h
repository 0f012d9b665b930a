// What a request asks of speculative decoding: the "speculative" field, read and checked.
#pragma once

#include <cstdint>
#include <string_view>

#include <nlohmann/json.hpp>

namespace smartkv {

enum class DraftMethod : uint8_t { kOff, kNgram, kDraftModel, kSelf, kAuto };

std::string_view name(DraftMethod method);

// Defaults are the field's; "tokens" is 4 for the methods that run a model to draft, 10 for those that look drafts up.
struct SpeculationSpec {
  DraftMethod method = DraftMethod::kOff;
  int64_t tokens = 4;      // drafted in a round at most, [1, 32]
  bool adaptive = true;    // fewer, or none, where measured acceptance and cost say so
  int64_t ngram_min = 2;   // ngram, auto: shortest match that is looked up, [1, 8]
  int64_t ngram_max = 5;   // the longest, [ngram_min, 8]; of equals, the match that goes further back wins
  // self, draft_model, auto: policy of the draft's cache; null: "full", for a model that drafts for itself the last 1,024
  // tokens. For such a model also "pillar_attn" (pillar_cache.h).
  nlohmann::json kv_cache;
  bool int4 = false;       // self: "weights": "int4" drafts on a 4-bit copy of the weights
  bool offload = false;    // self: the request's own cache is in the host's memory, a device has the draft's only
};

// `field`: null (off), a method's name, or {"method": name, parameters...}. Throws RequestError (kInvalid) whose param
// is "speculative" or "speculative.KEY"; unknown keys, and those of other methods, are errors.
SpeculationSpec parse_speculation(const nlohmann::json& field);

}  // namespace smartkv
