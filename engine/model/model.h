// A causal language model that computes batched forward passes over sequence caches.
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
class ModelHeads;
class SequenceCache;
struct PolicyContext;

// One sequence's part of a batch: its next tokens, whose positions start at cache->tokens(). REQUIRES: no other input
// of the batch has this cache, and the tokens do not go beyond cache->next_boundary().
struct SequenceInput {
  std::span<const TokenId> tokens;
  SequenceCache* cache = nullptr;
  int64_t n_logits = 1;  // logits are written for the last n_logits tokens; may be 0
  // Receives an exception of this cache; written only if there is one. The pass then continues without the sequence:
  // its rows of logits are undefined and its cache must be discarded. If null, forward() throws instead and all caches
  // of the batch must be discarded.
  std::exception_ptr* failure = nullptr;
  // If set, the model samples the next token itself, stores it in draw->drawn and writes no logits for this input. The
  // model sets draw->logits, the caller the other parameters. REQUIRES: draws_tokens() and n_logits == 1. May be null.
  kernels::TokenDraw* draw = nullptr;
};

// One thread, usually the engine's, calls forward() and idle(). All other functions are thread-safe.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  // Appends each input's tokens to its cache, without committing them, and writes their logits in batch order: f32 [sum
  // of n_logits over the inputs without `draw`, vocab_size]. `logits` may be null if there are none. It may also be
  // null on tensor-parallel ranks other than 0, which write none.
  //
  // A row of logits depends on its own sequence only, not on the rest of the batch or on how the prompt was cut into
  // chunks: bit for bit if batch_invariant(), otherwise up to rounding. The failure of one sequence does not change the
  // results of the others.
  //
  // A pass can also fail as a whole, for example for lack of memory or because a tensor-parallel process has ended.
  // Then forward() throws, whether inputs have `failure` or not, and all caches of the batch must be discarded.
  virtual void forward(std::span<const SequenceInput> batch, float* logits) = 0;
  virtual bool batch_invariant() const { return true; }
  // Whether forward() can sample tokens on the device, so that logits need not be copied to the host.
  virtual bool draws_tokens() const { return false; }
  // Returns the rotary embedding's cosines and sines for a position: f32 [head_dim / 2] each.
  virtual void rope_angles(int64_t position, float* cos, float* sin) const = 0;
  virtual int64_t weight_bytes() const = 0;  // in memory, summed over all tensor-parallel ranks
  // The backend that must own the pages of all caches passed to forward().
  virtual const std::shared_ptr<kernels::KvBackend>& kv_backend() const = 0;

  // Returns a policy whose caches forward() accepts; see make_policy() in cache/policy.h. `context` describes this
  // model (engine/model/policy_context.h). Throws CacheError.
  virtual std::unique_ptr<KvCachePolicy> make_policy(const PolicyContext& context, const nlohmann::json& spec) const;
  // Returns which of the model's KV heads this process's caches hold; null if all.
  virtual std::shared_ptr<ModelHeads> heads() const { return nullptr; }
  // Tells the other tensor-parallel processes which caches were freed. The engine calls it when it has no requests.
  virtual void idle() {}
  // Returns the number of processes that hold a part of each cache (engine/parallel/). Byte counts of caches and
  // policies are those of the process that holds most, times this number. PagePool::bytes_in_use() is the count of that
  // one process, which the caller multiplies by ranks().
  virtual int64_t ranks() const { return 1; }
  // Returns why forward() can only throw from now on (a process of the model has ended), or an empty string.
  virtual std::string lost() const { return {}; }
  // Sets a function that is called once, by any thread, when that happens; null removes it. Waits for a call in
  // progress, so the function must not call on_lost(). A function set after the loss is not called.
  virtual void on_lost(std::function<void()> call) { (void)call; }
};

}  // namespace smartkv
