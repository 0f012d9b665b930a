// What the engine holds for one sequence: per layer a list of immutable segments, then a dense tail.
//
// Protocol of a step: reserve(n); for every layer write(...) then view(...); advance(n); later commit() or truncate().
//
// A cache's state is a function of the K and V written, of their positions and of the prompt's length alone, bit for bit:
// not of how passes were cut, as long as they end at boundaries. So a sequence that was dropped comes back by a prefill of
// its prompt and output in passes of any length.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/attention.h"

namespace smartkv {

class CacheError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct CacheShape {
  int64_t n_layers = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  kernels::KvType type = kernels::KvType::kBf16;

  // K and V of one token over all layers, in the dense format.
  int64_t bytes_per_token() const;
};

struct CacheStats {
  int64_t tokens = 0;       // appended
  int64_t tokens_kept = 0;  // represented in the cache, mean over layers
  int64_t bytes = 0;        // every byte held: payload, scales, indices, biases, page slack, policy state
  int64_t shared_bytes = 0; // of `bytes`, those in pages that somebody else holds, too
  int64_t full_bytes = 0;   // the full cache's bytes for the same tokens
};

// Rows of new K (after RoPE) and V. k, v: f32 [n, n_kv_heads * head_dim], rows `stride` floats apart.
struct KvRows {
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t stride = 0;
  int64_t first = 0;  // offset of the first row from tokens()
  int64_t n = 0;
};

struct TokenRange {
  int64_t first = 0, end = 0;  // positions [first, end)
  bool empty() const { return first >= end; }
};

// The least range that holds both.
inline TokenRange cover(const TokenRange& a, const TokenRange& b) {
  if (a.empty() || b.empty()) return a.empty() ? b : a;
  return {a.first < b.first ? a.first : b.first, a.end > b.end ? a.end : b.end};
}

// A probe query and where it attends.
struct Probe {
  int64_t position = 0;
  std::span<const float> q;     // f32 [n_heads, head_dim], after RoPE
  // f32 [n_kv_heads, tokens of the view that the query sees]: probabilities, the maximum over each KV head's query heads.
  std::span<const float> mass;
};

// A comparison of a cache's logits with those of an exact cache of the same tokens, and what came of those before.
struct LogitCheck {
  int64_t tokens = 0;  // that both held; 0: there was none
  bool passed = true;
  int64_t checks = 0, backoffs = 0;  // comparisons; layers that went back to exact pages because of them
  double overlap = 0, margin_drift = 0, kl = 0;  // of the last one: of the likeliest tokens, in nats, in nats
};

class StateWriter;  // cache/state_io.h
class StateReader;

class SequenceCache {
 public:
  static constexpr int64_t kNoBoundary = std::numeric_limits<int64_t>::max();

  virtual ~SequenceCache() = default;

  virtual int64_t tokens() const = 0;     // appended, over all layers alike
  virtual int64_t committed() const = 0;  // tokens that truncate() can no longer drop

  virtual void reserve(int64_t n) = 0;  // makes room for n tokens after tokens()
  // Thread-safe for disjoint rows of one layer.
  virtual void write(int64_t layer, const KvRows& rows) = 0;
  // The segments that a query after `n_new` reserved tokens sees: all of them dense at the end, causally masked.
  virtual void view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const = 0;
  virtual void advance(int64_t n) = 0;

  virtual void truncate(int64_t n_tokens) = 0;  // >= committed(), else CacheError
  virtual void commit(int64_t n_tokens) = 0;    // the only place that compresses
  // Whether the logits of the next pass, which has one row, should be compared with an exact cache's. The owner then computes its tokens
  // anew: it makes a new cache, which follow()s a check of as many tokens, and lets that judge() the logits after them. Later caches of
  // the sequence follow what judge() returned, so that they come to the same state.
  // Changes when a boundary is committed only.
  virtual bool wants_check() const { return false; }
  // REQUIRES: tokens() == 0. The cache stays exact until check.tokens.
  virtual void follow(const LogitCheck& check) { (void)check; }
  // exact: logits after check.tokens of this cache; own: of the one before it. Returns the check to follow from now on.
  virtual LogitCheck judge(std::span<const float> exact, std::span<const float> own) { (void)exact, (void)own; return {}; }
  // A pass must not reach beyond this token count before commit() was called at it.
  virtual int64_t next_boundary() const { return kNoBoundary; }

  // Which of the next n tokens are probe queries: the cache wants to see where they attend. Depends on positions only.
  virtual TokenRange probes(int64_t n) const { (void)n; return {}; }
  // Before advance(), in order of positions. What was observed stays: the probe's token counts as committed.
  virtual void observe(int64_t layer, const Probe& probe);

  // An upper bound of how much the pool's bytes_in_use() may rise, at any moment, while n more tokens are reserved,
  // written, observed, advanced and committed: new pages, copies of shared ones, what compaction needs for a moment, state.
  // Boundaries on the way are committed in their turn. 0 when the last page has room and no boundary is reached. It holds
  // until this cache is changed or forked.
  virtual int64_t growth(int64_t n) const = 0;

  static constexpr int64_t kOtherHead = -1;
  // The positions of the tokens that the entries of view(layer, 0) stand for in a KV head, in the view's order; kOtherHead
  // for entries of another one. Within a quantised page, whose tokens may be in an order of their own, in rising order.
  virtual std::vector<int64_t> represented(int64_t layer, int64_t head) const = 0;

  virtual std::unique_ptr<SequenceCache> fork() const = 0;
  // A fork of this state, which was reached while computing some prompt, to go on as the cache of another prompt, of
  // prompt_tokens > tokens() tokens, which begins with the same tokens() tokens. Null unless a fresh cache of that prompt
  // would be in this very state after them, bit for bit. All tokens committed.
  virtual std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const = 0;
  // Writes its state, for KvCachePolicy::load() of the same policy; null: only tells whether it can. May be called while
  // other threads use forks of it. False: states of this kind are not for files.
  virtual bool save(StateWriter* out) const { (void)out; return false; }
  virtual CacheStats stats() const = 0;  // cheap: asked for at every step
  // Of stats().bytes, those that forks go on sharing when they grow: in pages that boundaries replace seldom or never.
  virtual int64_t lasting_bytes() const { return 0; }
  // What the policy has to say of itself by name: "bits_k", "forecast_last_loss", ... Not cheap.
  virtual std::map<std::string, double> details() const { return {}; }
};

}  // namespace smartkv
