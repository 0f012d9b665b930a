// The engine over any Model. One thread owns the model and every cache: it schedules, runs a pass, samples, settles and
// delivers. Other threads leave it their requests and read what it published; nothing slow happens under the lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cache/policy.h"
#include "cache/prefix_cache.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/request.h"
#include "engine/sample.h"
#include "engine/sampling/constraint.h"
#include "engine/scheduler.h"
#include "engine/speculation/speculator.h"
#include "engine/stats_recorder.h"
#include "kernels/thread_pool.h"

namespace smartkv {

struct EngineParts {
  EngineOptions options;  // kv_cache_bytes and context_length resolved
  std::unique_ptr<ThreadPool> threads;  // what the model runs on; may be null
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;  // may be null
  CacheShape cache_shape;
  std::string model_identity, draft_identity;  // by which gates that ship are found
  std::string prefix_identity;  // of options.prefix_cache_dir
  std::unique_ptr<Model> draft_model;  // may be null; its tokens are the model's own
  CacheShape draft_shape;
  std::unique_ptr<Model> int4_model;  // a 4-bit copy of the model; may be null
  nlohmann::ordered_json description;  // what describe() says of the model
};

class EngineImpl final : public Engine {
 public:
  // Throws RequestError when options.kv_cache or options.speculative is not usable.
  explicit EngineImpl(EngineParts parts);
  ~EngineImpl() override;

  std::vector<std::unique_ptr<GenerationStream>> submit_all(std::vector<GenerationRequest> requests) override;
  void validate(const GenerationRequest& request) const override;

  const Tokenizer& tokenizer() const override { return *parts_.tokenizer; }
  const ChatTemplate* chat_template() const override { return parts_.chat_template.get(); }
  const ModelConfig& config() const override { return parts_.model->config(); }
  int64_t context_length() const override { return parts_.options.context_length; }
  nlohmann::ordered_json describe() const override;
  EngineStats stats() const override;
  std::vector<LiveSequence> live(std::optional<int64_t> layer) const override;
  std::vector<MemoryPlan> plan(const GenerationRequest& request) const override;

  void drain() override;
  void stop() override;
  bool draining() const override;
  std::string lost() const override { return parts_.model->lost(); }
  void on_lost(std::function<void()> call) override;

 private:
  struct Checked {
    std::shared_ptr<const KvCachePolicy> policy;
    std::shared_ptr<const Speculation> speculation;
    std::shared_ptr<const CompiledGrammar> grammar;
  };
  // What one sequence contributes to a pass.
  struct BatchRow {
    std::shared_ptr<Request> request;
    Sequence* choice = nullptr;
    int64_t n_tokens = 0, n_logits = 0;
    bool samples = false;         // the pass reaches its last token
    bool decodes = false;         // the pass carries its last token and what was drafted, and nothing else
    const float* logits = nullptr;
    std::optional<kernels::TokenDraw> draw;  // by the model, in place of logits
    std::exception_ptr failure;   // of this sequence alone
    GenerationEvent event;        // what was sampled

    // Its tokens were known, as a prompt's are, and those of an answer that is computed anew.
    bool is_prompt() const { return choice->n_output == 0 || !samples; }
  };

  // Asked by any number of threads during one pass, answered after it.
  struct LiveQuestion {
    std::promise<std::vector<LiveSequence>> promise;
    std::shared_future<std::vector<LiveSequence>> answer;
  };

  // Any thread. Each throws RequestError.
  Checked check(const GenerationRequest& request) const;
  void check_load(int64_t more) const;  // mutex_ held; `more`: requests that are about to be queued before this one
  void share_prefixes(Request* request);
  std::shared_ptr<const KvCachePolicy> policy_for(const nlohmann::json& spec, bool offload = false) const;
  // The policy of a request with this speculation, which may be null. Throws also where the two do not go together.
  std::shared_ptr<const KvCachePolicy> policy_beside(const nlohmann::json& spec, const Speculation* speculation) const;
  // Returns why the request would have too little memory even if it ran alone. Empty if it would have enough.
  std::string memory_problem(const GenerationRequest& request, const KvCachePolicy& policy, const Speculation* speculation) const;
  std::shared_ptr<const Speculation> speculation_for(const nlohmann::json& field) const;
  std::shared_ptr<const CompiledGrammar> grammar_for(const GenerationRequest& request) const;  // null where it has none

