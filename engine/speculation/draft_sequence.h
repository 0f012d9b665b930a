// The speculation state of one sequence: its tokens, the draft's cache, the current draft, and acceptance statistics.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "cache/policy.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/speculation/adaptive.h"
#include "engine/speculation/mirrored_cache.h"
#include "engine/speculation/ngram_index.h"
#include "engine/speculation/spec.h"

namespace smartkv {

// A model that drafts: a smaller one, or the target itself.
struct DraftModel {
  Model* model = nullptr;
  const PolicyContext* context = nullptr;
  bool target_cache = false;  // its K and V equal the target's, so the target's passes can fill its caches
  StepCost step;              // used by the engine thread only
};

// A checked SpeculationSpec together with the model and the policy that it selected. Shared by all choices of a
// request.
struct Speculation {
  SpeculationSpec spec;
  DraftModel* drafter = nullptr;                // null if drafts are looked up only
  std::shared_ptr<const KvCachePolicy> policy;  // policy of the drafter's caches
  bool mirrored = false;                        // the target's passes fill the drafter's caches (mirrored_cache.h)
  bool pillar = false;                          // the drafter's caches copy rows of the target's cache (pillar_cache.h)
  bool exact = true;                            // the target is batch-invariant: drafts do not change its results

  bool drafts_for_itself() const { return drafter != nullptr && drafter->target_cache; }
};

// Returns whether a request keeps its own cache in host memory. `speculation` is null for plain decoding.
inline bool offloads(const Speculation* speculation) { return speculation != nullptr && speculation->spec.offload; }

// Invariant: before a round the draft's cache holds a prefix of tokens() that excludes at least the last token. A
// mirrored cache holds all tokens except the last one, like the target's cache.
class DraftSequence {
 public:
  // Starts a sequence with a copy of `prompt`; none of it is indexed yet. `target` is the target's cache and outlives
  // this. `cache` is the drafter's cache, or null to make a new one. REQUIRES: a mirrored `cache` holds as many tokens
  // as `target`.
  DraftSequence(std::shared_ptr<const Speculation> speculation, std::span<const TokenId> prompt, SequenceCache* target,
                std::unique_ptr<SequenceCache> cache = nullptr);
  // Returns a copy for another choice, whose target cache is `target`. The drafter's cache is forked.
  std::unique_ptr<DraftSequence> fork(SequenceCache* target) const;

  const Speculation& speculation() const { return *speculation_; }
  const std::vector<TokenId>& tokens() const { return index_.tokens(); }  // prompt and output
  // The drafter's cache. Null if drafts are looked up only, or after give_up_model().
  SequenceCache* cache() { return cache_.get(); }
  // The cache that the target's passes must use so that they fill the drafter's cache too. Null if it is not mirrored.
  SequenceCache* mirror() { return mirror_.get(); }

  // Makes the first n tokens of the prompt findable, once the target has computed them.
  void follow_prompt(int64_t n) { index_.index(n); }

  // Chooses between lookup and model for this round, and returns what the choice could draft, at most `cap` tokens. The
  // option's cap is 0 if there is nothing to draft.
  DraftOption offer(int64_t cap);
  // Begins a round with the source that offer() chose. Cuts a looked-up draft to n tokens, or prepares for n tokens of
  // the model. n = 0 may turn into a small probe of up to `cap` tokens. Without a mirrored drafter a probe also
  // requires `pays_at_best`, because a drafter would first have to compute the tokens it missed. Returns the tokens to
  // draft.
  int64_t begin_round(int64_t n, int64_t cap, bool pays_at_best);
  // Frees the drafter's cache and counts a fallback: from now on the choice drafts without a model. Tokens that this
  // round has already drafted remain.
  void give_up_model();
  // Ends the round: the target emitted the tokens `emitted`, the first `accepted` of which were drafted.
  void end_round(std::span<const TokenId> emitted, int64_t accepted);

  // The probability that the next token of the model's draft is accepted: before it is drafted, and given the
  // probability with which the model drafted it.
  double chance() const { return model_acceptance_.rate(); }
  double chance(double probability) const { return confidence_.rate(probability); }

  std::vector<TokenId> draft;         // the draft of this round
  std::vector<double> probabilities;  // the model's probability of each token of `draft`, if speculation is adaptive
  SpeculationUsage usage;

 private:
  DraftSequence(const DraftSequence& other, SequenceCache* target);
  void mirror_to(SequenceCache* target);

  std::shared_ptr<const Speculation> speculation_;
  NgramIndex index_;
  std::unique_ptr<SequenceCache> cache_;
  std::unique_ptr<SequenceCache> mirror_;
  std::array<AcceptanceEstimate, 4> lookup_acceptance_;  // by length class of the match
  AcceptanceEstimate model_acceptance_;
  ConfidenceEstimate confidence_;
  AcceptanceEstimate* estimate_ = nullptr;  // estimate of this round's source, lookup or model
};

}  // namespace smartkv
