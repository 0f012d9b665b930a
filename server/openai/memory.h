// GET /v1/kv, GET /v1/kv/prefixes and POST /v1/plan: the memory that sequences and stored prefixes hold, and the memory
// that a request would need.
#pragma once

#include <string_view>
#include <vector>

#include "engine/live_sequence.h"
#include "engine/memory_plan.h"
#include "server/openai/api_request.h"

namespace smartkv::openai {

// Returns the response of /v1/kv. `layer` is the layer whose spans `sequences` have, or nullopt if they have none.
Json live_json(const std::vector<LiveSequence>& sequences, const EngineStats& stats, std::optional<int64_t> layer);

// Returns the response of /v1/kv/prefixes.
Json prefixes_json(const std::vector<PrefixListing>& prefixes, const EngineStats& stats);

// Returns the response of /v1/plan. `body` is a request of /v1/chat/completions (if it has `messages`) or of
// /v1/completions. Throws ApiError.
Json plan(std::string_view body, const ServedModel& model);
Json plan_json(const MemoryPlan& plan);

}  // namespace smartkv::openai
