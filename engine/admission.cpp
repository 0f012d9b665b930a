#include "engine/admission.h"

#include <random>

#include "cache/policies/calibrated/sensitivity.h"
#include "cache/presets.h"
#include "engine/log.h"
#include "engine/sampling/ebnf.h"
#include "engine/text/end_tokens.h"

namespace smartkv {
namespace {

constexpr size_t kMostKept = 64;  // policies, and as many speculations

// Returns a seed below 2^53, so that a client whose numbers are doubles can send it back.
uint64_t random_seed() {
  std::random_device device;
  return ((uint64_t{device()} << 32) | device()) >> 11;
}

// Describes the KV cache: its bytes, those of a token, and what fits.
std::string cache_text(const EngineParts& parts, int64_t bytes) {
  const ModelConfig& config = parts.model->config();
  const int64_t token_bytes = parts.model->ranks() * parts.cache_shape.bytes_per_token();
  std::string text = mebibytes(bytes);
  if (token_bytes > 0) {
    text += ", " + std::to_string(token_bytes) + " bytes a token, " + std::to_string(bytes / token_bytes) +
            " tokens uncompressed";
  }
  if (config.n_window_layers() == 0) return text;
  return text + ", and for each sequence a window of " + std::to_string(config.sliding_window) + " tokens in " +
         std::to_string(config.n_window_layers()) + " of " + std::to_string(config.n_layers) + " layers";
}

// Returns the object kept under `key`. If there is none, calls make() and keeps its result.
template <typename T, typename Make>
std::shared_ptr<const T> kept(std::map<std::string, std::shared_ptr<const T>>* objects, const std::string& key,
                              const Make& make) {
  if (const auto known = objects->find(key); known != objects->end()) return known->second;
  std::shared_ptr<const T> made = make();
  if (objects->size() >= kMostKept) objects->clear();  // requests keep their own
  return (*objects)[key] = std::move(made);
}

}  // namespace

Admission::Admission(const EngineParts& parts, const PolicyContext& context, const PolicyContext& offload_context,
                     const Speculator& speculator, PrefixCache* prefixes, int64_t vocabulary)
    : parts_(parts),
      context_(context),
      offload_context_(offload_context),
      speculator_(speculator),
      prefixes_(prefixes),
      limits_{vocabulary, parts.options.model.context_length, parts.options.max_sequences},
      memory_{.kv_cache_bytes = parts.options.kv_cache_bytes,
              .row_bytes = parts.model->config().vocab_size * static_cast<int64_t>(sizeof(float)),
              .kv_offload_bytes = parts.options.kv_offload_bytes},
      eos_(end_tokens(*parts.tokenizer, parts.model->config(), vocabulary)),
      grammars_(*parts.tokenizer, vocabulary, {eos_.begin(), eos_.end()}) {
  policy_for(nullptr, nullptr);  // throws now if the default cannot be used, rather than at the first request
  speculation_for(nullptr);
}

std::shared_ptr<const KvCachePolicy> Admission::policy_for(const nlohmann::json& spec,
                                                           const Speculation* speculation) const {
  using Kind = RequestError::Kind;
  const bool offload = offloads(speculation);
  if (offload && memory_.kv_offload_bytes == 0) {
    throw RequestError(Kind::kInvalid, "speculative.offload",
                       "speculative.offload: expected false, because the server reserves no host memory for caches "
                       "(option kv_offload_bytes), found true");
  }
  const nlohmann::json& chosen = policy_spec(spec);
  std::shared_ptr<const KvCachePolicy> policy;
  try {
    const std::lock_guard lock(mutex_);
    policy = kept(&policies_, (offload ? "offload " : "") + chosen.dump(),
                  [&] { return parts_.model->make_policy(offload ? offload_context_ : context_, chosen); });
  } catch (const CacheError& error) {
    throw RequestError(Kind::kInvalid, "kv_cache", error.what());
  }
  if (speculation != nullptr && speculation->pillar && policy->name() != "full") {
    throw RequestError(Kind::kInvalid, "speculative.kv_cache",
                       "speculative.kv_cache: \"pillar_attn\" reads the request's own cache: expected kv_cache "
                       "\"full\", found \"" +
                           std::string(policy->name()) + '"');
  }
  return policy;
}

std::shared_ptr<const Speculation> Admission::speculation_for(const nlohmann::json& field) const {
  const nlohmann::json& chosen = field.is_null() ? parts_.options.speculative : field;
  const std::lock_guard lock(mutex_);
  return kept(&speculations_, chosen.dump(), [&] { return speculator_.prepare(parse_speculation(chosen)); });
}

std::shared_ptr<const CompiledGrammar> Admission::grammar_for(const GenerationRequest& request) const {
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
    if (error.why == CompileAborted::Why::kBusy) {
      throw RequestError(Kind::kOverloaded, "grammar", error.what(), kRetrySeconds);
    }
    throw RequestError(Kind::kDraining, "", error.what());
  }
}

