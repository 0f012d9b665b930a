#include "engine/speculation/speculator.h"

#include <cmath>
#include <limits>

#include "engine/log.h"
#include "engine/sample.h"
#include "engine/speculation/loaded_drafts.h"
#include "engine/speculation/pillar_cache.h"

namespace smartkv {
namespace {

// Most tokens of a sequence in a draft model's pass over the tokens that it has missed.
constexpr int64_t kCatchUpChunk = 256;

// Optimistic assumptions that decide whether a draft is probed: the acceptance of each token, and the factor on
// StepCost::share of a model whose steps were never measured.
constexpr double kHope = 0.9;
constexpr double kHopedShare = 0.25;

// Returns the default policy of the cache of a model that drafts for itself. The target's passes fill that cache, so
// nothing is lost by evicting tokens of a prompt at once.
nlohmann::json self_cache() { return {{"policy", "streaming"}, {"tokens", 1024}, {"prefill", "streaming"}}; }

// Makes the policy of a draft's cache. Throws CacheError.
std::unique_ptr<KvCachePolicy> draft_policy(const SpeculationSpec& spec, const DraftModel& drafter,
                                            const nlohmann::json& kv_cache) {
  if (!is_pillar(kv_cache)) return make_policy(*drafter.context, kv_cache);
  return make_pillar_policy(*drafter.context, kv_cache, spec.tokens);
}

}  // namespace

Speculator::Speculator(Model* target, const PolicyContext* target_context, Model* draft,
                       const PolicyContext* draft_context, Model* int4, int64_t vocabulary, int64_t context_length)
    : vocabulary_(vocabulary), context_length_(context_length) {
  const auto share = [target](const Model* model) {
    const auto whole = static_cast<double>(target->weight_bytes());
    return model == nullptr || whole <= 0 ? 1 : static_cast<double>(model->weight_bytes()) / whole;
  };
  drafters_[kDraft] = {draft, draft_context, false, {{}, {}, share(draft)}};
  drafters_[kSelf] = {target, target_context, true, {}};
  drafters_[kInt4] = {int4, target_context, true, {{}, {}, share(int4)}};
}

std::shared_ptr<const Speculation> Speculator::prepare(const SpeculationSpec& spec) const {
  if (spec.method == DraftMethod::kOff) return nullptr;
  check_loaded(spec, {.draft_model = drafters_[kDraft].model != nullptr,
                      .int4_weights = drafters_[kInt4].model != nullptr,
                      .ranks = drafters_[kSelf].model->ranks()});
  auto speculation = std::make_shared<Speculation>();
  speculation->exact = drafters_[kSelf].model->batch_invariant();
  speculation->spec = spec;
  speculation->drafter = drafter_of(spec);
  if (speculation->drafter == nullptr) return speculation;
  try {
    const bool recent = spec.kv_cache.is_null() && speculation->drafts_for_itself();
    speculation->policy = draft_policy(spec, *speculation->drafter, recent ? self_cache() : spec.kv_cache);
    speculation->pillar = is_pillar(spec.kv_cache);
    // A policy that observes the attention of probe queries, or hidden states, needs passes over its own cache.
    const auto cache = speculation->policy->new_sequence(0);
    speculation->mirrored =
        speculation->drafts_for_itself() && !cache->wants_hidden() && cache->probes(context_length_).empty();
  } catch (const CacheError& error) {
    throw RequestError(RequestError::Kind::kInvalid, "speculative.kv_cache",
                       std::string("speculative.") + error.what());
  }
  return speculation;
}

DraftModel* Speculator::drafter_of(const SpeculationSpec& spec) const {
  const auto loaded = [this](Group group) { return drafters_[group].model != nullptr ? &drafters_[group] : nullptr; };
  switch (spec.method) {
    case DraftMethod::kOff:
    case DraftMethod::kNgram: return nullptr;
    case DraftMethod::kDraftModel: return loaded(kDraft);
    case DraftMethod::kSelf: return loaded(spec.int4 ? kInt4 : kSelf);
    case DraftMethod::kAuto: return loaded(kDraft) != nullptr ? loaded(kDraft) : loaded(kInt4);
  }
  return nullptr;
}

void Speculator::follow_prompts(std::span<Sequence* const> choices) {
  for (Sequence* choice : choices) choice->draft->follow_prompt(choice->cache->tokens());
  for (DraftModel& drafter : drafters_) {
    if (!may_pay_[static_cast<size_t>(group_of(&drafter))]) continue;
    for (const Sequence* choice : choices) {
      DraftSequence* sequence = choice->draft.get();
      const bool follows = sequence->cache() != nullptr && sequence->mirror() == nullptr;
      if (!follows || sequence->speculation().drafter != &drafter) continue;
      if (knows(drafter, sequence)) {
        behind_.push_back({sequence, choice->cache->tokens()});
      } else {
        give_up(sequence, "one of its tokens is not in the draft model's vocabulary");
      }
    }
    catch_up();
  }
}

// A draft model may lack tokens that the target's vocabulary is padded with.
bool Speculator::knows(const DraftModel& drafter, DraftSequence* sequence) const {
  const int64_t known = drafter.model->config().vocab_size;
  if (known >= vocabulary_) return true;
  const std::vector<TokenId>& tokens = sequence->tokens();
  return std::all_of(tokens.begin() + sequence->cache()->tokens(), tokens.end(),
                     [known](TokenId token) { return token < known; });
}

void Speculator::give_up(DraftSequence* sequence, const std::string& why) {
  sequence->give_up_model();
  ++fallbacks_;
  log_warning("a choice continues without its draft model: " + why);
}

void Speculator::catch_up() {
  for (;;) {
    std::erase_if(behind_, [](const Behind& b) { return b.sequence->cache()->tokens() >= b.tokens; });
    if (behind_.empty()) return;
    inputs_.clear();
    for (const Behind& behind : behind_) {
      SequenceCache* cache = behind.sequence->cache();
      const int64_t at = cache->tokens();
      const int64_t n = std::min({behind.tokens - at, kCatchUpChunk, room_to_boundary(*cache)});
      const std::span<const TokenId> known(behind.sequence->tokens());
      inputs_.push_back({known.subspan(static_cast<size_t>(at), static_cast<size_t>(n)), cache, 0});
    }
    try {
      behind_[0].sequence->speculation().drafter->model->forward(inputs_, nullptr);
      for (const Behind& behind : behind_) behind.sequence->cache()->commit(behind.sequence->cache()->tokens());
    } catch (const std::exception& error) {
      for (const Behind& behind : behind_) give_up(behind.sequence, error.what());
      behind_.clear();
    }
  }
}

// Fills in options_, how much each sequence drafts, and hopes_, how much it would draft if nearly all drafts were
// accepted.
void Speculator::plan(int64_t sequences, std::span<DraftJob> jobs) {
  options_.clear();
  std::array<const StepCost*, kGroups> groups;
  for (size_t i = 0; i < kGroups; ++i) groups[i] = &drafters_[i].step;
  for (const DraftJob& job : jobs) {
    DraftOption option = job.choice->draft->offer(job.cap);
    if (option.group != DraftOption::kLookup) option.group = group_of(job.choice->draft->speculation().drafter);
    options_.push_back(option);
  }
  price_ = choose_drafts(sequences, target_cost_, groups, &options_);
  hopes_ = options_;
  for (DraftOption& option : hopes_) option.acceptance = std::max(option.acceptance, kHope);
  // Assume that steps that were never measured are cheap, so that a probe measures them.
  std::array<StepCost, kGroups> cheap;
  for (size_t i = 0; i < kGroups; ++i) {
    if (drafters_[i].step.first.measured()) continue;
    cheap[i].share = kHopedShare * drafters_[i].step.share;
    groups[i] = &cheap[i];
  }
  choose_drafts(sequences, target_cost_, groups, &hopes_);
  std::array<bool, kGroups> offered{}, pays{};
  for (const DraftOption& option : hopes_) {
    if (option.group == DraftOption::kLookup) continue;
    offered[static_cast<size_t>(option.group)] = true;
    if (option.chosen > 0) pays[static_cast<size_t>(option.group)] = true;
  }
  for (size_t i = 0; i < kGroups; ++i) may_pay_[i] = offered[i] ? pays[i] : may_pay_[i];
}

void Speculator::draft(int64_t sequences, std::span<DraftJob> jobs, std::vector<float>* logits) {
  plan(sequences, jobs);
  active_.clear();
  for (size_t i = 0; i < jobs.size(); ++i) {
    const DraftOption& option = options_[i];
    int64_t n = jobs[i].choice->draft->begin_round(option.chosen, option.cap, hopes_[i].chosen > 0);
    if (n > 0 && option.group == DraftOption::kLookup) cut_to_constraint(jobs[i]);
    if (n == 0 || option.group == DraftOption::kLookup) continue;
    if (option.chosen > 0) n = option.cap;  // drop_unlikely() decides after each step whether to draft another token
    active_.push_back({jobs[i], n, 1, {}});
  }
  if (active_.empty()) return;
  std::vector<Active> all;
  all.swap(active_);
  for (DraftModel& drafter : drafters_) {
    for (const Active& active : all) {
      if (active.job.choice->draft->speculation().drafter == &drafter) active_.push_back(active);
    }
    if (!active_.empty()) run_steps(&drafter, logits);
  }
  for (const Active& active : all) {  // verification starts at the end of the output, so constraints return there
    Sequence* choice = active.job.choice;
    if (choice->constraint != nullptr) choice->constraint->rollback(static_cast<int64_t>(choice->draft->draft.size()));
  }
}

// Cuts a looked-up draft before the first token that the choice's grammar does not allow.
void Speculator::cut_to_constraint(const DraftJob& job) {
  Constraint* const constraint = job.choice->constraint.get();
  if (constraint == nullptr) return;
  std::vector<TokenId>& draft = job.choice->draft->draft;
  size_t n = 0;
  try {
    while (n < draft.size() && !constraint->ended() && constraint->accept(draft[n])) ++n;
  } catch (const SamplingError& error) {
    job.request->failure = {FinishReason::kError, std::string("draft: ") + error.what()};
  }
  constraint->rollback(static_cast<int64_t>(n));
  draft.resize(n);
}

void Speculator::run_steps(DraftModel* drafter, std::vector<float>* logits) {
  for (Active& active : active_) {
    DraftSequence& sequence = *active.job.choice->draft;
    if (needs_history(active.job.request->generation.sampling)) active.history = active.job.choice->history;
    if (!knows(*drafter, &sequence)) {
      give_up(&sequence, "one of its tokens is not in the draft model's vocabulary");
    } else if (sequence.mirror() == nullptr) {
      // The first step computes the bonus token, and the one before it if the whole draft was accepted. Anything more
      // is caught up on here.
      const auto known = static_cast<int64_t>(sequence.tokens().size());
      if (sequence.cache()->tokens() < known - 2 || sequence.cache()->next_boundary() < known) {
        behind_.push_back({&sequence, known - 1});
      }
    }
  }
  catch_up();
  drop([](const Active& active) { return active.job.choice->draft->cache() == nullptr; });
  for (bool first = true; !active_.empty(); first = false) {
    const Clock::time_point start = Clock::now();
    inputs_.clear();
    int64_t rows = 0;
    for (Active& active : active_) {
      DraftSequence& sequence = *active.job.choice->draft;
      std::span<const TokenId> tokens(sequence.draft);
      tokens = first ? std::span(sequence.tokens()).subspan(static_cast<size_t>(sequence.cache()->tokens()))
                     : tokens.last(1);
      inputs_.push_back({tokens, sequence.cache(), 1});
      rows += static_cast<int64_t>(tokens.size());
    }
    const auto n = static_cast<int64_t>(active_.size());
    const int64_t stride = drafter->model->config().vocab_size;
    if (logits->size() < static_cast<size_t>(n * stride)) {
      *logits = {};  // free the old buffer first: a growing vector holds both
      logits->resize(static_cast<size_t>(n * stride));
    }
    try {
      drafter->model->forward(inputs_, logits->data());
      for (const Active& active : active_) {  // the first step adds output tokens only, which are final
        SequenceCache* cache = active.job.choice->draft->cache();
        if (first && active.job.choice->draft->mirror() == nullptr) cache->commit(cache->tokens());
      }
    } catch (const std::exception& error) {
      for (const Active& active : active_) give_up(active.job.choice->draft.get(), error.what());
      active_.clear();
      return;
    }
    for (int64_t i = 0; i < n; ++i)
      take_draft(&active_[static_cast<size_t>(i)], {logits->data() + i * stride, static_cast<size_t>(stride)});
    PassCost& cost = first ? drafter->step.first : drafter->step.next;
    cost.observe(n, rows - n, milliseconds_since(start));
    drop_finished();
    drop_unlikely(drafter->step);
  }
}

void Speculator::take_draft(Active* active, std::span<const float> logits) {
  Request& request = *active->job.request;
  Sequence& choice = *active->job.choice;
  DraftSequence& sequence = *choice.draft;
  const int64_t position = choice.n_output + static_cast<int64_t>(sequence.draft.size());
  std::span<const float> row = logits.first(std::min(logits.size(), static_cast<size_t>(vocabulary_)));
  if (row.size() < static_cast<size_t>(vocabulary_)) {
    widened_.assign(static_cast<size_t>(vocabulary_), -std::numeric_limits<float>::infinity());
    std::copy(row.begin(), row.end(), widened_.begin());
    row = widened_;
  }
  try {
    const TokenId token = sample_at(request, &choice, position, active->history, row, &sampler_);
    if (choice.constraint != nullptr && !choice.constraint->accept(token)) {
      active->n = 0;  // a mask may allow a token that the grammar rejects
      return;
    }
    sequence.draft.push_back(token);
    if (sequence.speculation().spec.adaptive) {
      confidence_.assign(row);
      sequence.probabilities.push_back(std::exp(confidence_.of(token, 0).logprob));
      active->chance *= sequence.chance(sequence.probabilities.back());
    }
    if (needs_history(request.generation.sampling)) active->history.add_output(token);
  } catch (const LogitError& error) {
    give_up(&sequence, error.what());
  } catch (const SamplingError& error) {
    request.failure = {FinishReason::kError, std::string("draft: ") + error.what()};
  }
}

// Removes from active_ the sequences that
//  - have their draft, or whose grammar has ended,
//  - failed or gave up their model, or
//  - have a cache that a draft must not enter: at a compaction boundary, or if the next token is a probe query.
void Speculator::drop_finished() {
  drop([](const Active& active) {
    DraftSequence& sequence = *active.job.choice->draft;
    if (sequence.cache() == nullptr) return true;
    const Constraint* constraint = active.job.choice->constraint.get();
    if (constraint != nullptr && constraint->ended()) return true;
    return active.job.request->failure.has_value() || static_cast<int64_t>(sequence.draft.size()) >= active.n ||
           sequence.cache()->tokens() >= sequence.cache()->next_boundary() ||
           (sequence.mirror() == nullptr && !sequence.cache()->probes(1).empty());
  });
}

// Removes the adaptive sequences whose next token is not likely enough to be accepted. Each must be worth its own share
// of the step, and all together must be worth the whole step. A sequence that is not adaptive forces the step.
void Speculator::drop_unlikely(const StepCost& step) {
  const auto adaptive = [](const Active& active) { return active.job.choice->draft->speculation().spec.adaptive; };
  const auto chance = [](const Active& active) { return active.chance * active.job.choice->draft->chance(); };
  const auto ms = [&](double n) { return step.next_ms(static_cast<int64_t>(n), target_cost_); };
  if (active_.empty()) return;
  auto n = static_cast<double>(active_.size());
  const double share_ms = (ms(n) - ms(1)) / n + price_.row_ms;
  drop([&](const Active& active) { return adaptive(active) && chance(active) < price_.tokens_per_ms * share_ms; });
  if (active_.empty()) return;
  double gain = 0;
  for (const Active& active : active_) {
    if (!adaptive(active)) return;  // this sequence needs the step anyway
    gain += chance(active);
  }
  n = static_cast<double>(active_.size());
  if (gain < price_.tokens_per_ms * (ms(n) + n * price_.row_ms)) drop([](const Active&) { return true; });
}

template <typename Predicate>
void Speculator::drop(Predicate leaves) {
  std::erase_if(active_, [&leaves](Active& active) {
    if (!leaves(active)) return false;
    // Drop the drafted tokens from a mirrored cache: the target's pass computes them again, exactly.
    DraftSequence& sequence = *active.job.choice->draft;
    if (sequence.mirror() != nullptr && sequence.cache() != nullptr) {
      sequence.cache()->truncate(static_cast<int64_t>(sequence.tokens().size()) - 1);
    }
    return true;
  });
}

}  // namespace smartkv
