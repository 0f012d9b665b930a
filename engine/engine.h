// The engine: takes requests, batches them over one model, streams the results. No LibTorch type appears here.
//
// One engine thread owns the model and every cache. submit() and the handles may be used from any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/live_sequence.h"
#include "engine/memory_plan.h"
#include "engine/weights/model_config.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace smartkv {

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;        // [0, 1]; 0: the most likely token
  int32_t top_k = 0;         // 0: off
  float min_p = 0.0f;        // [0, 1]
  float repetition_penalty = 1.0f;  // over prompt and output; CTRL, Keskar et al. 2019
  float presence_penalty = 0.0f;    // [-2, 2], over the output, as OpenAI defines it
  float frequency_penalty = 0.0f;   // [-2, 2], over the output
  std::vector<std::pair<TokenId, float>> logit_bias = {};
  std::optional<uint64_t> seed = {};  // absent: the engine draws one below 2^53 and reports it
};

struct GenerationRequest {
  std::string id;               // for logs and live(): "chatcmpl-..."
  int32_t first_choice = 0;     // number of its first choice in live(): requests of several prompts have several
  std::vector<TokenId> prompt;  // at least one token
  int32_t n = 1;                // choices; they share the prompt's cache (fork)
  int64_t max_tokens = 16;
  int64_t min_tokens = 0;  // no end-of-sequence or stop before this many, unless nothing else is left
  SamplingParams sampling;
  std::string grammar;                  // that the output obeys: EBNF (sampling/constraint.h); empty: any text
  std::function<bool()> client_gone;    // asked by submit() while the grammar compiles: true ends both; null: never
  std::vector<std::string> stop;        // not part of the text that is returned
  std::vector<TokenId> stop_token_ids;  // besides the model's end-of-sequence tokens
  bool ignore_eos = false;  // but where the grammar is complete
  bool skip_special_tokens = true;  // in the text
  int32_t logprobs = -1;            // -1: none; k >= 0: the chosen token's, and the k most likely
  int32_t prompt_logprobs = -1;     // the same for every prompt token but the first (OpenAI's echo with logprobs)
  std::string cache_salt;           // only requests with the same one share computed prompts
  nlohmann::json kv_cache;          // null: the server's default; "name", or {"policy": "name", ...}
  nlohmann::json speculative;       // null: the server's default; a method, or {"method": ...}: speculation/spec.h
};

// Log probabilities are natural, of the model's own distribution (before temperature, penalties, bias and truncation).
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top;  // most likely first
};

enum class FinishReason : uint8_t {
  kNone,
  kStop,
  kLength,
  kCancelled,
  kError,
  kOutOfMemory,  // the machine had no memory for it; later it may
  kLost,         // a part of the model is gone: Engine::lost()
};

// A draft of one or more tokens, as it was verified in one pass.
struct DraftRound {
  int64_t first = 0;            // offset in the event's `tokens` of the round's first one
  int64_t accepted = 0;         // tokens[first, first + accepted) were drafted
  std::vector<TokenId> tokens;  // the draft
};

// One piece of one choice. Events of one choice come in order; the last one has finish != kNone.
struct GenerationEvent {
  int32_t choice = 0;
  std::string text;                        // whole UTF-8 characters, never part of a stop string; may be empty
  std::vector<TokenId> tokens;             // sampled since the last event; a stop token too, though not in the text
  std::vector<TokenLogprob> logprobs;      // one per token, if asked for
  std::vector<DraftRound> drafts;          // of speculative decoding, in order
  FinishReason finish = FinishReason::kNone;
  std::string error;                       // with kError, kOutOfMemory and kLost: what went wrong
  std::optional<std::string> stop_string;  // with kStop: the stop string that matched
};

