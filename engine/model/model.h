// A causal language model over sequence caches: one batched forward pass.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "engine/weights/model_config.h"
#include "engine/text/tokenizer.h"
#include "kernels/kv_backend.h"

namespace smartkv {

class KvCachePolicy;
class ModelHeads;  // cache/model_heads.h
class SequenceCache;
struct PolicyContext;

// The part of a batch that one sequence contributes: its next tokens, at positions cache->tokens() and on.
struct SequenceInput {
  std::span<const TokenId> tokens;
  SequenceCache* cache = nullptr;
  int64_t n_logits = 1;  // logits are computed for the last n_logits tokens; 0: none
  // Where what this cache throws goes: the pass goes on without the sequence, its logits keep their place but not their
  // meaning, and its cache is of no more use. Null: forward() throws it, and all caches of the batch are of no more use.
  std::exception_ptr* failure = nullptr;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  // Appends each input's tokens to its cache and writes logits, f32 [sum of n_logits, vocab_size], in batch order.
  // A row's logits depend on nothing but its own sequence: not on the batch, nor on how the prompt was cut into chunks; bit
  // for bit where batch_invariant(), else up to rounding. A sequence that fails leaves the others' results as they are.
  virtual void forward(std::span<const SequenceInput> batch, float* logits) = 0;
  virtual bool batch_invariant() const { return true; }
  // RoPE's angles of a position, cos and sin: f32 [head_dim / 2].
  virtual void rope_angles(int64_t position, float* cos, float* sin) const = 0;
  virtual int64_t weight_bytes() const = 0;  // held in memory
  // Where the pages of the caches that forward() gets must live.
  virtual const std::shared_ptr<kernels::KvBackend>& kv_backend() const = 0;

  // A policy whose caches forward() takes: cache/policy.h's. `context`: of this model (engine/model/policy_context.h).
  virtual std::unique_ptr<KvCachePolicy> make_policy(const PolicyContext& context, const nlohmann::json& spec) const;
  // Which of the model's KV heads the caches here have; null: all.
  virtual std::shared_ptr<ModelHeads> heads() const { return nullptr; }
  // There is nothing to compute for now: processes that hold parts of caches hear what became of those.
  virtual void idle() {}
  // How many processes hold a part of each cache (engine/parallel/). What caches and policies tell of bytes is all of them
  // together, each counted as the one that holds most; the page pool counts what that one does, on behalf of all.
  virtual int64_t ranks() const { return 1; }
  // Why forward() can only throw from now on: a part of the model is gone. Empty: it is not. Thread-safe.
  virtual std::string lost() const { return {}; }
  // Called once when that happens, by any thread; null: nothing is. Returns when a call that was under way has ended.
  virtual void on_lost(std::function<void()> call) { (void)call; }
};

}  // namespace smartkv
