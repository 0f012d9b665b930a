#include "tests/server/fake_engine.h"

#include <deque>

namespace smartkv::test {

namespace {

constexpr float kLogprob = -0.5f;
constexpr const char* kTemplate =
    "{% for message in messages %}{{ message['role'] + ':' + message['content'] + '\n' }}{% endfor %}"
    "{% if tools %}{{ 'tools:' + tools[0]['function']['name'] + '\n' }}{% endif %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}";

TokenLogprob scored(TokenId token, int32_t k) {
  TokenLogprob result{.token = token, .logprob = kLogprob, .top = {}};
  for (int32_t i = 0; i < k; ++i) result.top.emplace_back(i == 0 ? token : 'a' + i, kLogprob - static_cast<float>(i));
  return result;
}

}  // namespace

std::vector<TokenId> ByteTokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  ++encoded;
  std::vector<TokenId> tokens;
  if (adds_bos && options.add_special) tokens.push_back(kBos);
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string ByteTokenizer::decode(std::span<const TokenId> tokens, bool skip_special) const {
  std::string text;
  for (const TokenId token : tokens) {
    if (!skip_special || !is_special(token)) text += token_bytes(token);
  }
  return text;
}

std::string ByteTokenizer::token_bytes(TokenId token) const {
  static const std::vector<std::string> special = {"<s>", "</s>", "<|im_end|>"};
  if (token < 0 || token >= vocab_size()) throw std::out_of_range("token");
  return token < kBos ? std::string(1, static_cast<char>(token)) : special[static_cast<size_t>(token - kBos)];
}

std::optional<TokenId> ByteTokenizer::token_id(std::string_view content) const {
  for (TokenId token = 0; token < vocab_size(); ++token) {
    if (token_bytes(token) == content) return token;
  }
  return std::nullopt;
}

class FakeEngine::Stream final : public GenerationStream {
 public:
  Stream(std::shared_ptr<State> state, const GenerationRequest& request, const std::vector<std::string>& pieces,
         FinishReason finish, const std::vector<DraftRound>& drafts, const std::optional<std::string>& stop_string)
      : state_(std::move(state)), n_(request.n) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      for (int32_t choice = 0; choice < n_; ++choice) events_.push_back(make_event(request, choice, pieces[i]));
    }
    for (int32_t choice = 0; choice < n_; ++choice) {
      events_[static_cast<size_t>(choice)].drafts = drafts;
      GenerationEvent& last = events_[events_.size() - static_cast<size_t>(n_ - choice)];
      last.finish = finish;
      last.stop_string = stop_string;
      if (finish == FinishReason::kError) last.error = "the model broke";
      if (finish == FinishReason::kOutOfMemory) last.error = "no memory";
    }
    usage_.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    usage_.kv_cache.policy = "full";
    usage_.seed = request.sampling.seed.value_or(7);
    usage_.timings = {.prefill_ms = 10, .decode_ms = 20, .total_ms = 30};
    for (size_t i = 1; request.prompt_logprobs >= 0 && i < request.prompt.size(); ++i) {
      prompt_logprobs_.push_back(scored(request.prompt[i], request.prompt_logprobs));
    }
    const std::lock_guard lock(state_->mutex);
    ++state_->live;
  }

  ~Stream() override {
    const std::lock_guard lock(state_->mutex);
    --state_->live;
    state_->changed.notify_all();
  }

  Status next(GenerationEvent* event, std::chrono::milliseconds timeout) override {
    std::unique_lock lock(state_->mutex);
    const auto ready = [&] { return state_->stopped || cancelled_ || state_->hold < 0 || taken_ < state_->hold; };
    if (!events_.empty() && !state_->changed.wait_for(lock, timeout, ready)) return Status::kTimeout;
    if (events_.empty()) return Status::kEnd;
    *event = std::move(events_.front());
    events_.pop_front();
    if (state_->stopped || cancelled_) event->finish = FinishReason::kCancelled;
    ++taken_;
    usage_.completion_tokens += static_cast<int64_t>(event->tokens.size());
    return Status::kEvent;
  }

  void cancel() override {
    const std::lock_guard lock(state_->mutex);
    cancelled_ = true;
  }
  const std::vector<TokenLogprob>& prompt_logprobs() const override { return prompt_logprobs_; }
  RequestUsage usage() const override { return usage_; }

 private:
  static GenerationEvent make_event(const GenerationRequest& request, int32_t choice, const std::string& piece) {
    GenerationEvent event;
    event.choice = choice;
    event.text = piece;
    for (const char c : piece) {
      event.tokens.push_back(static_cast<unsigned char>(c));
      if (request.logprobs >= 0) event.logprobs.push_back(scored(event.tokens.back(), request.logprobs));
    }
    return event;
  }

  std::shared_ptr<State> state_;
  int32_t n_;
  std::deque<GenerationEvent> events_;
  std::vector<TokenLogprob> prompt_logprobs_;
  RequestUsage usage_;
  int64_t taken_ = 0;
  bool cancelled_ = false;
};

FakeEngine::FakeEngine() : template_(std::make_unique<ChatTemplate>(kTemplate)) { config_.name = "fake"; }

void FakeEngine::set_answer(std::vector<std::string> pieces, FinishReason finish) {
  const std::lock_guard lock(state_->mutex);
  pieces_ = std::move(pieces);
  finish_ = finish;
}

void FakeEngine::set_stop_string(std::string stop) {
  const std::lock_guard lock(state_->mutex);
  stop_string_ = std::move(stop);
}