// Life of a request, milliseconds, each phase seen from the request. total = queued + prefill + decode.
struct RequestTimings {
  double queued_ms = 0;         // submit to first scheduled
  double prefill_ms = 0;        // first scheduled to first token
  double decode_ms = 0;         // first token to last
  double total_ms = 0;
  double model_ms = 0;          // inside model passes that this request was part of
  double sample_ms = 0;         // sampling, stop strings and detokenization of this request
  int64_t prefill_chunks = 0;   // passes that carried prompt tokens
  int64_t decode_passes = 0;
  int64_t preemptions = 0;      // times that a choice lost its memory to older requests and was computed anew
};

struct KvCacheUsage {
  std::string policy;
  int64_t tokens = 0;       // tokens seen
  int64_t tokens_kept = 0;  // tokens still represented (average over layers)
  int64_t bytes = 0;        // held now, every byte counted
  int64_t shared_bytes = 0;  // of `bytes`, those in pages that others hold, too
  int64_t full_bytes = 0;   // what the full cache would hold for the same tokens
  std::map<std::string, double> details = {};  // of the policy, by name, of the choice that finished last
};

struct SpeculationUsage {
  std::string method = "off";
  bool exact = true;                  // the answer is plain decoding's bit for bit: Model::batch_invariant()
  int64_t drafted = 0, accepted = 0;  // tokens
  int64_t passes = 0;                 // that carried drafts
  int64_t rewinds = 0;                // passes after which the cache was cut back
  int64_t rewound_tokens = 0;         // drafted tokens that were cut out of the cache
  int64_t fallbacks = 0;              // drafting models given up, each for the rest of a choice: they failed, or gave NaN
  std::vector<int64_t> accepted_at;   // accepted tokens by their position in the draft
  double draft_ms = 0;                // drafting for this request and what was batched with it; not part of model_ms

  // Counts a pass with `n_drafted` tokens, after which the choice was `n_emitted` tokens longer.
  void add_round(int64_t n_drafted, int64_t n_accepted, int64_t n_emitted) {
    const int64_t rewound = n_drafted - (n_emitted - 1);  // the last token emitted was in no pass yet
    drafted += n_drafted;
    accepted += n_accepted;
    ++passes;
    rewinds += rewound > 0 ? 1 : 0;
    rewound_tokens += rewound;
    accepted_at.resize(std::max(accepted_at.size(), static_cast<size_t>(n_drafted)));
    for (int64_t i = 0; i < n_accepted; ++i) ++accepted_at[static_cast<size_t>(i)];
  }
  void add(const SpeculationUsage& other) {  // the counts
    drafted += other.drafted;
    accepted += other.accepted;
    passes += other.passes;
    rewinds += other.rewinds;
    rewound_tokens += other.rewound_tokens;
    fallbacks += other.fallbacks;
    accepted_at.resize(std::max(accepted_at.size(), other.accepted_at.size()));
    for (size_t i = 0; i < other.accepted_at.size(); ++i) accepted_at[i] += other.accepted_at[i];
  }
};

struct RequestUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, taken from a prefix that was already there
  int64_t completion_tokens = 0;  // over all choices
  uint64_t seed = 0;
  RequestTimings timings;
  KvCacheUsage kv_cache;
  SpeculationUsage speculation;
};

// The reader's end of a request. Destroying it cancels what still runs; its memory is freed before the next step.
class GenerationStream {
 public:
  virtual ~GenerationStream() = default;
  enum class Status : uint8_t { kEvent, kTimeout, kEnd };  // kEnd: every choice has finished and was read
  virtual Status next(GenerationEvent* event, std::chrono::milliseconds timeout) = 0;
  virtual void cancel() = 0;
  virtual const std::vector<TokenLogprob>& prompt_logprobs() const = 0;  // valid from the first event on
  virtual RequestUsage usage() const = 0;                                // final once next() returned kEnd
};

// Why a request was not taken. `param` is the request field at fault, empty where none is.
class RequestError : public std::runtime_error {
 public:
  enum class Kind : uint8_t { kInvalid, kContextLength, kTooLarge, kOverloaded, kDraining, kLost, kClientGone };
  RequestError(Kind error_kind, std::string field, const std::string& message, int retry_after = 0)
      : std::runtime_error(message), kind(error_kind), param(std::move(field)), retry_after_s(retry_after) {}
  Kind kind;
  std::string param;
  int retry_after_s;
};
// "invalid", "context_length", "too_large", "overloaded", "draining", "lost" or "client_gone".
std::string_view name(RequestError::Kind kind);

