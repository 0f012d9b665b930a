// Stores for tokens that leave the dense tail. A sequence has a chain of stores. Each store takes some of the tokens
// offered to it. The next store is offered the others, and tokens that this store gives up later. Tokens that remain
// after the last store are evicted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cache/boundaries.h"
#include "cache/dense_layer.h"
#include "cache/policy.h"
#include "cache/sequence_cache.h"
#include "cache/state_io.h"
#include "cache/stores/evicted_tokens.h"

namespace smartkv {

class HiddenScorer;  // cache/stores/token_scorer.h
class TailScores;    // cache/stores/tail_scores.h

// A sequence as its stores see it.
struct StageView {
  std::span<const DenseLayer> tail;  // by layer
  int64_t tail_first = 0;            // position of the tail's first token; unchanged until a commit has ended
  int64_t tokens = 0;                // tokens of the sequence
  int64_t next_boundary = 0;         // first boundary that is not committed yet; at least `tokens`
  const Boundaries& boundaries;
  bool may_share = false;              // whether pages may be shared with other sequences
  const TailScores* scores = nullptr;  // of the tail's tokens, by hidden_scorer() of one of the stores

  // Tokens before this position leave the tail at next_boundary.
  int64_t leaving() const { return boundaries.leaving(next_boundary); }
  Moment now() const { return tokens == next_boundary ? boundaries.before(tokens) : boundaries.at(tokens); }
  // Returns the bytes of a layer's tail pages before position `end` that stay shared, whatever is written next.
  int64_t shared_before(int64_t layer, int64_t end) const {
    const int64_t full = tokens / kernels::kPageTokens * kernels::kPageTokens;
    return may_share ? tail[static_cast<size_t>(layer)].shared_bytes_before(std::min(end, full)) : 0;
  }
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

// The bytes of a store at a moment of its sequence. Where contents decide, they are upper bounds.
struct StoreBytes {
  // Pages of all layers. If a page that is shared now will be replaced by then, both it and the new page count, because
  // the other holder keeps the old one.
  int64_t pages = 0;
  int64_t state = 0;  // everything else
  // While the boundary Moment::last is committed, a store may hold more than before and after it. It bounds that in two
  // ways, and the smaller bound counts:
  //  - working: the most that pages and state together exceed the larger of their sums before and after the boundary.
  //  - prepared: bytes that prepare() adds, or that take() adds and holds until all layers are done.
  //    take: by layer, the bytes that take() adds before the layer's tail is freed. If empty, each layer adds an equal
  //    share of the new pages.
  int64_t working = 0;
  int64_t prepared = 0;
  std::vector<int64_t> take = {};
};

// A store of one sequence, for all layers. Its state is a function of the tokens, the boundaries, the observed probe
// queries and the check that it follows, bit for bit. It must charge its memory to the pool (PoolCharge), except for
// pages, which charge themselves. One thread at a time calls a store, except for take().
class TokenStore {
 public:
  virtual ~TokenStore() = default;
  virtual std::unique_ptr<TokenStore> fork() const = 0;  // shares pages

  // Returns the number of entries that view() appends for a layer, including entries of single KV heads.
  virtual int64_t entries(int64_t layer) const = 0;
  virtual void view(int64_t layer, std::vector<kernels::KvSegment>* segments) const = 0;
  // Appends a position for each entry, in the order of view(): that of the token that the entry represents, of one of
  // them if there are several, or SequenceCache::kOtherHead for an entry of another KV head.
  virtual void positions(int64_t layer, int64_t head, std::vector<int64_t>* positions) const = 0;

  // Returns how many queries before each boundary are probe queries. observe() receives their attention.
  virtual int64_t n_probes() const { return 0; }
  virtual void observe(const StageView& view, int64_t layer, const StoreProbe& probe) {
    (void)view, (void)layer, (void)probe;
  }

  // Returns the scorer of hidden states whose results the store reads in StageView::scores; null if it has none. At
  // most one store of a chain has one.
  virtual const HiddenScorer* hidden_scorer() const { return nullptr; }

  // Called during the prompt, after each pass and after each boundary, so that the store can work ahead. Its state
  // after a boundary must not depend on these calls.
  virtual void see(const StageView& view) { (void)view; }
  // Called before the sequence is truncated to n tokens, while the removed tokens are still in the tail.
  virtual void truncate(const StageView& view, int64_t n) { (void)view, (void)n; }

  // Called at a boundary, each step for all stores in the order of the chain:
  //  1. prepare() decides for all layers. It may use the context's threads.
  //  2. take() is called for each layer, for several layers in parallel. When all stores have taken their tokens, the
  //     layer's tail tokens before view.leaving() are freed.
  //  3. finish() ends the boundary.
  virtual void prepare(const StageView& view) { (void)view; }
  virtual void take(const StageView& view, int64_t layer, EvictedTokens* tokens) = 0;
  virtual void finish(const StageView& view) { (void)view; }

  // Logit checks, as in SequenceCache. judge() returns false if the store does not use them. The next store is then
  // asked.
  virtual bool wants_check(const StageView& view) const {
    (void)view;
    return false;
  }
  virtual void follow(const LogitCheck& check) { (void)check; }
  virtual bool judge(std::span<const float> exact, std::span<const float> own, LogitCheck* check) {
    (void)exact, (void)own, (void)check;
    return false;
  }

  // Returns the bytes at a moment to come, which is not before view.now(). All bounds of a sequence's and a policy's
  // bytes follow from these (staged_bytes.h). A store without tokens can be asked about any moment of a sequence. If
  // the prompt's length is unknown (prompt_tokens 0), the bytes are a bound for every prompt that has ended by then.
  virtual StoreBytes bytes_at(const StageView& view, const Moment& then) const = 0;

  // save() writes the whole state. load() restores it into a new store, before any other call. `view` is that of the
  // saved sequence. load() throws CacheError if the data is not safe to use.
  virtual void save(StateWriter* out) const = 0;
  virtual void load(const StageView& view, StateReader* in) = 0;

  // Adds this store's share to tokens_kept, bytes and shared_bytes. Cheap.
  virtual void add_stats(const StageView& view, CacheStats* stats) const = 0;
  virtual int64_t stable_bytes() const { return 0; }  // see SequenceCache::stable_bytes()
  virtual void add_details(std::map<std::string, double>* details) const { (void)details; }
};

// Creates stores. A store owns what it needs of its factory and may outlive it.
class StoreFactory {
 public:
  virtual ~StoreFactory() = default;
  virtual std::unique_ptr<TokenStore> create(const PolicyContext& context) const = 0;
  // Whether its stores communicate with other tensor-parallel ranks in prepare(), because what they keep of a KV head
  // depends on other heads, too. bytes_at() then bounds the rank that holds most.
  virtual bool exchanges() const = 0;
};

// Creates stores from the context and copies of the arguments.
template <typename Store, bool kExchanges, typename... Arguments>
class StoreFactoryOf final : public StoreFactory {
 public:
  explicit StoreFactoryOf(Arguments... arguments) : arguments_(std::move(arguments)...) {}
  std::unique_ptr<TokenStore> create(const PolicyContext& context) const override {
    return std::apply([&](const auto&... of) { return std::make_unique<Store>(context, of...); }, arguments_);
  }
  bool exchanges() const override { return kExchanges; }

 private:
  std::tuple<Arguments...> arguments_;
};

}  // namespace smartkv