void FakeEngine::set_drafts(std::vector<DraftRound> drafts) {
  const std::lock_guard lock(state_->mutex);
  drafts_ = std::move(drafts);
}

void FakeEngine::set_submit_error(std::optional<RequestError> error) {
  const std::lock_guard lock(state_->mutex);
  submit_error_ = std::move(error);
}

int64_t FakeEngine::refusals() const {
  const std::lock_guard lock(state_->mutex);
  return refusals_;
}

void FakeEngine::hold_after(int64_t events) {
  const std::lock_guard lock(state_->mutex);
  state_->hold = events;
  state_->changed.notify_all();
}

std::vector<GenerationRequest> FakeEngine::submitted() const {
  const std::lock_guard lock(state_->mutex);
  return submitted_;
}

int64_t FakeEngine::live_streams() const {
  const std::lock_guard lock(state_->mutex);
  return state_->live;
}

bool FakeEngine::wait_for_live_streams(int64_t n) const {
  std::unique_lock lock(state_->mutex);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (state_->live != n) {  // streams begin without a notification
    if (std::chrono::steady_clock::now() > deadline) return false;
    state_->changed.wait_for(lock, std::chrono::milliseconds(2));
  }
  return true;
}

std::vector<std::unique_ptr<GenerationStream>> FakeEngine::submit_all(std::vector<GenerationRequest> requests) {
  for (const GenerationRequest& request : requests) validate(request);
  std::vector<std::string> pieces;
  FinishReason finish;
  std::vector<DraftRound> drafts;
  std::optional<std::string> stop_string;
  {
    const std::lock_guard lock(state_->mutex);
    if (submit_error_) {
      ++refusals_;
      // Throws a new error, not a copy. Copies share their text, with a counter where ThreadSanitizer cannot see it.
      throw RequestError(submit_error_->kind, submit_error_->param, submit_error_->what(),
                         submit_error_->retry_after_s);
    }
    submitted_.insert(submitted_.end(), requests.begin(), requests.end());
    pieces = pieces_;
    finish = finish_;
    drafts = drafts_;
    stop_string = stop_string_;
  }
  std::vector<std::unique_ptr<GenerationStream>> streams;
  for (const GenerationRequest& request : requests) {
    streams.push_back(std::make_unique<Stream>(state_, request, pieces, finish, drafts, stop_string));
  }
  return streams;
}

void FakeEngine::validate(const GenerationRequest& request) const {
  if (static_cast<int64_t>(request.prompt.size()) + request.max_tokens > context_length_) {
    throw RequestError(RequestError::Kind::kContextLength, "messages", "longer than the context");
  }
  if (draining()) throw RequestError(RequestError::Kind::kDraining, "", "draining");
}

EngineStats FakeEngine::stats() const {
  EngineStats stats;
  stats.requests_running = live_streams();
  stats.kv_bytes_used = 25;
  stats.kv_bytes_budget = 100;
  stats.finished = {{"stop", 3}};
  stats.queue_time = {.bounds = {0.1, 1}, .counts = {2, 1, 1}, .sum = 3.5, .count = 4};
  stats.rejected = {{"overloaded", 2}, {"invalid", 7}};
  return stats;
}

std::vector<PrefixListing> FakeEngine::prefixes(int64_t most) const {
  std::vector<PrefixListing> all = {{R"({"policy":"full"})", 120, 4096, 1024, 3, 0.5, true, true},
                                    {R"({"policy":"k4v4"})", 80, 0, 0, 9, 0, false, true}};
  all.resize(std::min(all.size(), static_cast<size_t>(most)));
  return all;
}

std::vector<LiveSequence> FakeEngine::live(std::optional<int64_t> layer) const {
  if (layer && *layer > 2)
    throw RequestError(RequestError::Kind::kInvalid, "layer", "layer: expected an integer from 0 to 2");
  LiveSequence live;
  live.id = "chatcmpl-1";
  live.state = LiveSequence::State::kDecoding;
  live.policy = "streaming";
  live.speculation = "off";
  live.prompt_tokens = 90;
  live.output_tokens = 11;
  live.computed_tokens = 100;
  live.cache = {.tokens = 100, .tokens_kept = 60, .bytes = 600, .full_bytes = 1000};
  live.tiers[kExactTier] = 60;
  live.tiers[kEvictedTier] = 40;
  if (!layer) return {live};
  live.spans = {{.first = 0, .end = 40}, {.first = 40, .end = 100}};
  live.spans[0].shares[kEvictedTier] = live.spans[1].shares[kExactTier] = 1;
  return {live};
}

std::vector<MemoryPlan> FakeEngine::plan(const GenerationRequest& request) const {
  const auto tokens = static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
  MemoryPlan full{.kv_cache = "full", .policy = "full", .problem = "", .max_bytes = tokens, .sequences = 2};
  MemoryPlan compact{.kv_cache = "compact", .policy = "", .problem = "not for this model"};
  return {full, compact};
}

void FakeEngine::drain() {
  std::unique_lock lock(state_->mutex);
  state_->draining = true;
  state_->changed.wait(lock, [this] { return state_->live == 0; });
}

void FakeEngine::stop() {
  const std::lock_guard lock(state_->mutex);
  state_->draining = state_->stopped = true;
  state_->changed.notify_all();
}

bool FakeEngine::draining() const {
  const std::lock_guard lock(state_->mutex);
  return state_->draining;
}

}  // namespace smartkv::test
