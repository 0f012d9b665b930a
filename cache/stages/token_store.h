// Where tokens go that leave the dense tail. A sequence has a chain of stores: each takes some of the tokens and leaves the
// others to the next one; what the last one leaves is lost.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/boundaries.h"
#include "cache/dense_layer.h"
#include "cache/policy.h"
#include "cache/sequence_cache.h"
#include "cache/stages/leaving_tokens.h"
#include "cache/state_io.h"

namespace smartkv {

// Where a sequence stands, as its stores see it.
struct StageView {
  std::span<const DenseLayer> tail;  // by layer
  int64_t tail_first = 0;            // its first token; while a boundary is committed: before that
  int64_t tokens = 0;                // of the sequence
  int64_t next_boundary = 0;         // the first boundary past them; when a boundary is being committed: that one
  const Boundaries& boundaries;
  bool may_share = false;            // pages may be somebody else's, too

  int64_t leaving() const { return boundaries.leaving(next_boundary); }  // tokens before it leave at next_boundary
};

// Of a probe, one store's part.
struct StoreProbe {
  int64_t position = 0;
  std::span<const float> q;  // f32 [n_heads, head_dim], after RoPE
  const float* mass;         // f32 [n_kv_heads, stride]: probabilities, the maximum over each KV head's query heads
  int64_t stride = 0;
  int64_t entry = 0;         // in a row of `mass`: this store's first entry
  int64_t tail = 0;          // in a row of `mass`: the tail's first token
  int64_t n_tail = 0;        // tokens of the tail that the probe sees
};

// What a store may add to the pool's bytes_in_use() at the boundaries to come.
struct StoreGrowth {
  std::vector<int64_t> take = {};  // by layer: while and after it takes the tokens of the next boundary; empty: nothing
  int64_t take_most = INT64_MAX;   // all layers' together, which may be less than their sum
  int64_t later = 0;               // pages, at the boundaries after the next, over all layers
  int64_t state = 0;               // all else, over all layers: what it keeps, and what it needs for a moment
};

// Of one sequence, all its layers. State is a function of the tokens and the boundaries, bit for bit. What it holds beyond
// pages it charges to the pool itself.
class TokenStore {
 public:
  virtual ~TokenStore() = default;
  virtual std::unique_ptr<TokenStore> fork() const = 0;  // shares pages

  // Entries of a layer in view(), those of single KV heads included.
  virtual int64_t entries(int64_t layer) const = 0;
  virtual void view(int64_t layer, std::vector<kernels::KvSegment>* segments) const = 0;
  // Positions of the tokens that the entries stand for, in the view's order; an entry that stands for several names one.
  // SequenceCache::kOtherHead for another KV head's.
  virtual void represented(int64_t layer, int64_t head, std::vector<int64_t>* positions) const = 0;

  // Queries before each boundary whose attention observe() wants to see.
  virtual int64_t n_probes() const { return 0; }
  virtual void observe(const StageView& view, int64_t layer, const StoreProbe& probe) {
    (void)view, (void)layer, (void)probe;
  }

  // The sequence's tokens are all of its prompt: what can be done for them now need not be done at its end.
  virtual void see(const StageView& view) { (void)view; }
  // The sequence is cut back to its first n tokens, of which none has left the tail.
  virtual void truncate(const StageView& view, int64_t n) { (void)view, (void)n; }

  // A boundary. prepare() decides for all layers and may use the context's threads; then take() is called for each layer,
  // for different ones in parallel, after which the layer's tail tokens before view.leaving() are gone; then finish().
  virtual void prepare(const StageView& view) { (void)view; }
  virtual void take(const StageView& view, int64_t layer, LeavingTokens* tokens) = 0;
  virtual void finish(const StageView& view) { (void)view; }

  // As SequenceCache says; judge() returns false where the store leaves that to others.
  virtual bool wants_check(const StageView& view) const { (void)view; return false; }
  virtual void follow(const LogitCheck& check) { (void)check; }
  virtual bool judge(std::span<const float> exact, std::span<const float> own, LogitCheck* check) {
    (void)exact, (void)own, (void)check;
    return false;
  }

  // While the sequence grows to `end` tokens. An upper bound.
  virtual StoreGrowth growth(const StageView& view, int64_t end) const = 0;

  // All that it holds; load() comes first, to a new store of a sequence that stands where the saved one did. It throws
  // CacheError rather than taking what would not be safe to use.
  virtual void save(StateWriter* out) const = 0;
  virtual void load(const StageView& view, StateReader* in) = 0;

  // Adds to tokens_kept, bytes and shared_bytes. Cheap.
  virtual void add_stats(const StageView& view, CacheStats* stats) const = 0;
  virtual int64_t lasting_bytes() const { return 0; }  // as SequenceCache::lasting_bytes()
  virtual void add_details(std::map<std::string, double>* details) const { (void)details; }
};

// What a policy knows of a store before there is a sequence. A store owns what it needs of it and may outlive it.
class StoreFactory {
 public:
  virtual ~StoreFactory() = default;
  virtual std::unique_ptr<TokenStore> create(const PolicyContext& context) const = 0;
  // Upper bounds of what the store of a sequence holds at any moment while it grows to n_tokens, of which n_left leave the
  // tail: pages, and all else.
  struct Bytes {
    int64_t pages = 0, state = 0;
    int64_t layer_pages = -1;  // of `pages`, one layer's at most; -1: all layers hold as much
    int64_t layer_rise = -1;   // by which a layer's pages rise at a boundary after the prompt's end; -1: by all
  };
  virtual Bytes max_bytes(const PolicyContext& context, int64_t prompt_tokens, int64_t n_tokens, int64_t n_left) const = 0;
  // Whether its stores ask the other ranks in prepare(): what they decide depends on more than each KV head alone, or its bytes
  // do. max_bytes() and growth() then bound those of the rank that comes to hold most.
  virtual bool exchanges() const = 0;
};

}  // namespace smartkv