RequestObjects Admission::objects_of(const GenerationRequest& request) const {
  check_request(request, limits_);
  check_allowed(request, parts_.options);
  RequestObjects objects;
  objects.speculation = speculation_for(request.speculative);
  objects.policy = policy_for(request.kv_cache, objects.speculation.get());
  check_chosen("kv_cache", request.kv_cache, objects.policy.get(), parts_.options);
  if (const auto& draft = objects.speculation; draft != nullptr) {
    check_chosen("speculative.kv_cache", draft->spec.kv_cache, draft->policy.get(), parts_.options);
  }
  objects.grammar = grammar_for(request);
  const std::string problem = memory_problem(request, *objects.policy, objects.speculation.get());
  if (!problem.empty()) throw RequestError(RequestError::Kind::kTooLarge, "max_tokens", problem);
  return objects;
}

std::string Admission::memory_problem(const GenerationRequest& request, const KvCachePolicy& policy,
                                      const Speculation* speculation) const {
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t room = limits_.context_length - prompt_tokens;
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
  const int64_t bytes =
      most_cache_bytes(policy, draft, offload, prompt_tokens, prompt_tokens + output) + memory_.row_bytes;
  std::string problem = shortage(bytes, output, memory_.kv_cache_bytes, "kv_cache_bytes");
  if (!offload || !problem.empty()) return problem;
  const int64_t most = std::min(request.max_tokens, room);  // reserved when the request starts
  return shortage(request.n * policy.max_bytes(prompt_tokens, prompt_tokens + most), most, memory_.kv_offload_bytes,
                  "kv_offload_bytes");
}

// A client may lower the value of its states for good, but raise it only for a while.
Retention Admission::retention_of(const RetentionHint& hint, int64_t most_seconds) {
  constexpr double kDoubles = 10;  // steps of priority that double the value
  Retention retention;
  retention.weight = std::exp2((hint.priority - RetentionHint::kUsual) / kDoubles);
  if (retention.weight > 1) {
    retention.until = Clock::now() + std::chrono::seconds(std::min(hint.ttl_seconds, most_seconds));
  }
  return retention;
}

// Some requests do without the prefix cache:
//  - those that want log probabilities of their prompt, because these are computed with the prompt;
//  - those that offload their caches, because states would count among the device's bytes.
// A prefix hit skips the passes that would fill a mirrored draft's cache, so such a cache has states of its own. A
// pillar cache needs none, because it reads the target's cache.
void Admission::share_prefixes(Request* request) const {
  if (parts_.options.prefix_cache_bytes == 0 || request->generation.prompt_logprobs >= 0 || request->offloads()) return;
  request->prefixes = prefixes_;
  const GenerationRequest& generation = request->generation;
  request->lookup.group = generation.prompt_cache_key;
  request->lookup.owner = generation.owner;
  request->lookup.owner_bytes = generation.owner_kv_bytes;
  request->lookup.retention = retention_of(generation.retention, parts_.options.retention_seconds);
  request->prefix_key = request->policy->spec().dump() + '\n' + request->generation.cache_salt;
  const auto group = [&](const std::string& key) { return PrefixCache::group_of(key, request->generation.prompt); };
  request->prefix_group = request->draft_prefix_group = group(request->prefix_key);
  const Speculation* speculation = request->speculation.get();
  if (speculation == nullptr || !speculation->mirrored || speculation->pillar || request->max_tokens <= 1) return;
  request->draft_prefix_key = "draft " + speculation->spec.kv_cache.dump() + ' ' + request->prefix_key;
  request->draft_prefix_group = group(request->draft_prefix_key);
}