  // The engine thread.
  void run();
  bool step();                                 // false: the engine is to end
  void step_failed(const std::exception_ptr& exception) noexcept;
  bool take_submitted();                       // false: the engine is to end
  void end_cancelled();
  void end_lost();                             // all requests, once a part of the model is gone
  void answer_live_questions();
  void count_tiers();                          // not more often than once in kTierSeconds
  int64_t cache_bytes() const;                 // that all caches hold, on all ranks
  int64_t free_bytes() const;
  void plan_batch();
  void look_up_prefixes();
  bool waits_for_files();
  std::optional<int64_t> waits_for_prefix(const Sequence& waiting);
  void end_stuck(Sequence* choice);
  void draft();                                // drafts for the batch; drops requests that cannot go on
  int64_t room_for_logits() const;             // bytes that the batch leaves free
  void trim_logits(int64_t n_rows);            // frees the buffer if it is larger than a pass of n_rows and memory is short
  void run_pass();
  bool run_model();                            // false: the pass failed
  void prepare_draws();                        // where the model draws tokens
  void for_rows(const std::function<void(BatchRow*, SamplingScratch*)>& work);  // those of samples_, on all threads
  void pass_failed(const Failure& failure);
  void take_results();
  void count_tokens(const BatchRow& row);
  void take_prompt_chunks();
  void take_prompt_chunk(BatchRow* row);
  void end_prompt(const BatchRow& row);
  void follow_prompts();
  void sample();
  void settle(Sequence* choice, const GenerationEvent& event);
  void deliver(Request* request, Sequence* choice, GenerationEvent event);
  void finish_choice(Request* request, Sequence* choice, GenerationEvent event);
  void end_request(Request* request, FinishReason reason, const std::string& error = "");
  void fail_request(Request* request, const Failure& failure);
  void fail_request(Request* request, const std::exception_ptr& exception) noexcept;
  void abort_request(Request* request, FinishReason reason, const char* error) noexcept;  // allocates nothing
  void publish();                              // mutex_ held: the gauges that other threads see
  PolicyStats& policy_stats(const Request& request);  // mutex_ held
  void publish_policies();
  void forget(uint64_t id);

  EngineParts parts_;
  PolicyContext policy_context_, draft_context_, offload_context_;
  int64_t vocabulary_;  // tokens that both the model and the tokenizer know
  std::set<TokenId> eos_;
  mutable GrammarCompiler grammars_;
  Speculator speculator_;

  mutable std::mutex policies_mutex_;
  mutable std::map<std::string, std::shared_ptr<const KvCachePolicy>> policies_;  // by spec
  mutable std::map<std::string, std::shared_ptr<const Speculation>> speculations_;      // by field

  mutable std::mutex mutex_;  // everything below, up to the engine thread's own
  mutable std::condition_variable work_;
  std::condition_variable idle_;
  std::vector<std::shared_ptr<Request>> submitted_;  // not yet seen by the engine thread
  int64_t live_ = 0;                                 // requests that have not ended
  int64_t waiting_ = 0, running_ = 0, held_ = 0;     // as the engine thread last said
  mutable StatsRecorder recorder_;  // validate() counts what it refuses
  mutable std::map<std::optional<int64_t>, LiveQuestion> live_questions_;  // by layer
  uint64_t next_id_ = 0;
  bool draining_ = false, cancel_all_ = false, exit_ = false;

  std::shared_ptr<std::atomic<bool>> any_cancelled_ = std::make_shared<std::atomic<bool>>(false);  // since it was looked at

  std::mutex on_lost_mutex_;
  std::function<void()> on_lost_;

  // The engine thread's own.
  std::unique_ptr<PrefixFiles> prefix_files_;  // null: none
  PrefixCache prefixes_;
  Scheduler scheduler_;
  std::unordered_map<uint64_t, std::shared_ptr<Request>> requests_;
  Scheduler::Plan plan_;
  std::vector<BatchRow> batch_;
  std::vector<DraftJob> draft_jobs_;
  std::vector<Sequence*> prompts_;  // whose chunk was in the pass
  std::vector<BatchRow*> samples_;
  std::vector<SequenceInput> inputs_;
  std::vector<float> logits_;  // scratch of a draft's passes and then of the pass, counted while the pass is planned
  std::vector<SamplingScratch> sampling_;  // one for each thread
  Clock::time_point tiers_counted_;
  int64_t failed_steps_ = 0;  // in a row
  bool takes_results_ = false;  // the rows of the batch may be sampled and not delivered

  std::thread thread_;
};

}  // namespace smartkv
