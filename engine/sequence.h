// One sequence being generated: its tokens, caches, sampling state and text.
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
#include "engine/prefix_claim.h"
#include "engine/sampling/constraint.h"
#include "engine/sampling/stop_strings.h"
#include "engine/sampling/token_history.h"
#include "engine/scheduler.h"
#include "engine/speculation/draft_sequence.h"

namespace smartkv {

using Clock = std::chrono::steady_clock;
inline double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct Request;

// A state in the middle of a prompt is stored only if it spares the next prompt at least so many tokens. Within so many
// tokens of a prompt's end other prompts are expected to diverge, so states are stored there, too.
constexpr int64_t kMinStateTokens = 128;

// One choice of a request. Owned by the request and used by the engine thread. While the engine thread waits, one
// thread of the pool samples for the sequence.
//
// Between two passes a sequence may lose its caches and recompute them later. If Model::batch_invariant(), the sampled
// tokens do not depend on that.
struct Sequence final : ScheduledSequence {
  // Starts with the prompt of `request`, which must outlive the sequence.
  Sequence(Request* request, int32_t index, const Tokenizer& tokenizer);
  // Forks the caches of `other`, a choice of the same request whose prompt has just been computed.
  void fork_from(const Sequence& other);

  int64_t computed() const override;
  int64_t left() const override { return static_cast<int64_t>(tokens.size()) - computed(); }
  int64_t pass_limit() const override;
  int64_t max_growth(int64_t n) const override;
  int64_t logit_rows(int64_t n) const override;
  int64_t held() const override;
  int64_t offloaded() const override;
  Known known() const override;
  int64_t bytes_ahead(int64_t beyond) const override;
  int64_t growth_ahead(int64_t beyond) const override;
  // Runs a logit check (SequenceCache::wants_check()) in two calls. `logits`: f32 [vocab_size], of the last known
  // token.
  //  - The first call copies `logits`, charges the copy to `pool` and returns false. The engine then samples nothing
  //    and drops the sequence, so that begin() recomputes its tokens in an exact cache.
  //  - The second call, with the logits of the exact cache, compares the two rows and returns true.
  // Returns true at once if no check is due, or if the exact cache could need more than `room` bytes.
  bool check_logits(std::span<const float> logits, const std::shared_ptr<PagePool>& pool, int64_t room);
  // Looks up the prefix hit of a waiting sequence and holds its states. Does nothing if the prefix cache has not
  // changed for its prompt since the last call.
  void look_up();
  // Sets `cache` to the cache of the prefix hit, or leaves it null if there is none. Returns the draft's cache of the
  // same prefix if the request stores such caches, too (a hit then needs both), and null otherwise.
  std::unique_ptr<SequenceCache> find_prefix();
  void begin() override;  // resumes from a state of the prefix cache if there is one
  void drop() override;

  // Whether the cache's present state is worth storing for other prompts.
  bool leaves_prefix() const;
  void keep_prefix();               // stores that state
  bool keeps_draft_prefix() const;  // whether keep_prefix() also stores the draft's cache
  // Whether a pass that ends at token `end` reaches the last kMinStateTokens tokens of the prompt.
  bool near_prompt_end(int64_t end) const;
  // Whether it computes its prompt, or recomputes known tokens after a preemption.
  bool computes_prompt() const { return n_output == 0 || left() > 1; }
  // The cache that model passes fill: `cache`, or, if the model drafts for itself, the mirror that writes `cache` and
  // the draft's cache at once.
  SequenceCache* pass_cache() const {
    return draft != nullptr && draft->mirror() != nullptr ? draft->mirror() : cache.get();
  }
  void read_stats();   // updates the statistics below from the caches, after a pass
  void free_caches();  // the last stats stay readable
  void finish();       // frees the caches and sets `finished`

  Request* request;
  int32_t index;                                // of the choice
  std::vector<TokenId> tokens;                  // known tokens: prompt and output
  std::unique_ptr<SequenceCache> cache;         // null while it waits, and once finished
  std::unique_ptr<DraftSequence> draft;         // null without speculation, and whenever `cache` is null
  CacheStats cache_stats;                       // after the last pass
  std::map<std::string, double> cache_details;  // SequenceCache::details(), set when the sequence finishes
  TierUse cache_tiers = {};                     // set when the sequence finishes
  int64_t draft_bytes = 0;                      // held by the draft's cache after the last pass
  // Part of cache_stats.shared_bytes that the sequence will probably replace by pages of its own.
  int64_t shared_once = 0;
  PrefixClaim prefix, draft_prefix;            // of `cache` and of the draft's cache
  std::shared_ptr<const bool> prefix_owed;     // State::owed of `prefix`, held between drop() and begin()
  bool dropped = false;                        // whether it waits again after drop()
  std::optional<Clock::time_point> preempted;  // while it waits after a preemption: since when
  Known prefix_known;                          // while it waits: its prefix hit
  int64_t prompt_bytes = 0;                    // while it waits: dense bytes of the rest of its prompt
  uint64_t prefix_version = 0;                 // sum of PrefixCache::version() of its groups at the last look_up()
  // Token at which a pass must end, so that a state is stored where other prompts diverge; 0 if there is none.
  int64_t diverges_at = 0;
  SpeculationUsage speculation;  // after the last pass
  std::vector<TokenId> input;    // input of the next decoding pass: the last token, then its draft
  int64_t n_output = 0;          // sampled tokens
  bool finished = false;
  LogitCheck check;  // the latest logit check; new caches of the sequence follow() it
  // First row of a logit check, f32 [vocab_size], kept until the exact cache has reached check.tokens. Empty if no
  // check is in progress.
  std::vector<float> checked_logits;
  std::optional<PoolCharge> checked_bytes;
  // Whether the host samples all further tokens, because the grammar has refused a token of the device sampler.
  bool samples_on_host = false;
  double sample_ms = 0;
  Clock::time_point last_token;
  TokenHistory history;                    // for penalties
  std::unique_ptr<Constraint> constraint;  // grammar and thinking, kept across preemptions; null without them
  StreamDecoder decoder;
  StopMatcher stop;
};

}  // namespace smartkv
