// The engine over any Model.
//
// The engine thread owns the model and every cache. In each step it schedules sequences, runs one model pass, samples
// from its logits, commits or truncates the caches, and delivers the tokens. Other threads check requests (Admission),
// queue them, and read the statistics that the engine thread publishes. Nothing slow happens under the lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/prefix_cache.h"
#include "engine/admission.h"
#include "engine/engine_parts.h"
#include "engine/request.h"
#include "engine/sample.h"
#include "engine/scheduler.h"
#include "engine/speculation/speculator.h"
#include "engine/stats_recorder.h"

namespace smartkv {

class EngineImpl final : public Engine {
 public:
  // Starts the engine thread. Throws CacheError if a gate cannot be opened, and RequestError if options.kv_cache or
  // options.speculative cannot be used with the model.
  explicit EngineImpl(EngineParts parts);
  ~EngineImpl() override;

  std::vector<std::unique_ptr<GenerationStream>> submit_all(std::vector<GenerationRequest> requests) override;
  void validate(const GenerationRequest& request) const override;

  const Tokenizer& tokenizer() const override { return *parts_.tokenizer; }
  const ChatTemplate* chat_template() const override { return parts_.chat_template.get(); }
  const ModelConfig& config() const override { return parts_.model->config(); }
  int64_t context_length() const override { return parts_.options.model.context_length; }
  nlohmann::ordered_json describe() const override { return admission_.describe(); }
  EngineStats stats() const override;
  std::vector<LiveSequence> live(std::optional<int64_t> layer) const override;
  std::vector<PrefixListing> prefixes(int64_t most) const override;
  std::vector<MemoryPlan> plan(const GenerationRequest& request) const override { return admission_.plan(request); }

  void log_served() const { admission_.log_served(); }  // REQUIRES: EngineParts::description is set

  void drain() override;
  void stop() override;
  bool draining() const override;
  std::string lost() const override { return parts_.model->lost(); }
  void on_lost(std::function<void()> call) override { parts_.model->on_lost(std::move(call)); }

 private:
  // The part of a pass that one sequence contributes, and its results.
  struct BatchRow {
    std::shared_ptr<Request> request;
    Sequence* choice = nullptr;
    int64_t n_tokens = 0, n_logits = 0;
    bool samples = false;                       // whether the pass reaches the sequence's last known token
    bool decodes = false;                       // whether the pass carries only the last known token and its draft
    const float* logits = nullptr;              // first row in logits_; take_prompt_chunk() moves it to the last one
    std::optional<kernels::DeviceSample> draw;  // set if the device sampler draws the token; the host gets no logits
    std::exception_ptr failure;                 // an error that ends this sequence alone
    GenerationEvent event;                      // the sampled tokens

    // Returns whether the pass computes a part of a prompt, or recomputes tokens without reaching the last one. A pass
    // that recomputes tokens and reaches the last one continues the answer, so this is false; so is `decodes`, because
    // the pass takes longer than decoding does.
    bool is_prompt() const { return choice->n_output == 0 || !samples; }
  };

  // A question of live() about one layer, or about none, or of prefixes(). All threads that ask it during one pass
  // share the answer, which the engine thread gives after the pass.
  template <typename T>
  struct Question {
    std::promise<std::vector<T>> promise;
    std::shared_future<std::vector<T>> answer = promise.get_future().share();
  };

  // For any thread. Throws RequestError if the queue takes no request now. `more` requests are about to be queued ahead
  // of this one. REQUIRES: mutex_ is held.
  void check_load(int64_t more) const;

