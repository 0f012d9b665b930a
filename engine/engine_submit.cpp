// The functions that any thread may call: checks, queueing, the engine's description and its statistics.
#include <algorithm>
#include <random>
#include <utility>

#include "cache/presets.h"
#include "engine/engine_impl.h"
#include "engine/request_checks.h"
#include "engine/sampling/ebnf.h"

namespace smartkv {
namespace {

constexpr size_t kMaxCachedPolicies = 64;

// Returns a seed below 2^53, so that a client whose numbers are doubles can send it back.
uint64_t random_seed() {
  std::random_device device;
  return ((uint64_t{device()} << 32) | device()) >> 11;
}

// Lists the policies, presets and speculation methods that requests may name on this server.
void list_choices(const EngineOptions& options, bool has_draft_model, nlohmann::ordered_json* out) {
  using Json = nlohmann::ordered_json;
  Json policies = Json::array(), presets = Json::array(), methods = Json::array({name(DraftMethod::kOff)});
  for (const PolicyRow& row : policy_registry()) {
    if (allows(options.allowed_policies, row.name)) policies.push_back(row.name);
  }
  for (const PolicyPreset& preset : policy_presets()) {
    if (!allows(options.allowed_policies, preset.name)) continue;
    presets.push_back({{"name", preset.name}, {"summary", preset.summary}});
  }
  for (const auto method : {DraftMethod::kNgram, DraftMethod::kSelf, DraftMethod::kDraftModel, DraftMethod::kAuto}) {
    if (method == DraftMethod::kDraftModel && !has_draft_model) continue;
    if (method == DraftMethod::kSelf && options.model.tensor_parallel > 1) continue;
    if (allows(options.allowed_speculation, name(method))) methods.push_back(name(method));
  }
  (*out)["policies"] = std::move(policies);
  (*out)["presets"] = std::move(presets);
  (*out)["speculative_methods"] = std::move(methods);
}

}  // namespace

std::shared_ptr<const KvCachePolicy> EngineImpl::policy_for(const nlohmann::json& spec, bool offload) const {
  const nlohmann::json& chosen = spec.is_null() ? parts_.options.kv_cache : spec;
  const std::string key = (offload ? "offload " : "") + chosen.dump();
  const std::lock_guard lock(policies_mutex_);
  if (const auto known = policies_.find(key); known != policies_.end()) return known->second;
  try {
    std::shared_ptr<const KvCachePolicy> policy = parts_.model->make_policy(offload ? offload_context_ : policy_context_, chosen);
    if (policies_.size() >= kMaxCachedPolicies) policies_.clear();  // requests keep their own
    return policies_[key] = std::move(policy);
  } catch (const CacheError& error) {
    throw RequestError(RequestError::Kind::kInvalid, "kv_cache", error.what());
  }
}

std::shared_ptr<const Speculation> EngineImpl::speculation_for(const nlohmann::json& field) const {
  const nlohmann::json& chosen = field.is_null() ? parts_.options.speculative : field;
  const std::string key = chosen.dump();
  const std::lock_guard lock(policies_mutex_);
  if (const auto known = speculations_.find(key); known != speculations_.end()) return known->second;
  std::shared_ptr<const Speculation> speculation = speculator_.prepare(parse_speculation(chosen));
  if (speculations_.size() >= kMaxCachedPolicies) speculations_.clear();  // requests keep their own
  return speculations_[key] = std::move(speculation);
}

std::shared_ptr<const CompiledGrammar> EngineImpl::grammar_for(const GenerationRequest& request) const {
  using Kind = RequestError::Kind;
  constexpr int kRetrySeconds = 10;
  if (request.grammar.empty()) return nullptr;
  if (eos_.empty()) throw RequestError(Kind::kInvalid, "grammar", "grammar: the model has no end-of-sequence token");
  try {
    return grammars_.compile(request.grammar, request.client_gone);
  } catch (const GrammarError& error) {
    throw RequestError(Kind::kInvalid, "grammar", std::string("grammar: ") + error.what());
  } catch (const CompileAborted& error) {
    if (error.why == CompileAborted::Why::kGone) throw RequestError(Kind::kClientGone, "", error.what());
    if (error.why == CompileAborted::Why::kBusy) throw RequestError(Kind::kOverloaded, "grammar", error.what(), kRetrySeconds);
    throw RequestError(Kind::kDraining, "", error.what());
  }
}

EngineImpl::Checked EngineImpl::check(const GenerationRequest& request) const {
  check_request(request, {vocabulary_, context_length(), parts_.options.max_sequences});
  check_allowed(request, parts_.options);
  Checked checked;
  checked.speculation = speculation_for(request.speculative);
  checked.policy = policy_beside(request.kv_cache, checked.speculation.get());
  checked.grammar = grammar_for(request);
  const std::string problem = memory_problem(request, *checked.policy, checked.speculation.get());
  if (!problem.empty()) throw RequestError(RequestError::Kind::kTooLarge, "max_tokens", problem);
  return checked;
}

std::shared_ptr<const KvCachePolicy> EngineImpl::policy_beside(const nlohmann::json& spec, const Speculation* speculation) const {
  const bool offload = offloads(speculation);
  if (offload && parts_.options.kv_offload_bytes == 0) {
    throw RequestError(RequestError::Kind::kInvalid, "speculative.offload",
                       "speculative.offload: expected false, because the server reserves no host memory for caches "
                       "(option kv_offload_bytes), found true");
  }
  auto policy = policy_for(spec, offload);
  if (speculation != nullptr && speculation->pillar && policy->name() != "full") {
    throw RequestError(RequestError::Kind::kInvalid, "speculative.kv_cache",
                       "speculative.kv_cache: \"pillar_attn\" reads the request's own cache: expected kv_cache "
                       "\"full\", found \"" + std::string(policy->name()) + '"');
  }
  return policy;
}

std::string EngineImpl::memory_problem(const GenerationRequest& request, const KvCachePolicy& policy, const Speculation* speculation) const {
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t room = context_length() - prompt_tokens;
  // A request that asks for the whole rest of the context may end early if memory runs out. Any other must fit when it
  // runs alone.
  const int64_t output = request.max_tokens < room ? request.max_tokens : std::min<int64_t>(room, 1);
  const auto shortage = [&](int64_t bytes, int64_t tokens, int64_t available, const char* option) -> std::string {
    if (bytes <= available) return {};
    return "the request may need " + std::to_string(bytes) + " bytes of KV cache (" + std::to_string(prompt_tokens) +
           " prompt and " + std::to_string(tokens) + " output tokens, policy \"" + std::string(policy.name()) +
           "\"), but the server has " + std::to_string(available) + " bytes (" + option + ")";
  };
  const bool offload = offloads(speculation);
  const KvCachePolicy* const draft = speculation == nullptr ? nullptr : speculation->policy.get();
  const int64_t bytes = most_cache_bytes(policy, draft, offload, prompt_tokens, prompt_tokens + output) +
                        config().vocab_size * static_cast<int64_t>(sizeof(float));
  std::string problem = shortage(bytes, output, parts_.options.kv_cache_bytes, "kv_cache_bytes");
  if (!offload || !problem.empty()) return problem;
  const int64_t most = std::min(request.max_tokens, room);  // reserved when the request starts
  return shortage(request.n * policy.max_bytes(prompt_tokens, prompt_tokens + most), most, parts_.options.kv_offload_bytes,
                  "kv_offload_bytes");
}

void EngineImpl::check_load(int64_t more) const {
  if (const std::string why = lost(); !why.empty()) throw RequestError(RequestError::Kind::kLost, "", why);
  if (draining_) {
    throw RequestError(RequestError::Kind::kDraining, "", "the server is shutting down and accepts no more requests");
  }
  const int64_t waiting = waiting_ + static_cast<int64_t>(submitted_.size()) + more;
  const int64_t starting = std::max<int64_t>(0, parts_.options.max_sequences - running_);
  if (waiting >= parts_.options.max_queue + starting) {
    throw RequestError(RequestError::Kind::kOverloaded, "",
                       "the server is busy: " + std::to_string(waiting) +
                           " requests are waiting, the limit of max_queue",
                       recorder_.retry_after_s(running_));
  }
}

void EngineImpl::validate(const GenerationRequest& request) const {
  try {
    check(request);
    const std::lock_guard lock(mutex_);
    check_load(0);
  } catch (const RequestError& error) {
    const std::lock_guard lock(mutex_);
    ++recorder_.stats.rejected[std::string(name(error.kind))];
    throw;
  }
}

std::unique_ptr<GenerationStream> Engine::submit(GenerationRequest request) {
  std::vector<GenerationRequest> requests;
  requests.push_back(std::move(request));
  return std::move(submit_all(std::move(requests)).front());
}

// Some requests do without the prefix cache:
//  - those that want log probabilities of their prompt, because these are computed with the prompt;
//  - those that offload their caches, because states would count among the device's bytes.
// A prefix hit skips the passes that would fill a mirrored draft's cache, so such a cache has states of its own. A
// pillar cache needs none, because it reads the target's cache.
void EngineImpl::share_prefixes(Request* request) {
  if (parts_.options.prefix_cache_bytes == 0 || request->generation.prompt_logprobs >= 0 || request->offloads()) return;
  const nlohmann::json& policy = request->generation.kv_cache.is_null() ? parts_.options.kv_cache : request->generation.kv_cache;
  request->prefixes = &prefixes_;
  request->prefix_key = policy.dump() + '\n' + request->generation.cache_salt;
  request->prefix_group = request->draft_prefix_group = PrefixCache::group_of(request->prefix_key, request->generation.prompt);
  const Speculation* speculation = request->speculation.get();
  if (speculation == nullptr || !speculation->mirrored || speculation->pillar || request->max_tokens <= 1) return;
  request->draft_prefix_key = "draft " + speculation->spec.kv_cache.dump() + ' ' + request->prefix_key;
  request->draft_prefix_group = PrefixCache::group_of(request->draft_prefix_key, request->generation.prompt);
}

std::vector<std::unique_ptr<GenerationStream>> EngineImpl::submit_all(std::vector<GenerationRequest> generations) {
  try {
    std::vector<std::shared_ptr<Request>> requests;
    std::vector<std::unique_ptr<GenerationStream>> streams;
    for (GenerationRequest& generation : generations) {
      Checked checked = check(generation);
      generation.client_gone = nullptr;  // its client may be gone while the request still runs
      requests.push_back(std::make_shared<Request>(std::move(generation), 0, eos_, *parts_.tokenizer, context_length(),
                                                   std::move(checked.policy), std::move(checked.speculation),
                                                   std::move(checked.grammar), random_seed(), any_cancelled_));
      share_prefixes(requests.back().get());
      streams.push_back(std::make_unique<QueueStream>(requests.back()->events));
    }
    {
      const std::lock_guard lock(mutex_);
      for (size_t i = 0; i < requests.size(); ++i) check_load(static_cast<int64_t>(i));
      const Clock::time_point now = Clock::now();  // the same for all of them, so that their timings can be compared
      for (const auto& request : requests) {
        request->submitted = now;
        request->id = next_id_++;
        submitted_.push_back(request);
        ++live_;
      }
    }
    work_.notify_one();
    return streams;
  } catch (const RequestError& error) {
    const std::lock_guard lock(mutex_);
    ++recorder_.stats.rejected[std::string(name(error.kind))];
    throw;
  }
}

nlohmann::ordered_json EngineImpl::describe() const {
  nlohmann::ordered_json result = parts_.description;
  result["context_length"] = context_length();
  result["vocab_size"] = vocabulary_;
  result["eos_token_ids"] = eos_;
  result["weight_bytes"] = parts_.model->weight_bytes();
  if (parts_.int4_model != nullptr) result["int4_weight_bytes"] = parts_.int4_model->weight_bytes();
  result["kv_cache_bytes"] = parts_.options.kv_cache_bytes;
  if (parts_.options.kv_offload_bytes > 0) result["kv_offload_bytes"] = parts_.options.kv_offload_bytes;
  result["kv_cache_bytes_per_token"] = parts_.model->ranks() * parts_.cache_shape.bytes_per_token();
  result["kv_cache"] = policy_for(nullptr)->name();
  result["speculative"] = speculation_for(nullptr) == nullptr ? "off" : name(speculation_for(nullptr)->spec.method);
  result["max_sequences"] = parts_.options.max_sequences;
  result["max_queue"] = parts_.options.max_queue;
  result["prefill_chunk"] = parts_.options.prefill_chunk;
  list_choices(parts_.options, parts_.draft_model != nullptr, &result);
  return result;
}

EngineStats EngineImpl::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = recorder_.stats;
  stats.requests_running = running_;
  stats.requests_waiting = waiting_ + static_cast<int64_t>(submitted_.size());
  const int64_t all = cache_bytes();
  stats.kv_bytes_used = stats.prefix_cache_states > 0 ? std::min(all, held_) : all;
  stats.prefix_cache_bytes = std::min(stats.prefix_cache_bytes, all - stats.kv_bytes_used);
  stats.kv_bytes_budget = parts_.options.kv_cache_bytes;
  if (offload_context_.pool != nullptr) {
    stats.kv_offload_bytes_used = offload_context_.pool->bytes_in_use();
    stats.kv_offload_bytes_budget = parts_.options.kv_offload_bytes;
  }
  return stats;
}

void EngineImpl::drain() {
  grammars_.stop();  // requests that wait for a grammar are not queued yet
  std::unique_lock lock(mutex_);
  draining_ = true;
  idle_.wait(lock, [this] { return live_ == 0; });
}

void EngineImpl::stop() {
  grammars_.stop();
  std::unique_lock lock(mutex_);
  draining_ = cancel_all_ = true;
  idle_.wait(lock, [this] { return live_ == 0; });
}

bool EngineImpl::draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

}  // namespace smartkv