// Histogram with fixed upper bounds. Not cumulative: Prometheus' buckets are the running sums of `counts`.
struct Histogram {
  std::vector<double> bounds;
  std::vector<uint64_t> counts;  // counts[i]: observations in (bounds[i-1], bounds[i]]; the last one: above all bounds
  double sum = 0;
  uint64_t count = 0;
};

// Of all sequences of one KV-cache policy.
struct PolicyStats {
  int64_t sequences = 0;                // that hold a cache now
  int64_t bytes = 0, full_bytes = 0;    // held by them; what the full cache would hold for the same tokens
  uint64_t prompt_tokens = 0, generation_tokens = 0;  // computed and generated since the start
  TierUse tiers;                        // of all their tokens, at most kTierSeconds ago
  // Diagnostics of the sequences that finished, by CacheMetric::name: sums, and distributions over sequences.
  std::map<std::string, double> sums;
  std::map<std::string, Histogram> distributions;
};
constexpr double kTierSeconds = 1;  // each sequence's view is gone through for it: about 20 us

struct EngineStats {
  int64_t requests_running = 0, requests_waiting = 0;  // sequences decoding or prefilling; requests queued
  // Held by running sequences (bytes that only states for prompts to come hold do not count); by them once they have computed
  // what they know; at most, with logits.
  int64_t kv_bytes_used = 0, kv_bytes_promised = 0, kv_bytes_budget = 0;
  uint64_t prompt_tokens = 0, generation_tokens = 0, prefix_cache_queries = 0, prefix_cache_hits = 0;
  uint64_t steps = 0;
  uint64_t preemptions = 0, recomputed_tokens = 0;  // tokens after preemptions and failed passes
  uint64_t logit_check_tokens = 0;                  // computed anew to compare logits (SequenceCache::wants_check)
  // Held for prompts to come. The bytes are those that no running sequence holds, so kv_bytes_used + prefix_cache_bytes is at
  // most what all caches hold.
  int64_t prefix_cache_bytes = 0, prefix_cache_states = 0;
  int64_t kv_offload_bytes_used = 0, kv_offload_bytes_budget = 0;  // in the host's memory; a budget of 0: none
  std::map<std::string, uint64_t> finished;  // by reason: "stop", "length", "abort", "error"
  std::map<std::string, uint64_t> rejected;  // requests that submit() refused, by name(RequestError::Kind)
  SpeculationUsage speculation;  // of all requests; `method` says nothing
  std::map<std::string, PolicyStats> policies;  // by KvCachePolicy::name() of those that were used
  Histogram time_to_first_token, time_per_output_token, e2e_latency, queue_time;
};