  // For the engine thread only.
  void run();
  bool step();  // returns false if the engine is to end
  void step_failed(const std::exception_ptr& exception) noexcept;
  bool take_submitted();  // sleeps until there is work; returns false if the engine is to end
  void end_cancelled();
  void end_lost();  // ends all requests once a part of the model is gone
  void answer_live_questions();
  void count_tiers();  // updates PolicyStats::tiers, at most once in kTierSeconds
  // Returns the bytes that all caches hold on all tensor-parallel ranks, without those in kv_offload_bytes.
  int64_t cache_bytes() const;
  int64_t free_bytes() const;  // kv_cache_bytes less cache_bytes(); may be negative
  void plan_batch();
  void log_step(double pass_ms) const;  // at level debug
  static void log_preemption(const Scheduler::Preemption& preemption);
  static void log_resumption(const Sequence& choice, double waited_ms);
  void look_up_prefixes();
  bool waits_for_files();
  std::optional<int64_t> waits_for_prefix(const Sequence& waiting);
  void end_stuck(Sequence* choice);
  void draft();                     // drafts for the batch; ends requests whose drafting fails
  int64_t room_for_logits() const;  // bytes that are free once the batch's caches have grown
  // Frees logits_ if it is larger than a pass of n_rows rows needs and than the batch leaves room for.
  void trim_logits(int64_t n_rows);
  void run_pass();
  bool run_model();      // returns false if the whole pass failed
  void prepare_draws();  // sets BatchRow::draw, if the model has a device sampler
  // Calls `work` for each row of samples_, on all threads.
  void for_rows(const std::function<void(BatchRow*, SamplingScratch*)>& work);
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
  // Ends the request without allocating memory of its own. REQUIRES: `error` is a literal.
  void abort_request(Request* request, FinishReason reason, const char* error) noexcept;
  // Counts the request as finished, unless it is counted already. Allocates no memory. REQUIRES: mutex_ is held.
  void count_finished(Request* request, FinishReason reason, const RequestTimings& timings);
  // Updates the gauges that other threads read. REQUIRES: mutex_ is held.
  void publish();
  PolicyStats& policy_stats(const Request& request);  // REQUIRES: mutex_ is held
  void publish_policies();                            // REQUIRES: mutex_ is held
  void forget(uint64_t id);                           // removes an ended request; may destroy it

  EngineParts parts_;
  // Contexts of the model's caches, of the draft model's, and of the model's in the host's memory. The last two have no
  // pool if there is no draft model, or no memory to offload to.
  PolicyContext policy_context_, draft_context_, offload_context_;
  int64_t vocabulary_;     // tokens that both the model and the tokenizer know
  Speculator speculator_;  // prepare() for any thread, the rest for the engine thread
  Admission admission_;

  mutable std::mutex mutex_;  // guards the members below, up to exit_
  mutable std::condition_variable work_;
  std::condition_variable idle_;
  std::vector<std::shared_ptr<Request>> submitted_;  // not yet seen by the engine thread
  int64_t live_ = 0;                                 // requests that have not ended
  int64_t waiting_ = 0, running_ = 0, held_ = 0;     // sequences, sequences and bytes, as last published
  mutable StatsRecorder recorder_;                   // mutable, because validate() counts the requests that it refuses
  mutable std::map<std::optional<int64_t>, Question<LiveSequence>> live_questions_;  // by layer
  mutable std::optional<Question<PrefixListing>> prefix_question_;
  uint64_t next_id_ = 0;
  bool draining_ = false, cancel_all_ = false, exit_ = false;

  // Set when a request is cancelled; cleared when the engine thread looks for cancelled requests.
  std::shared_ptr<std::atomic<bool>> any_cancelled_ = std::make_shared<std::atomic<bool>>(false);

  // Members that only the engine thread uses.
  std::unique_ptr<PrefixFiles> prefix_files_;  // null if states are not kept in files
  PrefixCache prefixes_;
  Scheduler scheduler_;
  std::unordered_map<uint64_t, std::shared_ptr<Request>> requests_;  // by Request::id
  Scheduler::Plan plan_;
  std::vector<BatchRow> batch_;
  std::vector<DraftJob> draft_jobs_;
  std::vector<Sequence*> prompts_;  // scratch of follow_prompts(): sequences with a prompt chunk in the pass
  std::vector<BatchRow*> samples_;  // rows that for_rows() visits
  std::vector<SequenceInput> inputs_;
  // Logits of the draft's passes, then of the model's pass. Memory for them is set aside when the pass is planned.
  std::vector<float> logits_;
  std::vector<SamplingScratch> sampling_;  // one for each thread
  Clock::time_point tiers_counted_;
  int64_t failed_steps_ = 0;    // steps in a row that threw
  bool takes_results_ = false;  // while true, tokens of the batch may be sampled but not delivered

  std::thread thread_;
};

}  // namespace smartkv
