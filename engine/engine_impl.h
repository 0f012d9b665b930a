// The engine over any Model: one thread that admits, batches, runs, samples and delivers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cache/policy.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/request.h"
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

  void drain() override;
  void stop() override;
  bool draining() const override;

 private:
  struct Checked {
    std::shared_ptr<const KvCachePolicy> policy;
    std::shared_ptr<const Speculation> speculation;
    ScheduledRequest scheduled;
  };
  struct BatchRow {
    std::shared_ptr<Request> request;
    ScheduleItem item;
    int64_t n_logits = 0;
  };

  // Any thread. Each throws RequestError.
  Checked check(const GenerationRequest& request) const;
  void check_load() const;  // mutex_ held
  void queue(std::span<const std::shared_ptr<Request>> requests, std::span<ScheduledRequest> scheduled);
  std::shared_ptr<const KvCachePolicy> policy_for(const nlohmann::json& spec) const;
  std::shared_ptr<const Speculation> speculation_for(const nlohmann::json& field) const;

  // The engine thread.
  void run();
  void end_cancelled();
  void plan_batch();
  int64_t prompt_boundary(Request* request);  // makes the sequence when it has none yet
  void draft();                               // drafts for the batch; drops requests that cannot go on
  void run_pass();
  bool run_model();                           // false: the pass failed, and its requests have ended
  void take_results();
  void follow_prompts();
  void take_prompt_chunk(Request* request, const BatchRow& row, const float* logits);
  void take_round(Request* request, Choice* choice, const float* logits);
  void settle(Choice* choice, const GenerationEvent& event);
  void deliver(Request* request, Choice* choice, GenerationEvent event);
  void set_cache_stats(Choice* choice);
  void drop_cache(Choice* choice);
  void finish_choice(Request* request, Choice* choice, GenerationEvent event);
  void end_request(Request* request, FinishReason reason, const std::string& error = "");
  void forget(uint64_t id);

  EngineParts parts_;
  PolicyContext policy_context_, draft_context_;
  std::set<TokenId> eos_;
  int64_t vocabulary_;  // tokens that both the model and the tokenizer know
  Speculator speculator_;

  mutable std::mutex policies_mutex_;
  mutable std::map<std::string, std::shared_ptr<const KvCachePolicy>> policies_;  // by spec
  mutable std::map<std::string, std::shared_ptr<const Speculation>> speculations_;      // by field

  mutable std::mutex mutex_;  // everything below, up to the engine thread's own
  std::condition_variable work_, idle_;
  Scheduler scheduler_;
  std::unordered_map<uint64_t, std::shared_ptr<Request>> requests_;
  StatsRecorder recorder_;
  uint64_t next_id_ = 0;
  bool draining_ = false, cancel_all_ = false, exit_ = false;

  std::atomic<int64_t> kv_bytes_used_{0};
  mutable std::atomic<uint64_t> rejected_{0};

  // The engine thread's own.
  std::vector<ScheduleItem> items_;
  std::vector<BatchRow> batch_;
  std::vector<DraftJob> draft_jobs_;
  std::vector<Request*> prompts_;  // whose chunk was in the pass
  std::vector<SequenceInput> inputs_;
  std::vector<float> logits_;
  SamplingScratch sampling_;

  std::thread thread_;
};

}  // namespace smartkv
