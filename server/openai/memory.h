// GET /v1/kv and POST /v1/plan: what sequences hold, and what they would.
#pragma once

#include <string_view>
#include <vector>

#include "engine/live_sequence.h"
#include "engine/memory_plan.h"
#include "server/openai/api_request.h"

namespace smartkv::openai {

// `layer`: whose spans the sequences carry; absent: none.
Json live_json(const std::vector<LiveSequence>& sequences, const EngineStats& stats, std::optional<int64_t> layer);

// `body`: a request of /v1/chat/completions (it has `messages`) or /v1/completions. Throws ApiError.
Json plan(std::string_view body, const ServedModel& model);
Json plan_json(const MemoryPlan& plan);

}  // namespace smartkv::openai