std::shared_ptr<Request> Admission::admit(GenerationRequest generation,
                                          std::shared_ptr<std::atomic<bool>> any_cancelled) const {
  RequestObjects objects = objects_of(generation);
  generation.client_gone = nullptr;  // its client may be gone while the request still runs
  auto request = std::make_shared<Request>(std::move(generation), std::move(objects), eos_, *parts_.tokenizer,
                                           limits_.context_length, random_seed(), std::move(any_cancelled));
  share_prefixes(request.get());
  return request;
}

std::vector<MemoryPlan> Admission::plan(const GenerationRequest& request) const {
  std::string too_long;
  try {
    check_request(request, limits_);
  } catch (const RequestError& error) {
    if (error.kind != RequestError::Kind::kContextLength) throw;
    too_long = error.what();
  }
  check_allowed(request, parts_.options);
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t room = std::max<int64_t>(0, limits_.context_length - prompt_tokens);
  const auto speculation = speculation_for(request.speculative);
  const PlanQuestion question{.prompt_tokens = prompt_tokens,
                              .output_tokens = std::min(request.max_tokens, room),
                              .to_the_end = request.max_tokens >= room,
                              .offloads = offloads(speculation.get())};
  const KvCachePolicy* draft = speculation == nullptr ? nullptr : speculation->policy.get();
  const auto plan_for = [&](const nlohmann::json& spec) {
    const auto policy = policy_for(spec, speculation.get());
    MemoryPlan plan = plan_memory(*policy, draft, question, memory_);
    if (plan.problem.empty() && too_long.empty()) plan.problem = memory_problem(request, *policy, speculation.get());
    plan.kv_cache = policy_spec(spec);
    if (plan.kv_cache.is_null()) plan.kv_cache = plan.policy;
    if (!too_long.empty()) plan.problem = too_long;
    return plan;
  };
  std::vector<MemoryPlan> plans = {plan_for(request.kv_cache)};
  for (const std::string& name : plannable_names(parts_.options.allowed_policies)) {
    try {
      plans.push_back(plan_for(name));
    } catch (const RequestError& error) {  // the policy cannot be used with this model
      MemoryPlan& none = plans.emplace_back();
      none.kv_cache = name;
      none.problem = error.what();
    }
  }
  return plans;
}

std::shared_ptr<const KvCachePolicy> Admission::policy_or_null(std::string_view name) const {
  try {
    return policy_for(std::string(name), nullptr);
  } catch (const RequestError&) {
    return nullptr;  // requests get the reason
  }
}

