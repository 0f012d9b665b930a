// Drafts for a whole batch. The Speculator decides how many tokens each sequence drafts, looks drafts up, and runs the
// models that draft. Each step of a model serves all of its sequences together. The engine's next pass verifies the
// drafts (sample_round in engine/sample.h).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/sampling/logprobs.h"
#include "engine/sampling/sampler.h"
#include "engine/speculation/adaptive.h"
#include "engine/speculation/draft_sequence.h"

namespace smartkv {

// One decoding choice that speculates.
struct DraftJob {
  Request* request = nullptr;
  Sequence* choice = nullptr;
  int64_t cap = 0;  // most tokens that this round can draft
};

// Owns the measured costs of passes and decides for all sequences of the engine.
class Speculator {
 public:
  // `target` can draft for itself. `draft` and `int4` (a 4-bit copy of the target) may be null. The contexts are those
  // of the models' caches; `int4` uses the target's. `vocabulary` is the number of tokens that can be drafted. The
  // models and contexts outlive the speculator.
  Speculator(Model* target, const PolicyContext* target_context, Model* draft, const PolicyContext* draft_context,
             Model* int4, int64_t vocabulary, int64_t context_length);

  // Resolves `spec` to a model and a policy. Returns null for plain decoding. Throws RequestError. May be called from
  // any thread.
  std::shared_ptr<const Speculation> prepare(const SpeculationSpec& spec) const;

  // All methods below are called by the engine thread.

  // Brings the drafts of `choices` up to the tokens of their prompts that the target has computed: the n-gram index,
  // and the draft's cache if it is not mirrored. Caches wait while drafting with their model cannot pay under the
  // current load; they catch up once a draft is wanted. A choice whose draft model fails continues without it.
  // REQUIRES: each choice speculates.
  void follow_prompts(std::span<Sequence* const> choices);
  // Fills in choice->draft->draft for the coming pass, in which `sequences` sequences decode. `logits` is scratch
  // memory and grows to at most one row for each job.
  //
  // A choice continues without its draft model if the model fails, yields NaN or infinity, or lacks one of the choice's
  // tokens. If a grammar fails, request->failure says so.
  void draft(int64_t sequences, std::span<DraftJob> jobs, std::vector<float>* logits);
  // Returns how many choices gave up their draft model.
  int64_t fallbacks() const { return fallbacks_; }
  // Records the time of a pass that held decoding sequences only, including the sampling of its logits.
  void pass_took(int64_t sequences, int64_t rows, double ms) { target_cost_.observe(sequences, rows - sequences, ms); }

 private:
  struct Active {
    DraftJob job;
    int64_t n = 0;         // tokens to draft
    double chance = 1;     // probability that its whole draft is accepted
    TokenHistory history;  // includes this round's draft; filled in only if the sampling parameters use it
  };
  struct Behind {
    DraftSequence* sequence;
    int64_t tokens;  // tokens that its cache has to hold
  };
  enum Group : int32_t { kDraft, kSelf, kInt4, kGroups };

  DraftModel* drafter_of(const SpeculationSpec& spec) const;  // null if drafts are looked up only
  bool knows(const DraftModel& drafter, DraftSequence* sequence) const;
  void give_up(DraftSequence* sequence, const std::string& why);
  int32_t group_of(const DraftModel* drafter) const { return static_cast<int32_t>(drafter - drafters_.data()); }
  void plan(int64_t sequences, std::span<DraftJob> jobs);
  void catch_up();  // computes the missing tokens of behind_ and empties it. REQUIRES: all share one drafter
  void run_steps(DraftModel* drafter, std::vector<float>* logits);
  void take_draft(Active* active, std::span<const float> logits);
  static void cut_to_constraint(const DraftJob& job);
  void drop_finished();
  void drop_unlikely(const StepCost& step);
  template <typename Predicate>
  void drop(Predicate leaves);  // removes from active_ the sequences for which `leaves` returns true

  mutable std::array<DraftModel, kGroups> drafters_;  // `model` is null if it is not loaded
  int64_t vocabulary_, context_length_;
  int64_t fallbacks_ = 0;
  PassCost target_cost_;
  DraftPrice price_;  // price in this round

  std::vector<DraftOption> options_, hopes_;
  // Whether drafting with each model would pay if nearly all drafts were accepted, under the load of the last round.
  std::array<bool, kGroups> may_pay_ = {true, true, true};
  std::vector<Behind> behind_;
  std::vector<Active> active_;
  std::vector<SequenceInput> inputs_;
  Sampler sampler_;
  LogprobRow confidence_;
  std::vector<float> widened_;  // a row of logits padded to vocabulary_, for a draft model with fewer outputs
};

}  // namespace smartkv
