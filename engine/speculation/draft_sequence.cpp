#include "engine/speculation/draft_sequence.h"

#include "engine/speculation/pillar_cache.h"

namespace smartkv {
namespace {

constexpr int64_t kProbeTokens = 2;

// Assumed acceptance before any draft is tried: of a smaller model, and of a model that drafts for itself.
constexpr double kModelAcceptance = 0.5, kSelfAcceptance = 0.9;

// A looked-up passage matches for a while and then stops, so lookup forgets quickly. The quality of a model changes
// little within a text, so its rate averages over more tokens; otherwise it could stop drafting by mere chance.
constexpr AcceptanceEstimate::Pace kLookupPace = {1.5, 10, 0.85}, kModelPace = {6, 30, 0.95};

// Lookup is preferred to a model if its acceptance is at least this fraction of the model's, because each token of a
// model costs a step. The fraction is lower for a model that drafts for itself, whose steps cost more than a small
// model's.
constexpr double kLookupPreference = 0.8, kLookupPreferenceOverSelf = 0.5;

NgramIndex make_index(const SpeculationSpec& spec) {
  const bool looks_up = spec.method == DraftMethod::kNgram || spec.method == DraftMethod::kAuto;
  return looks_up ? NgramIndex(spec.ngram_min, spec.ngram_max) : NgramIndex(1, 0);  // (1, 0) only stores the tokens
}

size_t match_class(int64_t length) { return length <= 2 ? 0 : length <= 4 ? 1 : length <= 8 ? 2 : 3; }

}  // namespace

DraftSequence::DraftSequence(std::shared_ptr<const Speculation> speculation, std::span<const TokenId> prompt,
                             SequenceCache* target, std::unique_ptr<SequenceCache> cache)
    : speculation_(std::move(speculation)),
      index_(make_index(speculation_->spec)),
      cache_(std::move(cache)),
      lookup_acceptance_{AcceptanceEstimate(0.4, kLookupPace), AcceptanceEstimate(0.6, kLookupPace),
                         AcceptanceEstimate(0.75, kLookupPace), AcceptanceEstimate(0.85, kLookupPace)},
      model_acceptance_(kModelAcceptance, kModelPace) {
  usage.method = name(speculation_->spec.method);
  index_.append(prompt);
  if (speculation_->drafter == nullptr) return;
  if (speculation_->drafts_for_itself()) {
    model_acceptance_ = AcceptanceEstimate(kSelfAcceptance, kModelPace);
    confidence_ = ConfidenceEstimate(kSelfAcceptance);
  }
  if (cache_ == nullptr) cache_ = speculation_->policy->new_sequence(static_cast<int64_t>(prompt.size()));
  mirror_to(target);
}

DraftSequence::DraftSequence(const DraftSequence& other, SequenceCache* target)
    : usage(other.usage),
      speculation_(other.speculation_),
      index_(other.index_),
      cache_(other.cache_ == nullptr ? nullptr : other.cache_->fork()),
      lookup_acceptance_(other.lookup_acceptance_),
      model_acceptance_(other.model_acceptance_),
      confidence_(other.confidence_) {
  usage.fallbacks = 0;  // a fallback during the prompt counts once, with `other`
  mirror_to(target);
}

void DraftSequence::mirror_to(SequenceCache* target) {
  if (cache_ == nullptr) return;
  if (speculation_->pillar) {
    mirror_ = std::make_unique<PillarMirror>(target, static_cast<PillarCache*>(cache_.get()));
  } else if (speculation_->mirrored) {
    mirror_ = std::make_unique<MirroredCache>(*speculation_->drafter->context, target, cache_.get());
  }
}

std::unique_ptr<DraftSequence> DraftSequence::fork(SequenceCache* target) const {
  return std::unique_ptr<DraftSequence>(new DraftSequence(*this, target));
}

DraftOption DraftSequence::offer(int64_t cap) {
  DraftOption option;
  option.fixed = !speculation_->spec.adaptive;
  const int64_t matched = index_.lookup(cap, &draft);
  AcceptanceEstimate* lookup = matched > 0 ? &lookup_acceptance_[match_class(matched)] : nullptr;
  const double preference = speculation_->drafts_for_itself() ? kLookupPreferenceOverSelf : kLookupPreference;
  const bool model = cache_ != nullptr && (lookup == nullptr || lookup->rate() < preference * model_acceptance_.rate());
  estimate_ = model ? &model_acceptance_ : lookup;
  if (estimate_ == nullptr) return option;
  if (model) {
    draft.clear();
    option.group = 0;
  }
  option.cap = cap;
  option.acceptance = estimate_->rate();
  return option;
}

int64_t DraftSequence::begin_round(int64_t n, int64_t cap, bool pays_at_best) {
  if (estimate_ == nullptr) return 0;
  const bool may_probe = n == 0 && cap > 0 && (pays_at_best || mirror_ != nullptr);
  if (may_probe && estimate_->skip()) n = std::min(kProbeTokens, cap);
  if (!draft.empty()) draft.resize(static_cast<size_t>(n));
  return n;
}

void DraftSequence::give_up_model() {
  mirror_.reset();  // it points to cache_
  cache_.reset();
  ++usage.fallbacks;
}

void DraftSequence::end_round(std::span<const TokenId> emitted, int64_t accepted) {
  index_.append(emitted);
  if (!draft.empty()) {
    const auto drafted = static_cast<int64_t>(draft.size());
    estimate_->round(drafted, accepted);
    confidence_.round(probabilities, accepted);
    usage.add_round(drafted, accepted, static_cast<int64_t>(emitted.size()));
  }
  draft.clear();
  probabilities.clear();
  estimate_ = nullptr;
  if (cache_ == nullptr || mirror_ != nullptr) return;
  // The last token was not in any pass yet.
  const auto known = static_cast<int64_t>(tokens().size()) - 1;
  if (cache_->tokens() > known) cache_->truncate(known);
  cache_->commit(cache_->tokens());
}

}  // namespace smartkv