struct EngineOptions {
  std::filesystem::path model;       // GGUF file or Hugging Face folder
  std::string dtype = "auto";        // auto | bf16 | f16 | f32: type of activations; auto: bf16; f16: of backend torch
  std::string weights = "auto";      // auto | file | bf16 | f32 | int8 | int4: storage of the weights (engine/model/llama.h)
  std::string backend = "native";    // native | torch: what computes the products; drafts are always native
  std::string device = "cpu";        // cpu | cuda:N, of backend torch
  std::string cuda_graphs = "auto";  // auto | on | off: of small passes; auto: on a GPU, with tensor_parallel 1
  int tensor_parallel = 1;           // processes that compute the model together, of backend torch (engine/parallel/)
  int threads = 0;                   // of all of them together; 0: every core of the machine that this process may use
  int64_t context_length = 0;        // 0: the model's own, times the factor of rope_scaling if it has one
  // For contexts beyond the model's own: null; linear, dynamic or yarn; or {"type": one of these, "factor": F}. Without a factor
  // it is context_length over the model's own.
  nlohmann::json rope_scaling;
  int64_t kv_cache_bytes = 0;        // 0: half of the memory that is free once the model is loaded
  int64_t kv_offload_bytes = 0;      // of the host's memory, for caches of requests that ask for it; not of backend native; 0: none
  int64_t prefix_cache_bytes = -1;   // of kv_cache_bytes, for prompts that come again; -1: all that nobody needs; 0: off
  std::filesystem::path prefix_cache_dir;  // where they survive a restart; empty: nowhere
  int64_t prefix_cache_dir_bytes = int64_t{4} << 30;  // of all files there; those used longest ago go first
  int64_t max_sequences = 32;        // decoding side by side
  int64_t max_queue = 256;           // requests waiting; one more is refused (429)
  int64_t prefill_chunk = 512;       // token budget of one step
  std::string chat_template_file;    // overrides the model's own
  nlohmann::json kv_cache;           // default policy; null: "full"
  nlohmann::json speculative;        // default method; null: off
  std::filesystem::path draft_model;     // GGUF file or Hugging Face folder of a smaller model that drafts; empty: none
  std::string draft_weights = "none";    // none | int4: a 4-bit copy of the model, for method "self"
  std::map<std::string, std::filesystem::path> gates;  // files of learned gates, by the name that requests use
  std::map<std::string, std::filesystem::path> channel_worth;  // files of train-probe, for channel_packed, by the name that requests use
  std::vector<std::string> allowed_policies;     // that requests may name, presets too; empty: all
  std::vector<std::string> allowed_speculation;  // methods that requests may name ("off" always); empty: all
};

class Engine {
 public:
  // Loads everything; throws ModelError, TokenizerError, ChatTemplateError, CacheError for the gates, or RequestError
  // for the default kv_cache and speculative and the lists of what is allowed. `progress` gets 0..1 while loading.
  static std::unique_ptr<Engine> create(const EngineOptions& options,
                                        const std::function<void(double, const std::string&)>& progress = nullptr);
  virtual ~Engine() = default;

  // Queues a request; throws RequestError when it cannot be served now or ever. Thread-safe.
  std::unique_ptr<GenerationStream> submit(GenerationRequest request);
  // Queues all of them or none. Those that there is room for start in the same pass.
  virtual std::vector<std::unique_ptr<GenerationStream>> submit_all(std::vector<GenerationRequest> requests) = 0;
  // Checks what submit() would check, without queueing.
  virtual void validate(const GenerationRequest& request) const = 0;

  virtual const Tokenizer& tokenizer() const = 0;
  virtual const ChatTemplate* chat_template() const = 0;  // nullptr: the model has none
  virtual const ModelConfig& config() const = 0;
  virtual int64_t context_length() const = 0;
  virtual nlohmann::ordered_json describe() const = 0;  // model, dtype, backend, memory, threads, CPU level, policies
  virtual EngineStats stats() const = 0;                // thread-safe, cheap
  // All that has not finished, by age, as it stood between two passes: thread-safe, waits for the pass that runs. Questions
  // during one pass get one answer. `layer`: whose spans to tell; absent: none. Throws RequestError for a layer that is not.
  virtual std::vector<LiveSequence> live(std::optional<int64_t> layer) const = 0;
  // What a request would take: under its own policy, then under every one that it may name, first the presets. It is not run,
  // and may be too large. Throws RequestError (kInvalid) as submit() would.
  virtual std::vector<MemoryPlan> plan(const GenerationRequest& request) const = 0;

  virtual void drain() = 0;  // takes no more requests; returns when the running ones have finished
  virtual void stop() = 0;   // cancels everything; returns when the engine thread is idle
  virtual bool draining() const = 0;

  // Why nothing is answered any more: with tensor_parallel, a rank ended. Empty: all is well. Thread-safe.
  virtual std::string lost() const { return {}; }
  // Called once when that happens, by any thread; null: nothing is.
  virtual void on_lost(std::function<void()> call) { (void)call; }
};

}  // namespace smartkv
