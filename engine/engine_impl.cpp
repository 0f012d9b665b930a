// The engine thread: planning, drafting and running passes. engine_results.cpp handles the results of a pass, and
// engine_submit.cpp has the functions that other threads call.
#include "engine/engine_impl.h"

#include "cache/presets.h"
#include "engine/log.h"
#include "engine/model/policy_context.h"
#include "engine/request_checks.h"

namespace smartkv {
namespace {

// The most rows of logits that a pass computes for log probabilities of prompts. An eighth of the cache's bytes is
// another limit; see scheduler_options().
constexpr int64_t kMostLogprobRows = 64;

// The longest time that the engine thread waits at once for a state that is being written to a file.
constexpr std::chrono::milliseconds kFileWait{10};

// Returns the number of context tokens whose attention takes as many multiplications as the matrix products of one
// token.
int64_t attention_tokens(const ModelConfig& config) {
  const int64_t q = config.n_heads * config.head_dim, kv = config.n_kv_heads * config.head_dim;
  // The last layer has experts if some layers do.
  const int64_t layer = config.hidden_size * (2 * q + 2 * kv) + config.mlp_weights_per_token(config.n_layers - 1);
  return q == 0 ? INT64_MAX : std::max<int64_t>(1, layer / (2 * q));
}

SchedulerOptions scheduler_options(const EngineOptions& options, const ModelConfig& config) {
  const int64_t row_bytes = config.vocab_size * static_cast<int64_t>(sizeof(float));
  return {.max_sequences = options.max_sequences,
          .token_budget = options.prefill_chunk,
          .attention_tokens = attention_tokens(config),
          .row_bytes = row_bytes,
          .most_rows = std::min(kMostLogprobRows, options.kv_cache_bytes / 8 / std::max<int64_t>(1, row_bytes))};
}

int64_t prefix_cache_bytes(const EngineOptions& options) {
  return options.prefix_cache_bytes < 0 ? options.kv_cache_bytes
                                        : std::min(options.prefix_cache_bytes, options.kv_cache_bytes);
}

std::unique_ptr<PrefixFiles> prefix_files(const EngineParts& parts) {
  const EngineOptions& options = parts.options;
  if (options.prefix_cache_dir.empty() || options.prefix_cache_bytes == 0) return nullptr;
  try {
    return std::make_unique<PrefixFiles>(PrefixFilesOptions{options.prefix_cache_dir, options.prefix_cache_dir_bytes,
                                                            parts.prefix_identity, log_warning});
  } catch (const CacheError& error) {  // not fatal, because answers do not depend on the files
    log_error(std::string(error.what()) + "; the prefix cache will not survive a restart");
    return nullptr;
  }
}

// Logs the exception that is being handled and returns it as a failure. `what` says what drafting was for: "3
// sequences".
Failure drafting_failure(const std::string& what) {
  Failure failure = failure_of(std::current_exception());
  log_error("drafting for " + what + " failed: " + failure.error);
  failure.error.insert(0, "draft: ");
  return failure;
}

// Returns how many drafted tokens, at most `cap`, a pass may carry after the last token. They must not cross a
// compaction boundary. None of them may be a probe query, because a cache keeps what it observed even if the token is
// rolled back.
int64_t draft_room(const SequenceCache& cache, int64_t cap) {
  const int64_t next = cache.tokens();  // the last token's position
  int64_t room = std::min(cap, cache.next_boundary() - next - 1);
  if (const TokenRange probes = cache.probes(room + 1); !probes.empty() && probes.end > next + 1) {
    room = std::min(room, std::max<int64_t>(0, probes.first - next - 1));
  }
  return room;
}

PolicyContext draft_context(const EngineParts& parts) {
  if (parts.draft_model == nullptr) return {};
  return policy_context(*parts.draft_model, parts.draft_shape, parts.threads.get(), {.identity = parts.draft_identity});
}

// Returns the model's context with a page pool in the host's memory, or an empty one if no memory is set aside for
// offloading.
PolicyContext offload_context(const EngineParts& parts, PolicyContext context) {
  if (parts.options.kv_offload_bytes == 0) return {};
  context.pool = PagePool::create(context.shape, context.pool->backend()->with_host_pages());
  return context;
}

// Whether requests may choose something that uses a calibration.
bool wants_calibration(const std::vector<std::string>& allowed) {
  return std::ranges::any_of(policy_registry(), [&](const PolicyRow& row) {
    const auto allows_preset = [&](const PolicyPreset& preset) {
      return preset.spec.at("policy") == row.name && allows(allowed, preset.name);
    };
    return row.calibrated && (allows(allowed, row.name) || std::ranges::any_of(policy_presets(), allows_preset));
  });
}

}  // namespace

EngineImpl::EngineImpl(EngineParts parts)
    : parts_(std::move(parts)),
      policy_context_(policy_context(
          *parts_.model, parts_.cache_shape, parts_.threads.get(),
          {parts_.model_identity, parts_.options.model.gates, parts_.options.model.channel_worth},
          [calibration = parts_.calibration] { return calibration == nullptr ? nullptr : calibration->get(); })),
      draft_context_(draft_context(parts_)),
      offload_context_(offload_context(parts_, policy_context_)),
      vocabulary_(std::min(parts_.model->config().vocab_size, parts_.tokenizer->vocab_size())),
      speculator_(parts_.model.get(), &policy_context_, parts_.draft_model.get(), &draft_context_,
                  parts_.int4_model.get(), vocabulary_, parts_.options.model.context_length),
      admission_(parts_, policy_context_, offload_context_, speculator_, &prefixes_, vocabulary_),
      prefix_files_(prefix_files(parts_)),
      prefixes_(prefix_cache_bytes(parts_.options), prefix_files_.get(), attention_tokens(parts_.model->config())),
      scheduler_(scheduler_options(parts_.options, parts_.model->config())),
      sampling_(parts_.threads == nullptr ? 1 : static_cast<size_t>(parts_.threads->size())) {
  if (parts_.calibration != nullptr) {
    if (parts_.options.calibrates && wants_calibration(parts_.options.allowed_policies)) parts_.calibration->get();
    parts_.calibration->close();
  }
  thread_ = std::thread([this] { run(); });
}

EngineImpl::~EngineImpl() {
  parts_.model->on_lost(nullptr);
  stop();
  {
    const std::lock_guard lock(mutex_);
    exit_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void EngineImpl::run() {
  for (bool goes_on = true; goes_on;) {
    try {
      goes_on = step();
      failed_steps_ = 0;
    } catch (...) {
      step_failed(std::current_exception());
    }
  }
}

bool EngineImpl::step() {
  if (requests_.empty()) parts_.model->idle();
  if (!take_submitted()) return false;
  end_cancelled();
  end_lost();
  answer_live_questions();
  count_tiers();
  plan_batch();
  draft();
  const Clock::time_point start = Clock::now();
  if (!batch_.empty()) run_pass();
  log_step(milliseconds_since(start));
  batch_.clear();
  return true;
}

void EngineImpl::log_step(double pass_ms) const {
  if (!log_enabled(LogLevel::kDebug)) return;
  if (batch_.empty() && plan_.admitted.empty() && plan_.preempted.empty()) return;
  int64_t prompts = 0, tokens = 0;
  for (const BatchRow& row : batch_) {
    prompts += row.decodes ? 0 : 1;
    tokens += row.n_tokens;
  }
  log(LogLevel::kDebug, "step",
      {{"decoding", std::to_string(static_cast<int64_t>(batch_.size()) - prompts)},
       {"prompts", std::to_string(prompts)},
       {"tokens", std::to_string(tokens)},
       {"admitted", std::to_string(plan_.admitted.size())},
       {"preempted", std::to_string(plan_.preempted.size())},
       {"waiting", std::to_string(scheduler_.n_waiting())},
       {"kv_bytes", std::to_string(cache_bytes())},
       {"free_bytes", std::to_string(free_bytes())},
       {"pass_ms", std::to_string(pass_ms)}});
}

void EngineImpl::log_preemption(const Scheduler::Preemption& preemption) {
  const auto& victim = *static_cast<const Sequence*>(preemption.sequence);
  const auto& winner = *static_cast<const Sequence*>(preemption.needed_by);
  // A last token that was sampled was in no pass yet, so it is not recomputed.
  const size_t recomputed = victim.tokens.size() - (victim.n_output > 0 ? 1 : 0);
  log(LogLevel::kInfo, "preempted",
      {{"id", victim.request->generation.id},
       {"choice", std::to_string(victim.index)},
       {"recomputes", std::to_string(recomputed)},
       {"needed_by", winner.request->generation.id},
       {"needed_bytes", std::to_string(preemption.needed)},
       {"free_bytes", std::to_string(preemption.free)}});
}

void EngineImpl::log_resumption(const Sequence& choice, double waited_ms) {
  log(LogLevel::kInfo, "resumed",
      {{"id", choice.request->generation.id},
       {"choice", std::to_string(choice.index)},
       {"waited_ms", std::to_string(waited_ms)}});
}

// Handles an exception that cannot be blamed on one sequence. The usual cause is a lack of memory.
//  - The sequences of the pass are preempted, and recomputed one at a time. If their results were already being taken,
//    their requests end instead.
//  - Requests with a sequence that could not begin in this step end.
//  - Each further failure in a row also ends the oldest request, so that the loop makes progress.
void EngineImpl::step_failed(const std::exception_ptr& exception) noexcept {
  FinishReason reason = FinishReason::kOutOfMemory;
  try {
    const Failure failure = failure_of(exception);
    reason = failure.reason;
    log_error("an engine step failed: " + failure.error);
  } catch (...) {  // no memory for the message
  }
  any_cancelled_->store(true);
  const bool sampled = std::exchange(takes_results_, false);
  for (const auto& [sequence, error] : plan_.failed)
    abort_request(static_cast<Sequence*>(sequence)->request, reason, kNoMemory);
  plan_.failed.clear();
  for (const BatchRow& row : batch_) {
    if (row.request->ended || row.choice->cache == nullptr) continue;
    if (sampled) {  // sampled tokens may never have reached the stream
      abort_request(row.request.get(), reason, kNoMemory);
      continue;
    }
    try {
      scheduler_.drop(row.choice);
      scheduler_.isolate(row.choice, true);
    } catch (...) {
      abort_request(row.request.get(), reason, kNoMemory);
    }
  }
  batch_.clear();
  logits_ = {};
  if (++failed_steps_ == 1 || requests_.empty()) return;
  const auto oldest = std::min_element(requests_.begin(), requests_.end(),
                                       [](const auto& a, const auto& b) { return a.first < b.first; });
  const std::shared_ptr<Request> request = oldest->second;
  abort_request(request.get(), reason, reason == FinishReason::kOutOfMemory ? kNoMemory : "an engine step failed");
}

bool EngineImpl::take_submitted() {
  std::vector<std::shared_ptr<Request>> submitted;
  {
    std::unique_lock lock(mutex_);
    publish();
    work_.wait(lock, [this] { return exit_ || live_ > 0 || !live_questions_.empty() || prefix_question_; });
    if (live_ == 0 && exit_) return false;
    submitted.swap(submitted_);
    waiting_ += static_cast<int64_t>(submitted.size());
  }
  for (const std::shared_ptr<Request>& request : submitted) {
    try {
      requests_.emplace(request->id, request);
      scheduler_.enqueue(&request->choices[0], request->id, request->generation.n);
    } catch (...) {
      abort_request(request.get(), FinishReason::kOutOfMemory, kNoMemory);
    }
    if (request->events->cancelled()) any_cancelled_->store(true);  // cancelled before it was in requests_
  }
  return true;
}

void EngineImpl::end_cancelled() {
  bool all;
  {
    const std::lock_guard lock(mutex_);
    all = cancel_all_;
  }
  if (!any_cancelled_->exchange(false) && !all) return;
  std::vector<std::shared_ptr<Request>> cancelled;
  for (const auto& [id, request] : requests_) {
    if (all || request->events->cancelled()) cancelled.push_back(request);
  }
  for (const auto& request : cancelled) end_request(request.get(), FinishReason::kCancelled);
}

void EngineImpl::end_lost() {
  const std::string why = lost();
  if (why.empty()) return;
  std::vector<std::shared_ptr<Request>> running;
  for (const auto& [id, request] : requests_) running.push_back(request);
  for (const auto& request : running) end_request(request.get(), FinishReason::kLost, why);
}

int64_t EngineImpl::cache_bytes() const {
  const int64_t drafts = draft_context_.pool == nullptr ? 0 : draft_context_.pool->bytes_in_use();
  return parts_.model->ranks() * policy_context_.pool->bytes_in_use() + drafts;
}

int64_t EngineImpl::free_bytes() const { return parts_.options.kv_cache_bytes - cache_bytes(); }

// Looks for a running prompt that is not yet computed up to the token where it diverges from this one. It counts only
// if it spares this one at least kMinStateTokens tokens more than the prefix cache does now. If there is such a prompt,
// makes its pass end at that token (or at an earlier one where another prompt diverges), so that it leaves a state
// there. Returns the bytes that both sequences will most likely share from then on, or nullopt if this one need not
// wait.
std::optional<int64_t> EngineImpl::waits_for_prefix(const Sequence& waiting) {
  const Request& request = *waiting.request;
  if (request.prefixes == nullptr || waiting.check.tokens > 0) return std::nullopt;
  const std::span<const TokenId> prompt(request.generation.prompt);
  const int64_t covered = waiting.known().tokens;
  for (ScheduledSequence* sequence : scheduler_.running()) {
    Sequence& running = *static_cast<Sequence*>(sequence);
    const Request* const other = running.request;
    // A sequence whose logits are checked leaves no state.
    const bool leaves = running.index == 0 && running.check.tokens == 0;
    const bool computing = leaves && running.computed() < other->prompt_tokens();
    if (!computing || other->prefixes == nullptr || other->prefix_key != request.prefix_key) continue;
    const std::span<const TokenId> its = other->generation.prompt;
    const int64_t most = std::min(request.prompt_tokens() - 1, other->prompt_tokens());
    const auto mine = prompt.first(static_cast<size_t>(most));
    const int64_t same = std::mismatch(mine.begin(), mine.end(), its.begin()).first - mine.begin();
    if (same < covered + kMinStateTokens || same <= running.computed()) continue;
    if (running.diverges_at <= running.computed() || running.diverges_at > same) running.diverges_at = same;
    const double lasting =
        static_cast<double>(running.cache->stable_bytes()) / static_cast<double>(std::max<int64_t>(1, running.held()));
    return static_cast<int64_t>(std::min(1.0, lasting) * static_cast<double>(request.max_bytes(0, same)));
  }
  return std::nullopt;
}

void EngineImpl::look_up_prefixes() {
  prefixes_.collect_files();
  const std::vector<ScheduledSequence*> candidates = scheduler_.candidates();
  std::vector<std::pair<std::shared_ptr<Request>, std::exception_ptr>> failed;  // ended after the loop
  failed.reserve(candidates.size());
  for (ScheduledSequence* sequence : candidates) {
    auto* const choice = static_cast<Sequence*>(sequence);
    try {
      choice->look_up();
    } catch (...) {
      failed.emplace_back(requests_.at(choice->request->id), std::current_exception());
    }
  }
  for (const auto& [request, exception] : failed) fail_request(request.get(), exception);
}

void EngineImpl::plan_batch() {
  look_up_prefixes();
  Scheduler::Memory memory;
  memory.free = [this] { return free_bytes(); };
  memory.offload = parts_.options.kv_offload_bytes;
  memory.reclaim = [this](PrefixCache::Evict which) { return prefixes_.evict(which); };
  memory.waits = [this](ScheduledSequence* waiting) { return waits_for_prefix(*static_cast<Sequence*>(waiting)); };
  scheduler_.plan(memory, &plan_);
  const auto choice_of = [](ScheduledSequence* sequence) { return static_cast<Sequence*>(sequence); };
  for (const Scheduler::Item& item : plan_.items) {
    BatchRow& row = batch_.emplace_back();
    row.choice = choice_of(item.sequence);
    row.request = requests_.at(row.choice->request->id);
    row.n_tokens = item.n_tokens;
    row.samples = item.n_tokens == row.choice->left();
  }
  uint64_t queries = 0, hits = 0;
  std::map<std::string, uint64_t> misses;
  for (ScheduledSequence* admitted : plan_.admitted) {
    Sequence& choice = *choice_of(admitted);
    Request& request = *choice.request;
    if (const auto preempted = std::exchange(choice.preempted, std::nullopt)) {
      const double waited_ms = milliseconds_since(*preempted);
      request.preempted_ms += waited_ms;
      log_resumption(choice, waited_ms);
    }
    if (request.prefixes == nullptr || std::exchange(request.counted, true)) continue;
    queries += static_cast<uint64_t>(request.prompt_tokens());
    hits += static_cast<uint64_t>(request.cached_tokens);
    if (request.lookup.miss != PrefixCache::Miss::kNone) {
      ++misses[PrefixCache::kMissNames[static_cast<size_t>(request.lookup.miss)]];
    }
  }
  for (const Scheduler::Preemption& preemption : plan_.preempted) {
    Sequence& choice = *choice_of(preemption.sequence);
    ++choice.request->preemptions;
    choice.preempted = Clock::now();
    log_preemption(preemption);
  }
  // A request may have several sequences in the plan. All requests are found before any ends, because an ended one is
  // no longer in requests_.
  const auto request_of = [&](ScheduledSequence* sequence) { return requests_.at(choice_of(sequence)->request->id); };
  const std::shared_ptr<Request> stuck = plan_.stuck == nullptr ? nullptr : request_of(plan_.stuck);
  std::vector<std::shared_ptr<Request>> failed;
  for (const auto& [sequence, error] : plan_.failed) failed.push_back(request_of(sequence));
  for (size_t i = 0; i < failed.size(); ++i) fail_request(failed[i].get(), plan_.failed[i].second);
  plan_.failed.clear();
  std::erase_if(batch_, [](const BatchRow& row) { return row.request->ended; });
  if (stuck != nullptr && !stuck->ended && !waits_for_files()) {
    try {
      end_stuck(choice_of(plan_.stuck));
    } catch (...) {
      fail_request(stuck.get(), std::current_exception());
    }
  }
  const std::lock_guard lock(mutex_);
  recorder_.stats.preemptions += plan_.preempted.size();
  recorder_.stats.prefix_cache_queries += queries;
  recorder_.stats.prefix_cache_hits += hits;
  for (const auto& [reason, count] : misses) recorder_.stats.prefix_cache_misses[reason] += count;
  publish();
}

// Returns whether memory will be freed once a state is written to its file. If so, waits for that, at most kFileWait.
bool EngineImpl::waits_for_files() {
  if (prefix_files_ == nullptr || !prefix_files_->holds_memory()) return false;
  prefix_files_->wait_for_memory(kFileWait);
  return true;
}

// Ends a sequence that runs alone and still has no memory for its next token. Its output so far is the answer, as if
// its context were full. Without any output the request fails.
void EngineImpl::end_stuck(Sequence* choice) {
  const std::shared_ptr<Request> request = requests_.at(choice->request->id);
  if (choice->n_output == 0) {
    const std::string bytes = std::to_string(parts_.options.kv_cache_bytes);
    end_request(request.get(), FinishReason::kError,
                "the prompt does not fit into the KV cache of " + bytes + " bytes (kv_cache_bytes)");
    return;
  }
  GenerationEvent event;
  event.choice = choice->index;
  event.finish = FinishReason::kLength;
  event.text = choice->stop.push(choice->decoder.flush()) + choice->stop.flush();
  finish_choice(request.get(), choice, std::move(event));
}

int64_t EngineImpl::room_for_logits() const {
  int64_t bytes = free_bytes();
  for (const BatchRow& row : batch_) bytes -= row.choice->max_growth(row.n_tokens);
  return bytes;
}

void EngineImpl::trim_logits(int64_t n_rows) {
  const auto held = static_cast<int64_t>(logits_.size() * sizeof(float));
  if (held > std::max(room_for_logits(), n_rows * scheduler_.options().row_bytes)) logits_ = {};
}

void EngineImpl::draft() {
  draft_jobs_.clear();
  const int64_t row_bytes = scheduler_.options().row_bytes;
  int64_t sequences = 0, rows = 0;
  for (const BatchRow& row : batch_) {
    rows += row.choice->logit_rows(row.n_tokens);
    sequences += row.choice->computes_prompt() ? 0 : 1;
  }
  // Drafts share the memory that the pass's own rows of logits leave, and the rows that one pass may verify.
  int64_t bytes = room_for_logits() - rows * row_bytes;
  int64_t left = kMostDraftRows;
  for (const BatchRow& row : batch_) {
    Request* request = row.request.get();
    Sequence* choice = row.choice;
    if (choice->computes_prompt() || choice->draft == nullptr) continue;
    int64_t cap =
        std::min({choice->draft->speculation().spec.tokens, request->max_tokens - choice->n_output - 1, left});
    cap =
        choice->cache->wants_check() ? 0 : std::max<int64_t>(0, std::min(cap, draft_room(*choice->pass_cache(), cap)));
    const auto needs = [&](int64_t n) { return choice->max_growth(1 + n) - choice->max_growth(1) + n * row_bytes; };
    while (cap > 0 && needs(cap) > bytes) --cap;
    bytes -= needs(cap);
    left -= cap;
    draft_jobs_.push_back({request, choice, cap});
  }
  if (draft_jobs_.empty()) return;
  trim_logits(rows);
  const Clock::time_point start = Clock::now();
  try {
    speculator_.draft(sequences, draft_jobs_, &logits_);
  } catch (...) {
    const Failure failure = drafting_failure(std::to_string(draft_jobs_.size()) + " sequences");
    for (const DraftJob& job : draft_jobs_) job.request->failure = failure;
  }
  const double milliseconds = milliseconds_since(start);
  const Request* previous = nullptr;
  for (const DraftJob& job : draft_jobs_) {
    const std::vector<TokenId>& tokens = job.choice->draft->draft;
    job.choice->input.insert(job.choice->input.end(), tokens.begin(), tokens.end());
    if (job.request != previous) job.request->draft_ms += milliseconds;
    previous = job.request;
  }
  for (BatchRow& row : batch_) {
    if (!row.choice->computes_prompt()) row.n_tokens = static_cast<int64_t>(row.choice->input.size());
    if (row.request->failure) fail_request(row.request.get(), *row.request->failure);
  }
  std::erase_if(batch_, [](const BatchRow& row) { return row.request->ended; });
}

void EngineImpl::run_pass() {
  const Clock::time_point start = Clock::now();
  if (!run_model()) return;
  const bool decodes = std::all_of(batch_.begin(), batch_.end(), [](const BatchRow& row) { return row.decodes; });
  const auto sequences = static_cast<int64_t>(batch_.size());
  int64_t n_rows = 0;
  for (const BatchRow& row : batch_) n_rows += row.n_logits;
  take_results();
  if (decodes) speculator_.pass_took(sequences, n_rows, milliseconds_since(start));
}

bool EngineImpl::run_model() {
  const Clock::time_point start = Clock::now();
  inputs_.clear();
  int64_t n_rows = 0;
  for (BatchRow& row : batch_) {
    Request& request = *row.request;
    Sequence& choice = *row.choice;
    if (!request.scheduled) request.scheduled = start;
    std::span<const TokenId> tokens = choice.input;
    row.n_logits = choice.logit_rows(row.n_tokens);
    row.decodes = !choice.computes_prompt();
    if (!row.decodes) {
      tokens =
          std::span(choice.tokens).subspan(static_cast<size_t>(choice.computed()), static_cast<size_t>(row.n_tokens));
    }
    inputs_.push_back({tokens, choice.pass_cache(), row.n_logits, &row.failure});
    n_rows += row.n_logits;
  }
  prepare_draws();
  int64_t n_host_rows = n_rows;
  for (size_t i = 0; i < batch_.size(); ++i) {
    if (!batch_[i].draw) continue;
    inputs_[i].draw = &*batch_[i].draw;
    n_host_rows -= batch_[i].n_logits;
  }
  std::optional<Failure> failure;
  try {
    trim_logits(n_rows);
    const auto size = static_cast<size_t>(n_host_rows * config().vocab_size);
    if (logits_.size() < size) {
      logits_ = {};  // first, because a growing vector would hold both buffers for a moment
      logits_.resize(size);
    }
    parts_.model->forward(inputs_, logits_.data());
  } catch (...) {
    failure = failure_of(std::current_exception());
  }
  const double milliseconds = milliseconds_since(start);
  const Request* previous = nullptr;  // counts each request once, because rows of one request are adjacent
  const float* logits = logits_.data();
  for (BatchRow& row : batch_) {
    row.logits = logits;
    if (!row.draw) logits += row.n_logits * config().vocab_size;
    if (row.request.get() == previous) continue;
    previous = row.request.get();
    row.request->model_ms += milliseconds;
    ++(row.is_prompt() ? row.request->prefill_chunks : row.request->decode_passes);
  }
  {
    const std::lock_guard lock(mutex_);
    ++recorder_.stats.steps;
  }
  if (failure) pass_failed(*failure);
  return !failure;
}

// Handles a pass that failed as a whole. It is not known which sequence caused that, so each is preempted and
// recomputed alone. The one that then fails ends.
void EngineImpl::pass_failed(const Failure& failure) {
  if (!lost().empty()) return end_lost();
  log_error("model pass of " + std::to_string(batch_.size()) + " sequences failed: " + failure.error);
  if (batch_.size() == 1) return fail_request(batch_[0].request.get(), failure);
  for (const BatchRow& row : batch_) {
    scheduler_.drop(row.choice);
    scheduler_.isolate(row.choice, true);
  }
}

// Shows the prompt chunks of the pass to the drafts of their sequences.
void EngineImpl::follow_prompts() {
  prompts_.clear();
  for (const BatchRow& row : batch_) {
    if (!row.request->ended && row.is_prompt() && row.choice->draft != nullptr) prompts_.push_back(row.choice);
  }
  if (prompts_.empty()) return;
  const Clock::time_point start = Clock::now();
  try {
    speculator_.follow_prompts(prompts_);
  } catch (...) {
    const Failure failure = drafting_failure(std::to_string(prompts_.size()) + " prompts");
    for (const Sequence* choice : prompts_) fail_request(choice->request, failure);
  }
  const double milliseconds = milliseconds_since(start);
  for (Sequence* choice : prompts_) choice->request->draft_ms += milliseconds;
}

void EngineImpl::publish() {
  waiting_ = scheduler_.n_waiting();
  running_ = scheduler_.n_running();
  held_ = scheduler_.bytes_held();
  recorder_.stats.kv_bytes_promised = scheduler_.bytes_promised();
  recorder_.stats.speculation.fallbacks = speculator_.fallbacks();
  recorder_.stats.prefix_cache_bytes = prefixes_.bytes();
  recorder_.stats.prefix_cache_states = prefixes_.n_states();
  publish_policies();
}

PolicyStats& EngineImpl::policy_stats(const Request& request) {
  return recorder_.stats.policies[std::string(request.policy->name())];
}

void EngineImpl::publish_policies() {
  for (auto& [name, policy] : recorder_.stats.policies) policy.sequences = policy.bytes = policy.full_bytes = 0;
  for (const ScheduledSequence* sequence : scheduler_.running()) {
    const Sequence& choice = *static_cast<const Sequence*>(sequence);
    if (choice.cache == nullptr) continue;
    PolicyStats& policy = policy_stats(*choice.request);
    ++policy.sequences;
    policy.bytes += choice.cache_stats.bytes;
    policy.full_bytes += choice.cache_stats.full_bytes;
  }
  for (auto& [name, policy] : recorder_.stats.policies) {
    if (policy.sequences == 0) policy.tiers = {};
  }
}

void EngineImpl::forget(uint64_t id) {
  requests_.erase(id);
  const std::lock_guard lock(mutex_);
  if (--live_ == 0) idle_.notify_all();
}

}  // namespace smartkv
