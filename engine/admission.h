// Checks requests and prepares them for the engine's queue, before the engine thread sees them.
//
// It decides whether a request enters the queue. The Scheduler, which admits sequences to passes, decides when it runs.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cache/prefix_cache.h"
#include "engine/engine_parts.h"
#include "engine/request.h"
#include "engine/request_checks.h"
#include "engine/sampling/constraint.h"
#include "engine/speculation/speculator.h"

namespace smartkv {

// Makes what a request needs (RequestObjects). Keeps the latest policies, methods and grammars, a bounded number of
// each, for later requests with the same fields. Any thread but the engine thread may call any function. The work is
// done on the caller's thread, except that GrammarCompiler has threads of its own.
class Admission {
 public:
  // All arguments outlive this object. `vocabulary` is the number of tokens that both the model and the tokenizer know.
  // Requests get the address of `prefixes`, which only the engine thread uses. Throws RequestError if options.kv_cache
  // or options.speculative cannot be used with the model.
  Admission(const EngineParts& parts, const PolicyContext& context, const PolicyContext& offload_context,
            const Speculator& speculator, PrefixCache* prefixes, int64_t vocabulary);

  // Checks a request, waits until its grammar is compiled, and returns what the engine thread needs to run it. The id
  // is for the queue to set. Throws RequestError. `any_cancelled` is as for EventQueue.
  std::shared_ptr<Request> admit(GenerationRequest generation, std::shared_ptr<std::atomic<bool>> any_cancelled) const;
  // Checks a request as admit() does. Throws RequestError.
  void check(const GenerationRequest& request) const { objects_of(request); }
  std::vector<MemoryPlan> plan(const GenerationRequest& request) const;  // Engine::plan()
  // Logs in one line what is served, and which presets use something in place of what this model lacks.
  void log_served() const;
  nlohmann::ordered_json describe() const;  // Engine::describe()
  // Ends every compilation of a grammar. From now on requests with a grammar are refused.
  void stop() { grammars_.stop(); }

 private:
  // Returns the policy or preset of this name, or null if this model lacks something that it needs.
  std::shared_ptr<const KvCachePolicy> policy_or_null(std::string_view name) const;
  // Lists the policies, presets and speculation methods that requests may name on this server.
  void list_choices(nlohmann::ordered_json* out) const;
  // Each of these may throw RequestError.
  RequestObjects objects_of(const GenerationRequest& request) const;  // checks all fields
  // Returns the policy of a kv_cache field. Checks that it can be combined with the speculation, which may be null.
  std::shared_ptr<const KvCachePolicy> policy_for(const nlohmann::json& spec, const Speculation* speculation) const;
  // Returns the method of a request's speculative field. Null if that is "off".
  std::shared_ptr<const Speculation> speculation_for(const nlohmann::json& field) const;
  // Waits until the request's grammar is compiled. Returns null if it has none.
  std::shared_ptr<const CompiledGrammar> grammar_for(const GenerationRequest& request) const;

  // Returns why the request would have too little memory even if it ran alone. Empty if it would have enough.
  std::string memory_problem(const GenerationRequest& request, const KvCachePolicy& policy,
                             const Speculation* speculation) const;
  static Retention retention_of(const RetentionHint& hint, int64_t most_seconds);
  // Lets the request use the prefix cache, unless something about it forbids that.
  void share_prefixes(Request* request) const;
  const nlohmann::json& policy_spec(const nlohmann::json& spec) const {
    return spec.is_null() ? parts_.options.kv_cache : spec;
  }

  const EngineParts& parts_;
  const PolicyContext& context_;
  const PolicyContext& offload_context_;  // without a pool if no memory is set aside for offloading
  const Speculator& speculator_;          // prepare() only, which any thread may call
  PrefixCache* const prefixes_;           // of the engine thread; never dereferenced here
  const RequestLimits limits_;
  const PlanMemory memory_;
  const std::set<TokenId> eos_;  // end-of-sequence tokens
  mutable GrammarCompiler grammars_;

  mutable std::mutex mutex_;  // guards the members below
  // By request field, each up to kMostKept.
  mutable std::map<std::string, std::shared_ptr<const KvCachePolicy>> policies_;
  mutable std::map<std::string, std::shared_ptr<const Speculation>> speculations_;
};

}  // namespace smartkv
