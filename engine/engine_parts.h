// The loaded parts of an engine: its models, tokenizer and options.
#pragma once

#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "cache/policy.h"
#include "engine/calibration/calibration.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "kernels/thread_pool.h"

namespace smartkv {

// The loaded parts that an engine runs. Engine::create() makes them from its options.
struct EngineParts {
  EngineOptions options;                // kv_cache_bytes, threads and context_length resolved
  std::unique_ptr<ThreadPool> threads;  // for the model's passes, sampling and compaction; may be null
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;  // may be null
  CacheShape cache_shape;
  std::string model_identity, draft_identity;  // model_identity() of both models; finds the gates that ship for them
  std::shared_ptr<Calibration> calibration;    // of the model
  std::string prefix_identity;  // prefix_identity(), for states in options.prefix_cache_dir; empty if there is none
  std::unique_ptr<Model> draft_model;  // may be null; its token ids mean the same as the model's
  CacheShape draft_shape;
  std::unique_ptr<Model> int4_model;   // a 4-bit copy of the model; may be null
  nlohmann::ordered_json description;  // the model's part of describe()
};

}  // namespace smartkv
