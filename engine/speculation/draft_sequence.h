// What speculation keeps for one sequence: its tokens, the draft's cache, what was drafted, how it fared.
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
  bool target_cache = false;  // its K and V are the target's, so the target's passes can fill its caches
  StepCost step;              // the engine thread's own
};

// A request's choice, checked and ready.
struct Speculation {
  SpeculationSpec spec;
  DraftModel* drafter = nullptr;                // null: lookup only
  std::shared_ptr<const KvCachePolicy> policy;  // of the drafter's caches
  bool mirrored = false;                        // the target's passes fill them
  bool pillar = false;                          // out of the target's cache: pillar_cache.h
  bool exact = true;                            // the target's passes do not depend on what is verified in them

  bool drafts_for_itself() const { return drafter != nullptr && drafter->target_cache; }
};

// Whether a request with this speculation, or none, keeps its own cache in the host's memory.
inline bool offloads(const Speculation* speculation) { return speculation != nullptr && speculation->spec.offload; }

// The cache invariant: before a round the draft's cache holds a prefix of tokens() without the last one; mirrored, all
// but the last one, as the target's own.
class DraftSequence {
 public:
  // The sequence of `prompt`, whose tokens are copied and no more. `target`: its cache, which outlives this. `cache`: the
  // drafter's, of as many tokens where it is mirrored; null: a new one.
  DraftSequence(std::shared_ptr<const Speculation> speculation, std::span<const TokenId> prompt, SequenceCache* target,
                std::unique_ptr<SequenceCache> cache = nullptr);
  std::unique_ptr<DraftSequence> fork(SequenceCache* target) const;

  const Speculation& speculation() const { return *speculation_; }
  const std::vector<TokenId>& tokens() const { return index_.tokens(); }  // prompt and output
  SequenceCache* cache() { return cache_.get(); }                        // the drafter's; null: none, or it was given up
  SequenceCache* mirror() { return mirror_.get(); }                      // what the target's passes fill; null: none

  // Of the prompt, n tokens are computed: what can be looked up of them is prepared piece by piece.
  void follow_prompt(int64_t n) { index_.index(n); }

  // Chooses between lookup and model, and how much each could draft. With nothing to draft, cap is 0.
  DraftOption offer(int64_t cap);
  // Drafts `n` looked-up tokens, or prepares for n of the model. n = 0 may turn into a small probe of up to `cap`
  // tokens; where the drafter would first have to compute what it missed, only if drafting pays at best. Returns n.
  int64_t begin_round(int64_t n, int64_t cap, bool pays_at_best);
  // Drops the drafter's cache and counts it: from now on the choice drafts without a model. What this round has drafted stays.
  void give_up_model();
  // The target kept `emitted` tokens in this round, the first `accepted` of them drafts.
  void end_round(std::span<const TokenId> emitted, int64_t accepted);

  // How likely the next token that the model drafts is to stand: before it is drafted, and by the probability that the
  // model then gave it.
  double chance() const { return model_acceptance_.rate(); }
  double chance(double probability) const { return confidence_.rate(probability); }

  std::vector<TokenId> draft;         // this round's
  std::vector<double> probabilities;  // of a model's draft, if it is adaptive
  SpeculationUsage usage;

 private:
  DraftSequence(const DraftSequence& other, SequenceCache* target);
  void mirror_to(SequenceCache* target);

  std::shared_ptr<const Speculation> speculation_;
  NgramIndex index_;
  std::unique_ptr<SequenceCache> cache_;
  std::unique_ptr<SequenceCache> mirror_;
  std::array<AcceptanceEstimate, 4> lookup_acceptance_;  // by length of the match
  AcceptanceEstimate model_acceptance_;
  ConfidenceEstimate confidence_;
  AcceptanceEstimate* estimate_ = nullptr;  // of what this round drafts with
};

}  // namespace smartkv
