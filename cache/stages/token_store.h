// Stores for tokens that leave the dense tail. A sequence has a chain of stores. Each store takes some of the tokens
// offered to it. It leaves the others, and tokens that it gives up, to the next store. Tokens that the last store
// leaves are evicted.
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

// The position of a sequence, as its stores see it.
struct StageView {
  std::span<const DenseLayer> tail;  // by layer
  int64_t tail_first = 0;            // position of the tail's first token, which a commit changes only at its end
  int64_t tokens = 0;                // of the sequence
  int64_t next_boundary = 0;         // the boundary that is being committed, otherwise the first one after `tokens`
  const Boundaries& boundaries;
  bool may_share = false;            // pages may be shared with other sequences

  // Tokens before this position leave the tail at next_boundary.
  int64_t leaving() const { return boundaries.leaving(next_boundary); }
};

// One store's part of a probe query's attention.
struct StoreProbe {
  int64_t position = 0;
  std::span<const float> q;  // f32 [n_heads, head_dim], after RoPE
  const float* mass;         // probabilities, maximum over each KV head's query heads: f32 [n_kv_heads, stride]
  int64_t stride = 0;        // floats
  int64_t entry = 0;         // index in a row of `mass` of this store's first entry
  int64_t tail = 0;          // index in a row of `mass` of the tail's first token
  int64_t n_tail = 0;        // tokens of the tail that the probe sees
};

// Upper bounds of the bytes that a store adds to the pool's bytes_in_use() at coming boundaries.
struct StoreGrowth {
  std::vector<int64_t> take = {};  // by layer, during and after take() at the next boundary; empty means 0
  int64_t take_most = INT64_MAX;   // bound of the sum over all layers, if it is less than the sum of `take`
  int64_t later = 0;               // pages at the boundaries after the next, over all layers
  int64_t state = 0;               // everything else over all layers, permanent and temporary
};

// A store of one sequence, for all layers. Its state is a function of the tokens and the boundaries, bit for bit. A
// store charges memory other than pages to the pool itself. One thread at a time calls a store, except for take().
class TokenStore {
 public:
  virtual ~TokenStore() = default;
  virtual std::unique_ptr<TokenStore> fork() const = 0;  // shares pages

  // Returns the number of entries that view() appends for a layer, including entries of single KV heads.
  virtual int64_t entries(int64_t layer) const = 0;
  virtual void view(int64_t layer, std::vector<kernels::KvSegment>* segments) const = 0;
  // Appends the position of the token that each entry represents, in the order of view(). An entry that stands for
  // several tokens names one of them; an entry of another KV head gives SequenceCache::kOtherHead.
  virtual void represented(int64_t layer, int64_t head, std::vector<int64_t>* positions) const = 0;

  // Returns n: the attention of the last n queries before each boundary is passed to observe().
  virtual int64_t n_probes() const { return 0; }
  virtual void observe(const StageView& view, int64_t layer, const StoreProbe& probe) {
    (void)view, (void)layer, (void)probe;
  }

  // Called after each pass over the prompt and after each boundary within it, so that the store can work ahead. The
  // store's state after a boundary must not depend on these calls.
  virtual void see(const StageView& view) { (void)view; }
  // Called before the sequence is truncated to n tokens, while the removed tokens are still in the tail.
  virtual void truncate(const StageView& view, int64_t n) { (void)view, (void)n; }

  // Called at a boundary, each for all stores in the order of the chain:
  //  1. prepare() decides for all layers. It may use the context's threads.
  //  2. take() is called for each layer, for several layers in parallel. When all stores have taken their tokens, the
  //     layer's tail tokens before view.leaving() are freed.
  //  3. finish() ends the boundary.
  virtual void prepare(const StageView& view) { (void)view; }
  virtual void take(const StageView& view, int64_t layer, LeavingTokens* tokens) = 0;
  virtual void finish(const StageView& view) { (void)view; }

  // Logit checks, as in SequenceCache. judge() returns false if the store does not use them; then the next store is
  // asked.
  virtual bool wants_check(const StageView& view) const { (void)view; return false; }
  virtual void follow(const LogitCheck& check) { (void)check; }
  virtual bool judge(std::span<const float> exact, std::span<const float> own, LogitCheck* check) {
    (void)exact, (void)own, (void)check;
    return false;
  }

  // Returns an upper bound of the store's growth while the sequence grows to `end` tokens.
  virtual StoreGrowth growth(const StageView& view, int64_t end) const = 0;

  // save() writes the whole state. load() restores it into a new store, before any other call, for a sequence at the
  // same position as the saved one. load() throws CacheError if the data is not safe to use.
  virtual void save(StateWriter* out) const = 0;
  virtual void load(const StageView& view, StateReader* in) = 0;

  // Adds this store's share to tokens_kept, bytes and shared_bytes. Cheap.
  virtual void add_stats(const StageView& view, CacheStats* stats) const = 0;
  virtual int64_t lasting_bytes() const { return 0; }  // see SequenceCache::lasting_bytes()
  virtual void add_details(std::map<std::string, double>* details) const { (void)details; }
};

// Creates stores and bounds their size before a sequence exists. A store owns what it needs of its factory and may
// outlive it.
class StoreFactory {
 public:
  virtual ~StoreFactory() = default;
  virtual std::unique_ptr<TokenStore> create(const PolicyContext& context) const = 0;
  // Upper bounds of the bytes that a store holds at any moment while its sequence grows to n_tokens tokens. At the end
  // n_left of these have left the tail.
  struct Bytes {
    int64_t pages = 0, state = 0;  // pages of all layers; everything else
    int64_t layer_pages = -1;  // most pages of one layer; -1: all layers hold equally many
    int64_t layer_rise = -1;   // most that one layer's pages gain at a boundary after the prompt; -1: layer_pages
  };
  virtual Bytes max_bytes(const PolicyContext& context, int64_t prompt_tokens, int64_t n_tokens, int64_t n_left) const = 0;
  // Whether its stores communicate with other tensor-parallel ranks in prepare(), because their decisions or their
  // bytes depend on more than each KV head alone. max_bytes() and growth() then bound the rank that holds most.
  virtual bool exchanges() const = 0;
};

}  // namespace smartkv
