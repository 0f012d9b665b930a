// Snapshots of the sequences in the engine, taken by the engine thread between two passes.
#include "engine/engine_impl.h"

namespace smartkv {
namespace {

LiveSequence live_sequence(const Request& request, const Sequence& sequence, const CacheShape& shape,
                           std::optional<int64_t> layer) {
  LiveSequence live;
  live.id = request.generation.id;
  live.choice = request.generation.first_choice + sequence.index;
  live.policy = request.policy->name();
  live.speculation = request.speculation == nullptr ? "off" : name(request.speculation->spec.method);
  live.prompt_tokens = request.prompt_tokens();
  live.cached_tokens = request.cached_tokens;
  live.output_tokens = sequence.n_output;
  live.preemptions = request.preemptions;
  if (sequence.cache == nullptr) return live;
  live.state = sequence.computes_prompt() ? LiveSequence::State::kPrompt : LiveSequence::State::kDecoding;
  live.computed_tokens = sequence.computed();
  live.cache = sequence.cache->stats();
  live.draft_bytes = sequence.draft_bytes;
  live.tiers = tier_use(*sequence.cache, shape).tokens;
  if (layer) live.spans = tier_spans(*sequence.cache, shape, *layer, kMostLiveSpans);
  return live;
}

}  // namespace

std::vector<LiveSequence> EngineImpl::live(std::optional<int64_t> layer) const {
  const ModelConfig& config = parts_.model->config();
  const int64_t n_layers = config.n_layers;
  if (layer && (*layer < 0 || *layer >= n_layers)) {
    throw RequestError(
        RequestError::Kind::kInvalid, "layer",
        "layer: expected an integer from 0 to " + std::to_string(n_layers - 1) + ", found " + std::to_string(*layer));
  }
  if (layer) {
    const std::vector<int64_t> order = config.cache_order();
    layer = std::ranges::find(order, *layer) - order.begin();
  }
  std::shared_future<std::vector<LiveSequence>> answer;
  {
    const std::lock_guard lock(mutex_);
    answer = live_questions_[layer].answer;
  }
  work_.notify_one();
  return answer.get();
}

std::vector<PrefixListing> EngineImpl::prefixes(int64_t most) const {
  std::shared_future<std::vector<PrefixListing>> answer;
  {
    const std::lock_guard lock(mutex_);
    if (!prefix_question_) prefix_question_.emplace();
    answer = prefix_question_->answer;
  }
  work_.notify_one();
  std::vector<PrefixListing> listings = answer.get();
  listings.resize(std::min(listings.size(), static_cast<size_t>(std::max<int64_t>(0, most))));
  return listings;
}

void EngineImpl::answer_live_questions() {
  std::map<std::optional<int64_t>, Question<LiveSequence>> questions;
  std::optional<Question<PrefixListing>> about_prefixes;
  {
    const std::lock_guard lock(mutex_);
    questions.swap(live_questions_);
    about_prefixes.swap(prefix_question_);
  }
  if (about_prefixes) about_prefixes->promise.set_value(prefixes_.list_states(kMostPrefixListings));
  if (questions.empty()) return;
  std::vector<const Request*> requests;
  for (const auto& [id, request] : requests_) requests.push_back(request.get());
  std::sort(requests.begin(), requests.end(), [](const Request* a, const Request* b) { return a->id < b->id; });
  for (auto& [layer, question] : questions) {
    std::vector<LiveSequence> live;
    for (const Request* request : requests) {
      for (const Sequence& sequence : request->choices) {
        if (!sequence.finished) live.push_back(live_sequence(*request, sequence, parts_.cache_shape, layer));
      }
    }
    question.promise.set_value(std::move(live));
  }
}

void EngineImpl::count_tiers() {
  const auto now = Clock::now();
  if (now - tiers_counted_ < std::chrono::duration<double>(kTierSeconds)) return;
  std::map<std::string, TierUse> by_policy;
  for (const auto& [id, request] : requests_) {
    for (const Sequence& sequence : request->choices) {
      if (sequence.cache == nullptr) continue;
      by_policy[std::string(request->policy->name())] += tier_use(*sequence.cache, parts_.cache_shape);
    }
  }
  if (by_policy.empty()) return;
  tiers_counted_ = now;
  const std::lock_guard lock(mutex_);
  for (auto& [name, policy] : recorder_.stats.policies) policy.tiers = by_policy[name];
}

}  // namespace smartkv
