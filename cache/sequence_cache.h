// The KV cache of one sequence: for each layer a list of immutable segments, followed by a dense tail.
//
// A pass calls reserve(n); for each layer show_hidden() if wants_hidden(), write(), view() and, for probe queries,
// observe(); and then advance(n). After the pass the owner calls truncate() or commit().
//
// One thread at a time uses a cache, except for write(). If a function that changes the cache throws, the cache must be
// discarded, except after truncate(), which then has changed nothing.
//
// The state of a cache is a function, bit for bit, of the written K and V, the shown hidden states, their positions,
// the observed probe queries, the length of the prompt and the check that it follows (LogitCheck). It does not depend
// on how the tokens were divided into passes; no pass crosses a compaction boundary. So a preempted sequence is
// restored by recomputing its prompt and output in a new cache of the same prompt length.
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

  // Returns the bytes of K and V of one token over all layers, in the dense format.
  int64_t bytes_per_token() const;
};

struct CacheStats {
  int64_t tokens = 0;        // appended
  int64_t tokens_kept = 0;   // still represented, averaged over the layers with full attention
  int64_t bytes = 0;         // all bytes held: payload, scales, indices, biases, page slack and policy state
  int64_t window_bytes = 0;  // part of `bytes` in layers with a sliding window, which no policy changes
  int64_t shared_bytes = 0;  // part of `bytes` in pages that other caches also hold
  int64_t full_bytes = 0;    // bytes of the full cache for the same tokens, of layers with a window what they hold

  int64_t policy_bytes() const { return bytes - window_bytes; }  // in layers with full attention
  // Adds what the layers with a window hold of the same tokens.
  void add_windows(const CacheStats& windows) {
    bytes += windows.bytes;
    window_bytes += windows.bytes;
    shared_bytes += windows.shared_bytes;
    full_bytes += windows.bytes;
  }
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

// Returns the smallest range that contains both.
inline TokenRange cover(const TokenRange& a, const TokenRange& b) {
  if (a.empty() || b.empty()) return a.empty() ? b : a;
  return {a.first < b.first ? a.first : b.first, a.end > b.end ? a.end : b.end};
}

// A probe query and its attention to each token.
struct Probe {
  int64_t position = 0;
  std::span<const float> q;  // f32 [n_heads, head_dim], after RoPE
  // Attention probability of each entry of the view that the query sees, the maximum over each KV head's query heads:
  // f32 [n_kv_heads, entries].
  std::span<const float> mass;
};

// The latest logit check: a comparison of a cache's logits with the logits of an exact cache of the same tokens. Also
// counts all checks so far.
struct LogitCheck {
  int64_t tokens = 0;  // tokens in both caches; 0 if there was no comparison
  bool passed = true;
  int64_t checks = 0, backoffs = 0;  // comparisons; layers that returned to exact pages, over all failed comparisons
  // Results of the latest comparison.
  //  - overlap: share of the most likely tokens that both have, [0, 1].
  //  - margin_drift: difference between their margins of the best token over the second, in nats.
  //  - kl: KL divergence, in nats.
  double overlap = 0, margin_drift = 0, kl = 0;
};

class StateWriter;  // cache/state_io.h
class StateReader;

class SequenceCache {
 public:
  static constexpr int64_t kNoBoundary = std::numeric_limits<int64_t>::max();

  virtual ~SequenceCache() = default;

  virtual int64_t tokens() const = 0;     // appended tokens, the same in every layer
  virtual int64_t committed() const = 0;  // tokens that truncate() can no longer remove

  virtual void reserve(int64_t n) = 0;  // makes room for n tokens after tokens(); throws std::bad_alloc
  // Writes new K and V of a layer. Thread-safe for disjoint rows of one layer. REQUIRES: reserve() has made room for
  // the rows. KvBackend::write() says how long they must stay valid.
  virtual void write(int64_t layer, const KvRows& rows) = 0;
  // Whether passes must call show_hidden(). Never changes.
  virtual bool wants_hidden() const { return false; }
  // Shows the hidden states of the next n reserved tokens in a layer with full attention: the input of the layer's
  // attention, after its norm, as f32 [n, hidden_size] if the cache is f32, else as bf16. The rows are in host memory
  // and need not stay valid.
  virtual void show_hidden(int64_t layer, const void* rows, int64_t n) { (void)layer, (void)rows, (void)n; }
  // Appends the segments of a layer, including the next n_new reserved tokens, to *segments. They are valid until the
  // cache changes. The new tokens are the last n_new entries, in dense pages; attention() masks them causally.
  virtual void view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const = 0;
  virtual void advance(int64_t n) = 0;  // appends n reserved tokens, which were written in every layer

