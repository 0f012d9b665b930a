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
#include "engine/sampling/constraint.h"
#include "engine/sampling/stop_strings.h"
#include "engine/sampling/token_history.h"
#include "engine/scheduler.h"
#include "engine/speculation/draft_sequence.h"

namespace smartkv {

using Clock = std::chrono::steady_clock;

struct Request;

// Least number of tokens that a state in the middle of a prompt must spare the next prompt. Also the length of a
// prompt's end, within which other prompts are expected to diverge from it.
constexpr int64_t kWorthAState = 128;

// One choice of a request. Owned by the request and used by the engine thread. Sampling runs on pool threads while that
// thread waits, each sequence on one of them.
//
// Between two passes a sequence may lose its caches and recompute them later. The sampled tokens do not depend on that.
struct Sequence final : ScheduledSequence {
  // Starts with the prompt of `request`, which must outlive the sequence.
  Sequence(Request* request, int32_t index, const Tokenizer& tokenizer);
  // Forks the caches of `other`, a choice of the same request whose prompt has just been computed.
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
  // Runs a logit check (SequenceCache::wants_check()) in two calls. `logits`: f32 [vocab_size], of the last known
  // token.
  //  - The first call keeps a copy, which is charged to `pool`, and returns false. The engine samples nothing from
  //    `logits` and drops the sequence, so that begin() recomputes its tokens in an exact cache.
  //  - The second call, with the logits of that cache, compares the two rows and returns true.
  // Returns true at once if no check is due, or if the exact cache could exceed `room` bytes.
  bool check_logits(std::span<const float> logits, const std::shared_ptr<PagePool>& pool, int64_t room);
  // Looks up the prefix hit of a waiting sequence and holds its states. Does nothing while PrefixCache::version() of
  // its groups stays the same.
  void look_up();
  // Sets `cache` to the cache of the prefix hit, or leaves it null if there is none. If the draft's cache is stored as
  // well, a hit needs both, and the draft's cache, with as many tokens, is returned. Otherwise returns null.
  std::unique_ptr<SequenceCache> find_prefix();
  void begin() override;  // resumes from a state of the prefix cache if there is one
  void drop() override;

  // Whether the cache's present state is worth storing for other prompts.
  bool leaves_prefix() const;
  void keep_prefix();               // stores it
  bool keeps_draft_prefix() const;  // whether keep_prefix() also stores the draft's cache
  // Whether a pass that ends at token `end` reaches the last kWorthAState tokens of the prompt, where states are
  // wanted.
  bool near_prompt_end(int64_t end) const;
  // Whether it computes its prompt, or recomputes known tokens after a preemption.
  bool computes_prompt() const { return n_output == 0 || left() > 1; }
  // The cache that model passes fill: `cache`, or, if the model drafts for itself, the mirror that writes `cache` and
  // the draft's cache at once.
  SequenceCache* pass_cache() const { return draft != nullptr && draft->mirror() != nullptr ? draft->mirror() : cache.get(); }
  void hold_running();  // holds State::running of `prefix` and `draft_prefix`, whose pages it runs with
  void read_stats();    // updates the statistics below from the caches, after a pass
  void free_caches();   // the last stats stay readable
  void finish();        // frees the caches and sets `finished`

  Request* request;
  int32_t index;                         // of the choice
  std::vector<TokenId> tokens;           // known tokens: prompt and output
  std::unique_ptr<SequenceCache> cache;  // null while it waits, and once finished
  std::unique_ptr<DraftSequence> draft;  // null without speculation, and whenever `cache` is null
  CacheStats cache_stats;                // after the last pass
  std::map<std::string, double> cache_details;  // set when it finishes
  int64_t draft_bytes = 0;               // held by the draft's cache after the last pass
  // Part of cache_stats.shared_bytes that it will probably replace by pages of its own.
  int64_t shared_once = 0;
  // States of the prefix cache. May be null. A waiting sequence will resume from them. A running one resumed from them
  // or, without a prefix hit, stored them first.
  PrefixCache::Held prefix, draft_prefix;
  std::shared_ptr<const bool> prefix_running, draft_prefix_running;  // State::running of both, held while it runs
  std::shared_ptr<const bool> prefix_owed;  // State::owed of `prefix`, held from a preemption until it begins again
  bool dropped = false;                  // preempted and not begun again
  Known prefix_known;                    // while it waits: its prefix hit
  int64_t prompt_bytes = 0;              // while it waits: dense bytes of the rest of its prompt
  uint64_t prefix_version = 0;           // sum of the versions of its prefix groups at the last look_up()
  // Bytes of `cache` and of the draft's cache when they began, or when they last stored a state. The next state's own
  // bytes are those beyond these.
  int64_t prefix_bytes = 0, prefix_draft_bytes = 0;
  // Token at which a pass must end, so that a state is stored where other prompts diverge. 0 if there is none.
  int64_t parts_at = 0;
  SpeculationUsage speculation;          // after the last pass
  std::vector<TokenId> input;            // input of the next decoding pass: the last token, then its draft
  int64_t n_output = 0;                  // sampled tokens
  bool finished = false;
  LogitCheck check;                      // the last logit check; later caches of the sequence follow it
  // Logits that wait for the exact cache to reach check.tokens, f32 [vocab_size]. Empty if no check is under way.
  std::vector<float> checked_logits;
  std::optional<PoolCharge> checked_bytes;
  // The grammar has refused a token of the device sampler. From then on the host samples.
  bool draws_again = false;
  double sample_ms = 0;
  Clock::time_point last_token;
  TokenHistory history;                  // for penalties
  std::unique_ptr<Constraint> constraint;  // state of the grammar, kept across preemptions; null if any text is allowed
  StreamDecoder decoder;
  StopMatcher stop;
};

}  // namespace smartkv
