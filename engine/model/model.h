// A causal language model that computes batched forward passes over sequence caches.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "engine/text/tokenizer.h"
#include "engine/weights/model_config.h"
#include "kernels/kv_backend.h"

namespace smartkv {

class KvCachePolicy;
class ModelHeads;
class SequenceCache;
struct PolicyContext;

// One sequence's part of a batch: its next tokens, the first at position cache->tokens(). REQUIRES: no other input of
// the batch has this cache, and the tokens do not go beyond cache->next_boundary().
struct SequenceInput {
  std::span<const TokenId> tokens;
  SequenceCache* cache = nullptr;
  int64_t n_logits = 1;  // logits are written for the last n_logits tokens; may be 0
  // Receives an exception of this cache; written only if there is one. The pass then continues without the sequence:
  // its rows of logits are undefined, and its cache must be discarded. If null, forward() throws instead, and all
  // caches of the batch must be discarded.
  std::exception_ptr* failure = nullptr;
  // If set, the model samples the next token itself, stores it in draw->drawn and writes no logits for this input. The
  // caller fills in all fields except `logits` and `drawn`. REQUIRES: samples_tokens() and n_logits == 1. May be null.
  kernels::DeviceSample* draw = nullptr;
};

// One thread, usually the engine's, calls forward() and idle(). All other functions are thread-safe.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  // Appends each input's tokens to its cache and writes their logits in batch order: f32 [sum of n_logits over the
  // inputs without `draw`, vocab_size]. The caller commits the tokens. `logits` may be null if there are none, and on
  // tensor-parallel ranks other than 0, which write none.
  //
  // A row of logits depends on its own sequence only, not on the rest of the batch or on how the prompt was cut into
  // chunks: bit for bit if batch_invariant(), otherwise up to rounding. This also holds if another sequence fails.
  //
  // A pass can also fail as a whole, for example for lack of memory or because a tensor-parallel process has ended.
  // Then forward() throws even if all inputs have `failure`, and all caches of the batch must be discarded.
  virtual void forward(std::span<const SequenceInput> batch, float* logits) = 0;
  virtual bool batch_invariant() const { return true; }
  // Whether forward() shows hidden states to the caches that want them (SequenceCache::wants_hidden()). If not, it
  // throws on such caches.
  virtual bool shows_hidden() const { return false; }
  // Whether forward() can sample tokens on the device, so that logits need not be copied to the host.
  virtual bool samples_tokens() const { return false; }
  // Returns the rotary embedding's cosines and sines for a position: f32 [head_dim / 2] each.
  virtual void rope_angles(int64_t position, float* cos, float* sin) const = 0;
  // Returns kernels::AttentionShape::sinks of a layer, as caches number them.
  virtual const float* attention_sinks(int64_t /*layer*/) const { return nullptr; }
  virtual int64_t weight_bytes() const = 0;  // in memory, summed over all tensor-parallel ranks
  // Returns the backend that owns the pages of all caches passed to forward(). The pages of offloaded caches are owned
  // by its with_host_pages().
  virtual const std::shared_ptr<kernels::KvBackend>& kv_backend() const = 0;

  // Returns a policy whose caches forward() accepts; see make_policy() in cache/policy.h. `context` describes this
  // model (engine/model/policy_context.h). Throws CacheError.
  virtual std::unique_ptr<KvCachePolicy> make_policy(const PolicyContext& context, const nlohmann::json& spec) const;
  // Calls `watch` in each pass for the rows of each layer with |x|^2, the squared norm of the residual stream after
  // attention. Null stops it. Throws std::logic_error if the model cannot.
  virtual void watch_residual(std::function<void(int64_t layer, float squares)> watch);

  // Returns which of the model's KV heads this process's caches hold; null if all.
  virtual std::shared_ptr<ModelHeads> heads() const { return nullptr; }
  // Tells the other tensor-parallel processes at once which caches were freed. They would learn it with the next pass
  // otherwise. The engine calls it when it has no requests.
  virtual void idle() {}
  // Returns the number of processes that each hold a part of every cache (engine/parallel/). Caches and policies report
  // bytes for all of them: those of the process that holds most, times ranks(). PagePool::bytes_in_use() counts only
  // that one process.
  virtual int64_t ranks() const { return 1; }
  // Returns why forward() can only throw from now on (a tensor-parallel process has ended), or an empty string.
  virtual std::string lost() const { return {}; }
  // Sets the function to call, once and from any thread, when the model is lost; null removes it. It is not called if
  // the model is lost already. Waits for a call in progress, so the function must not call on_lost().
  // NOLINTNEXTLINE(performance-unnecessary-value-param): overrides keep it.
  virtual void on_lost(std::function<void()> /*call*/) {}
};

}  // namespace smartkv
