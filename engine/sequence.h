// One sequence being generated: its tokens, its caches, how its next token is drawn, and its text.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/page_pool.h"
#include "cache/prefix_cache.h"
#include "cache/sequence_cache.h"
#include "engine/engine.h"
#include "engine/sampling/constraint.h"
#include "engine/sampling/stop_strings.h"
#include "engine/sampling/token_history.h"
#include "engine/scheduler.h"
#include "engine/speculation/draft_sequence.h"

namespace smartkv {

using Clock = std::chrono::steady_clock;

struct Request;

// Tokens that a state must spare the next prompt, for a pass of its own to end where prompts part; and how far before a
// prompt's end others are expected to part from it.
constexpr int64_t kWorthAState = 128;

// A choice of a request. It may lose its caches at any time between two passes and compute them anew: nothing that is
// sampled depends on it.
struct Sequence final : ScheduledSequence {
  // `request` outlives it. It knows the request's prompt.
  Sequence(Request* request, int32_t index, const Tokenizer& tokenizer);
  // Another choice of the same request, whose prompt was just computed: with a fork of its caches.
  void fork_from(const Sequence& other);

  int64_t computed() const override;
  int64_t left() const override { return static_cast<int64_t>(tokens.size()) - computed(); }
  int64_t pass_limit() const override;
  int64_t growth(int64_t n) const override;
  int64_t logit_rows(int64_t n) const override;
  int64_t held() const override;
  int64_t offloaded() const override;
  Known known() const override;
  int64_t bytes_ahead(int64_t beyond) const override;
  int64_t growth_ahead(int64_t beyond) const override;
  // Compares the logits of the last token with those of an exact cache where the cache wants that and `room`, bytes of all caches, would
  // hold the exact one. Returns false if the tokens have to be computed anew first: nothing is sampled then. The logits count in `pool`.
  bool check_logits(std::span<const float> logits, const std::shared_ptr<PagePool>& pool, int64_t room);
  void look_up();         // while it waits: what the prefix cache has for it
  std::unique_ptr<SequenceCache> find_prefix();  // fills in `cache`; returns the draft's, which holds as many tokens, or null
  void begin() override;  // from a state of the prefix cache, if there is one
  void drop() override;

  // Whether other prompts may go on from what the cache holds now.
  bool leaves_prefix() const;
  void keep_prefix();  // for them
  bool keeps_draft_prefix() const;  // with a state of the draft's cache beside its own
  bool near_prompt_end(int64_t end) const;
  // Computes its prompt, or after it lost its caches what it knew.
  bool computes_prompt() const { return n_output == 0 || left() > 1; }
  // What the model's passes fill: the cache, or with it the cache of a model that drafts for itself.
  SequenceCache* pass_cache() const { return draft != nullptr && draft->mirror() != nullptr ? draft->mirror() : cache.get(); }
  void hold_running();  // the states whose pages it runs with
  void read_stats();   // of the caches, after a pass
  void free_caches();  // what they held last is still told
  void finish();

  Request* request;
  int32_t index;
  std::vector<TokenId> tokens;           // known: prompt and output
  std::unique_ptr<SequenceCache> cache;  // null while it waits, and once finished
  std::unique_ptr<DraftSequence> draft;  // null: plain decoding, or no cache
  CacheStats cache_stats;                // after the last pass
  std::map<std::string, double> cache_details;  // once finished
  int64_t draft_bytes = 0;               // of the draft's cache, after the last pass
  int64_t shared_once = 0;               // of cache_stats.shared_bytes, what it will most likely replace by its own
  // Of the prefix cache: the states that cache and draft go on from, or left first; null: none.
  PrefixCache::Held prefix, draft_prefix;
  std::shared_ptr<const bool> prefix_running, draft_prefix_running;  // theirs, once it does
  std::shared_ptr<const bool> prefix_owed;  // `prefix`, once it was dropped and until it begins again
  bool dropped = false;
  Known prefix_known;                    // while it waits: what the prefix cache has for it
  int64_t prompt_bytes = 0;              // while it waits: of the rest of its prompt, dense
  uint64_t prefix_version = 0;           // of its groups in the prefix cache, added up, when that was looked up
  int64_t prefix_bytes = 0, prefix_draft_bytes = 0;  // of the states that cache and draft went on from, or left last
  int64_t parts_at = 0;                  // tokens after which its prompt parts from those that are known: 0: nowhere
  SpeculationUsage speculation;          // after the last pass
  std::vector<TokenId> input;            // what the next pass carries when it decodes: its last token, then its draft
  int64_t n_output = 0;
  bool finished = false;
  LogitCheck check;                      // what its caches follow
  std::vector<float> checked_logits;     // those that are to be compared, once check.tokens are computed anew; empty: none are
  std::optional<PoolCharge> checked_bytes;
  bool draws_again = false;              // the host draws: its grammar has refused a token that a device drew
  double sample_ms = 0;
  Clock::time_point last_token;
  TokenHistory history;
  std::unique_ptr<Constraint> constraint;  // null: any text; it stays when the caches go
  StreamDecoder decoder;
  StopMatcher stop;
};

}  // namespace smartkv