void Admission::log_served() const {
  std::string rejected;  // policies that this model cannot use, and those that requests may not name
  std::map<std::string, std::string> stand_ins;  // names of presets by what stands in
  const auto add = [](std::string* list, std::string_view name) {
    *list += (list->empty() ? "" : ", ") + std::string(name);
  };
  for (const PolicyRow& row : policy_registry()) {
    if (!allows(parts_.options.allowed_policies, row.name) || policy_or_null(row.name) == nullptr) {
      add(&rejected, row.name);
    }
  }
  for (const PolicyPreset& preset : policy_presets()) {
    const auto policy = allows(parts_.options.allowed_policies, preset.name) ? policy_or_null(preset.name) : nullptr;
    if (policy == nullptr) {
      add(&rejected, preset.name);
    } else if (!policy->stand_in().empty()) {
      add(&stand_ins[policy->stand_in()], preset.name);
    }
  }
  const nlohmann::ordered_json& of = parts_.description;
  const auto text = [&](const char* key) { return of.at(key).get<std::string>(); };
  std::string line = text("model") + ": " + text("architecture") + " (" + text("format") + "), " +
                     mebibytes(parts_.model->weight_bytes()) + " of weights (" + text("weights") +
                     "); KV cache: " + cache_text(parts_, memory_.kv_cache_bytes) +
                     "; policies: " + (rejected.empty() ? "all" : "all but " + rejected) + "; " +
                     std::to_string(of.at("threads").get<int64_t>()) + " threads, " + text("cpu_level");
  if (parts_.options.model.backend != Backend::kNative) line += ", backend " + text("backend");
  if (const int64_t ranks = parts_.model->ranks(); ranks > 1) line += ", " + std::to_string(ranks) + " ranks";
  log_info(line);
  for (const auto& [used, names] : stand_ins) log_info("presets " + names + " use " + used);
}

void Admission::list_choices(nlohmann::ordered_json* out) const {
  using Json = nlohmann::ordered_json;
  const EngineOptions& options = parts_.options;
  Json policies = Json::array(), presets = Json::array(), methods = Json::array({name(DraftMethod::kOff)});
  for (const PolicyRow& row : policy_registry()) {
    if (allows(options.allowed_policies, row.name)) policies.push_back(row.name);
  }
  for (const PolicyPreset& preset : policy_presets()) {
    if (!allows(options.allowed_policies, preset.name)) continue;
    Json& listed = presets.emplace_back(Json{{"name", preset.name}, {"summary", preset.summary}});
    const auto policy = policy_or_null(preset.name);
    if (policy == nullptr) continue;
    listed["kv_cache"] = policy->spec();
    if (!policy->stand_in().empty()) listed["stand_in"] = policy->stand_in();
  }
  if (const auto calibration = context_.load_sensitivity ? context_.load_sensitivity() : nullptr;
      calibration != nullptr) {
    (*out)["frontier"] = frontier_json(calibration->frontier);
  }
  for (const auto method : {DraftMethod::kNgram, DraftMethod::kSelf, DraftMethod::kDraftModel, DraftMethod::kAuto}) {
    if (method == DraftMethod::kDraftModel && parts_.draft_model == nullptr) continue;
    if (method == DraftMethod::kSelf && options.model.tensor_parallel > 1) continue;
    if (allows(options.allowed_speculation, name(method))) methods.push_back(name(method));
  }
  (*out)["policies"] = std::move(policies);
  (*out)["presets"] = std::move(presets);
  (*out)["speculative_methods"] = std::move(methods);
}

nlohmann::ordered_json Admission::describe() const {
  nlohmann::ordered_json result = parts_.description;
  result["context_length"] = limits_.context_length;
  result["vocab_size"] = limits_.vocab_size;
  result["eos_token_ids"] = eos_;
  result["weight_bytes"] = parts_.model->weight_bytes();
  if (parts_.int4_model != nullptr) result["int4_weight_bytes"] = parts_.int4_model->weight_bytes();
  result["kv_cache_bytes"] = memory_.kv_cache_bytes;
  if (memory_.kv_offload_bytes > 0) result["kv_offload_bytes"] = memory_.kv_offload_bytes;
  result["kv_cache_bytes_per_token"] = parts_.model->ranks() * parts_.cache_shape.bytes_per_token();
  result["sliding_window"] = context_.window.tokens;
  result["kv_cache"] = policy_for(nullptr, nullptr)->name();
  const auto speculation = speculation_for(nullptr);
  result["speculative"] = name(speculation == nullptr ? DraftMethod::kOff : speculation->spec.method);
  result["max_sequences"] = parts_.options.max_sequences;
  result["max_queue"] = parts_.options.max_queue;
  result["prefill_chunk"] = parts_.options.prefill_chunk;
  list_choices(&result);
  return result;
}

}  // namespace smartkv
