// Drafting for a whole batch: decides how much each sequence drafts, looks up, and runs the models that draft, all
// sequences of a model together in each step. Verification is the engine's next pass (sample_round in engine/sample.h).
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

// One decoding choice that speculates. `cap`: tokens that this round could take.
struct DraftJob {
  Request* request = nullptr;
  Sequence* choice = nullptr;
  int64_t cap = 0;
};

class Speculator {
 public:
  // `target` drafts for itself; `draft` and `int4` (a 4-bit copy of the target) may be null. The contexts are those of
  // the models' caches. vocabulary: tokens that can be drafted. All outlive the speculator.
  Speculator(Model* target, const PolicyContext* target_context, Model* draft, const PolicyContext* draft_context,
             Model* int4, int64_t vocabulary, int64_t context_length);

  // What `spec` comes to with these models; null: plain decoding. Throws RequestError. Any thread.
  std::shared_ptr<const Speculation> prepare(const SpeculationSpec& spec) const;

  // The engine thread's.
  // Brings the drafts of prompts up to what the target has computed of them: what can be looked up, and the drafts'
  // caches, these not while drafting with a model cannot pay under the load there is (a draft that is wanted later
  // catches up by itself). Each choice speculates. A choice whose draft model fails goes on without it.
  void follow_prompts(std::span<Sequence* const> choices);
  // Fills in choice->draft->draft for the coming pass, in which `sequences` decode. A choice goes on without its draft model if
  // that fails, gives NaN or infinity, or does not know one of the choice's tokens. A grammar that fails ends in
  // request->failure. logits: scratch, a row for each job at most.
  void draft(int64_t sequences, std::span<DraftJob> jobs, std::vector<float>* logits);
  // Choices that went on without their draft model.
  int64_t fallbacks() const { return fallbacks_; }
  // A pass of decoding sequences only, with the sampling of what it gave.
  void pass_took(int64_t sequences, int64_t rows, double ms) { target_cost_.observe(sequences, rows - sequences, ms); }

 private:
  struct Active {
    DraftJob job;
    int64_t n = 0;         // tokens to draft
    double chance = 1;     // that all of its draft stands
    TokenHistory history;  // with this round's draft, if the sampling parameters look at it
  };
  struct Behind {
    DraftSequence* sequence;
    int64_t tokens;  // what its cache is to hold
  };
  enum Group : int32_t { kDraft, kSelf, kInt4, kGroups };

  DraftModel* drafter_of(const SpeculationSpec& spec) const;  // null: lookup only. Throws RequestError
  bool knows(const DraftModel& drafter, DraftSequence* sequence) const;
  void give_up(DraftSequence* sequence, const std::string& why);
  int32_t group_of(const DraftModel* drafter) const { return static_cast<int32_t>(drafter - drafters_.data()); }
  void plan(int64_t sequences, std::span<DraftJob> jobs);
  void catch_up();  // behind_, of one drafter, and empties it
  void run_steps(DraftModel* drafter, std::vector<float>* logits);
  void take_draft(Active* active, std::span<const float> logits);
  static void cut_to_constraint(const DraftJob& job);
  void drop_finished();
  void drop_unlikely(const StepCost& step);
  template <typename Predicate>
  void drop(Predicate leaves);  // out of active_

  mutable std::array<DraftModel, kGroups> drafters_;  // model null: not loaded
  int64_t vocabulary_, context_length_;
  int64_t fallbacks_ = 0;
  PassCost target_cost_;
  DraftPrice price_;  // in this round

  std::vector<DraftOption> options_, hopes_;
  std::array<bool, kGroups> may_pay_ = {true, true, true};  // at best, under the load of the last round
  std::vector<Behind> behind_;
  std::vector<Active> active_;
  std::vector<SequenceInput> inputs_;
  Sampler sampler_;
  LogprobRow confidence_;
  std::vector<float> widened_;  // logits of a draft model with fewer outputs than there are tokens
};

}  // namespace smartkv