  // Cuts the cache back to n_tokens tokens. If n_tokens is not in [committed(), tokens()], throws CacheError and
  // changes nothing.
  virtual void truncate(int64_t n_tokens) = 0;
  // Makes the first n_tokens tokens permanent. A commit at next_boundary(), and no other, compresses the cache. The
  // cache must then hold exactly that many tokens. Throws CacheError if n_tokens is less than committed(), or more than
  // tokens() or next_boundary(), or if it is next_boundary() but not tokens().
  virtual void commit(int64_t n_tokens) = 0;
  // Returns whether the logits of the next single-token pass should be compared with those of an exact cache. The
  // answer changes only when a boundary is committed. If it is true, the owner
  //  1. keeps the logits of that pass and sets LogitCheck::tokens to the number of tokens that the cache then holds;
  //  2. drops the cache, creates a new one, calls its follow() with the check, and recomputes the tokens in it;
  //  3. calls judge() of the new cache with both rows of logits, and goes on with this cache;
  //  4. calls follow() with the result in every later cache of the sequence, so that it reaches the same state.
  virtual bool wants_check() const { return false; }
  // Makes the cache stay exact up to check.tokens and apply the results of the check there. REQUIRES: tokens() == 0.
  virtual void follow(const LogitCheck& check) { (void)check; }
  // Compares the logits of this cache (`exact`) with those that the owner kept (`own`), both f32 [vocab_size]. Returns
  // the check that later caches must follow.
  virtual LogitCheck judge(std::span<const float> exact, std::span<const float> own) {
    (void)exact, (void)own;
    return {};
  }
  // Returns the next compaction boundary, in tokens, or kNoBoundary. It must be committed before a pass goes beyond it.
  virtual int64_t next_boundary() const { return kNoBoundary; }

  // Returns the positions of the probe queries among the next n tokens. The cache observes their attention. Depends on
  // positions only.
  virtual TokenRange probes(int64_t n) const {
    (void)n;
    return {};
  }
  // Records the attention of a probe query. Called before advance(), in order of position. The probe's token then
  // counts as committed, because an observation cannot be undone.
  virtual void observe(int64_t layer, const Probe& probe);

  // Returns an upper bound of the rise of the pool's bytes_in_use(), at any moment, while n more tokens are reserved,
  // written, observed, advanced and committed, boundaries included. It covers new pages, copies of shared pages,
  // temporary memory of compaction and policy state. The bound holds until this cache is changed or forked.
  virtual int64_t max_growth(int64_t n) const = 0;

  static constexpr int64_t kOtherHead = -1;
  // Returns the position of the token that each entry of view(layer, 0) represents in a KV head, in the order of the
  // view, or kOtherHead for an entry of another head. The positions of a quantized page are listed in ascending order,
  // although the page may store its tokens in another order.
  virtual std::vector<int64_t> positions(int64_t layer, int64_t head) const = 0;

  // Returns a copy that shares all pages. A shared page is copied before either cache writes to it.
  virtual std::unique_ptr<SequenceCache> fork() const = 0;
  // Returns a fork that continues as the cache of another prompt, which has prompt_tokens tokens and begins with those
  // of this cache. Returns null if a fresh cache of that prompt would not reach exactly this state, bit for bit.
  // REQUIRES: all tokens are committed, and prompt_tokens > tokens(). May throw CacheError otherwise.
  virtual std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const = 0;
  // Writes the state for KvCachePolicy::load() of the same policy. Returns false if the policy does not support files.
  // With a null `out` it only returns whether it does. Other threads may use forks of this cache meanwhile.
  virtual bool save(StateWriter* out) const {
    (void)out;
    return false;
  }
  virtual CacheStats stats() const = 0;  // cheap, since it is called after every pass
  // Returns the part of stats().bytes that forks will still share after they have grown, because boundaries rarely or
  // never replace these pages.
  virtual int64_t stable_bytes() const { return 0; }
  // Returns diagnostics of the policy by name, such as "bits_k" or "forecast_last_loss". Not cheap.
  virtual std::map<std::string, double> details() const { return {}; }
};

}  // namespace smartkv
