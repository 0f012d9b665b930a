// The engine accepts requests, batches them over one model and streams the results. No LibTorch type appears here.
//
// One engine thread owns the model and every cache. Any thread may call Engine's functions. A stream is read by one
// thread at a time, but any thread may cancel it. It may outlive the engine.
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

#include "cache/frontier.h"
#include "cache/prefix_listing.h"
#include "engine/live_sequence.h"
#include "engine/memory_plan.h"
#include "engine/model/model_options.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"
#include "engine/weights/model_config.h"

namespace smartkv {

// Ranges: engine/sampling/sampling_fields.h.
struct SamplingParams {
  float temperature = 1.0f;  // 0 samples greedily
  float top_p = 1.0f;        // 0 leaves the most likely token only
  int32_t top_k = 0;         // 0 and -1 turn it off
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // applies to prompt and output (CTRL, Keskar et al. 2019)
  float presence_penalty = 0.0f;    // applies to the output, as OpenAI defines it
  float frequency_penalty = 0.0f;   // applies to the output
  std::vector<std::pair<TokenId, float>> logit_bias = {};
  std::optional<uint64_t> seed = {};  // if absent, the engine chooses one below 2^53 and reports it
};

// The thinking of an answer: text between two marks, before the text that answers. A grammar and stop strings apply
// outside of it.
struct Thinking {
  std::string open, close;  // the marks; special tokens count with their content
  bool opened = false;      // whether the prompt ends within the thinking
  bool repeats = false;     // whether an answer without a grammar may think more than once
  bool always = false;      // whether an answer with a grammar must think before it
  // Tokens that begin the thinking of an answer with a grammar; tokens that end the thinking once its budget is spent;
  // tokens that come between the thinking and the answer. The last come by force after a spent budget and before a
  // grammar.
  std::vector<TokenId> opening, closing, between;
  int64_t budget = -1;  // most tokens of thinking, marks not counted; -1: no limit
};

// How much a client wants its request's states to stay, beside what the server learns.
struct RetentionHint {
  static constexpr int32_t kUsual = 50, kRaised = 60;
  static constexpr int64_t kUsualSeconds = 300;
  int32_t priority = kUsual;  // 0 to 100; 10 more double the value by which states are evicted
  // Seconds for which a priority above kUsual counts. EngineOptions::retention_seconds is the limit.
  int64_t ttl_seconds = kUsualSeconds;
};

struct GenerationRequest {
  std::string id;  // "chatcmpl-...", for logs and live()
  // Number of the first choice in live(). An API request with several prompts becomes several GenerationRequests of
  // one id.
  int32_t first_choice = 0;
  std::vector<TokenId> prompt;  // at least one token
  int32_t n = 1;                // number of choices; they fork the prompt's cache
  // At least 0. The end of the context may end the answer earlier. With 0 only the prompt is computed.
  int64_t max_tokens = 16;
  // At most max_tokens. Until so many tokens are sampled, stop strings are ignored, and a token that would end the
  // answer is sampled only if the grammar allows no other.
  int64_t min_tokens = 0;
  SamplingParams sampling;
  std::string grammar;  // EBNF that the output must match (sampling/constraint.h); empty allows any text
  // submit() calls this while it compiles the grammar. If it returns true, the client has left and submit() throws
  // kClientGone. May be null.
  std::function<bool()> client_gone;
  std::vector<std::string> stop;        // end the answer; not included in the returned text
  std::vector<TokenId> stop_token_ids;  // end the answer, like the model's end-of-sequence tokens
  bool ignore_eos = false;              // continue after an end-of-sequence token, unless the grammar is complete
  bool skip_special_tokens = true;      // omit special tokens from the text
  std::vector<TokenId> shown_special;   // special tokens that are part of the text in any case
  std::optional<Thinking> thinking;     // absent if the answer has no marks of thinking
  // -1: no log probabilities. k >= 0: those of the sampled token and of the k most likely ones.
  int32_t logprobs = -1;
  // The same for every prompt token except the first (OpenAI's echo with logprobs). A request with prompt_logprobs does
  // not use the prefix cache.
  int32_t prompt_logprobs = -1;
  std::string cache_salt;        // prompts share prefixes only with requests of the same salt
  std::string prompt_cache_key;  // requests of one key share what is learned about when their states are used
  RetentionHint retention;
  std::string owner;           // whose states may take owner_kv_bytes of memory
  int64_t owner_kv_bytes = 0;  // 0 for no limit
  // Tokens at which the messages of a chat begin, ascending, for RequestUsage::diverged_message. May be empty.
  std::vector<int64_t> message_starts;
  nlohmann::json kv_cache;     // "name" or {"policy": "name", ...}; null selects the server's default
  nlohmann::json speculative;  // method or {"method": ...} (speculation/spec.h); null selects the server's default
};

// Natural log probabilities of the model's own distribution: before temperature, penalties, bias and truncation.
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top;  // most likely first
};

enum class FinishReason : uint8_t {
  kNone,       // not finished
  kStop,       // a stop string or a token that ends the answer
  kLength,     // max_tokens, the end of the context, or no memory left in the KV cache
  kCancelled,  // by GenerationStream::cancel() or Engine::stop()
  kError,
  kOutOfMemory,  // the machine had too little memory; a retry may succeed
  kLost,         // a tensor-parallel process has ended; see Engine::lost()
};

// A draft of one or more tokens and the result of its verification in one pass.
struct DraftRound {
  int64_t first = 0;            // index in the event's `tokens` of the first token of the round
  int64_t accepted = 0;         // the event's tokens [first, first + accepted) came from the draft
  std::vector<TokenId> tokens;  // the draft
};

// A piece of one choice's output. The events of a choice arrive in order; the last one has finish != kNone.
struct GenerationEvent {
  int32_t choice = 0;
  std::string text;  // complete UTF-8 characters without any part of a stop string; may be empty
  // Tokens sampled since the previous event, including a final stop token, which adds nothing to `text`.
  std::vector<TokenId> tokens;
  std::vector<TokenLogprob> logprobs;  // one per token, if requested
  std::vector<DraftRound> drafts;      // rounds of speculative decoding, in order
  FinishReason finish = FinishReason::kNone;
  std::string error;                       // the reason, for kError, kOutOfMemory and kLost
  std::optional<std::string> stop_string;  // the stop string that matched, for kStop
};

// Time that a request spent in each phase, in milliseconds. total = queued + prefill + decode.
struct RequestTimings {
  double queued_ms = 0;   // from entering the queue until first scheduled
  double prefill_ms = 0;  // from then until the first token of any choice
  double decode_ms = 0;   // from then until the latest event
  double total_ms = 0;
  double model_ms = 0;            // duration of the model passes in which this request took part
  double sample_ms = 0;           // sampling, stop strings and detokenization of this request
  int64_t prefill_chunks = 0;     // passes that computed a part of the prompt, or recomputed tokens without sampling
  int64_t decode_passes = 0;      // all other passes
  int64_t preemptions = 0;        // times that a choice was preempted
  double preempted_ms = 0;        // time that choices waited after preemptions
  int64_t recomputed_tokens = 0;  // tokens computed again, after a preemption or a failed pass
};

// The KV cache of a request, summed over its choices. Pages that choices share count once for each of them. The cache
// of a draft is not included.
struct KvCacheUsage {
  std::string policy;
  nlohmann::json spec;                 // KvCachePolicy::spec()
  std::string stand_in;                // KvCachePolicy::stand_in()
  std::optional<KeptPromise> promise;  // KvCachePolicy::promise()
  int64_t tokens = 0;                  // appended to the cache
  int64_t tokens_kept = 0;             // still represented in it, averaged over layers
  int64_t bytes = 0;                   // every byte that the cache holds
  int64_t shared_bytes = 0;            // part of `bytes` in pages shared with other sequences or stored prefixes
  int64_t full_bytes = 0;              // bytes that the full cache would hold for the same tokens
  TierUse tiers = {};                  // of the choices that have finished
  // SequenceCache::details() of one finished choice, the one with the highest index.
  std::map<std::string, double> details = {};
};

struct SpeculationUsage {
  std::string method = "off";
  // Whether the answer is guaranteed to equal that of plain decoding bit for bit (Model::batch_invariant()).
  bool exact = true;
  int64_t drafted = 0, accepted = 0;  // tokens
  int64_t passes = 0;                 // model passes that verified drafts
  int64_t rewinds = 0;                // passes after which the cache was truncated
  int64_t rewound_tokens = 0;         // rejected draft tokens removed from the cache
  // Times that a choice stopped using its draft model. Reasons: the draft model failed, returned NaN, or does not have
  // one of the tokens in its vocabulary.
  int64_t fallbacks = 0;
  std::vector<int64_t> accepted_at;  // accepted tokens by position in the draft
  double draft_ms = 0;               // drafting passes in which this request took part; not included in model_ms

  // Adds a pass that verified n_drafted tokens and lengthened the choice by n_emitted tokens.
  void add_round(int64_t n_drafted, int64_t n_accepted, int64_t n_emitted) {
    const int64_t rewound = n_drafted - (n_emitted - 1);  // the last emitted token has been in no pass yet
    drafted += n_drafted;
    accepted += n_accepted;
    ++passes;
    rewinds += rewound > 0 ? 1 : 0;
    rewound_tokens += rewound;
    accepted_at.resize(std::max(accepted_at.size(), static_cast<size_t>(n_drafted)));
    for (int64_t i = 0; i < n_accepted; ++i) ++accepted_at[static_cast<size_t>(i)];
  }
  void add(const SpeculationUsage& other) {  // adds the counts only
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
  int64_t cached_tokens = 0;  // prompt tokens taken from a stored prefix
  // Why no more were: a name of PrefixCache::Miss. Empty until the prefix cache was asked, or if it is not used.
  std::string_view prefix_miss;
  // Tokens that the prompt shares with the nearest prompt that is or was stored, and the message in which the next one
  // lies; -1 if the messages are unknown.
  int64_t diverged_at = 0, diverged_message = -1;
  int64_t completion_tokens = 0;  // sum over all choices
  int64_t reasoning_tokens = 0;   // the part of these in the thinking, marks not counted
  uint64_t seed = 0;
  RequestTimings timings;
  KvCacheUsage kv_cache;
  SpeculationUsage speculation;
};

// Reads the results of a request. The destructor calls cancel().
class GenerationStream {
 public:
  virtual ~GenerationStream() = default;
  enum class Status : uint8_t { kEvent, kTimeout, kEnd };  // kEnd: every choice has finished and its events were read
  // Waits for the next event of any choice and stores it in *event if the result is kEvent.
  virtual Status next(GenerationEvent* event, std::chrono::milliseconds timeout) = 0;
  // Ends the choices that still run with kCancelled. Returns at once: their memory is freed before the next pass, and
  // next() still returns their last events.
  virtual void cancel() = 0;
  virtual const std::vector<TokenLogprob>& prompt_logprobs() const = 0;  // valid after the first event
  virtual RequestUsage usage() const = 0;                                // final after next() has returned kEnd
};

// Thrown if a request is rejected.
//  - kTooLarge: the request would not fit into memory even if it ran alone.
//  - kOverloaded: the queue is full, or the grammars of other requests take too much time or memory.
//  - param: name of the request field at fault; empty if there is none.
//  - retry_after_s: seconds after which a retry may succeed; 0 if unknown.
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

// Histogram with fixed upper bounds. The counts are not cumulative, unlike Prometheus' buckets.
struct Histogram {
  std::vector<double> bounds;
  std::vector<uint64_t> counts;  // counts[i]: observations in (bounds[i-1], bounds[i]]; the last: above all bounds
  double sum = 0;
  uint64_t count = 0;
};

// Statistics over all sequences of one KV-cache policy.
struct PolicyStats {
  int64_t sequences = 0;              // sequences that hold a cache now
  int64_t bytes = 0, full_bytes = 0;  // held by their caches; held by full caches of the same tokens
  // Since the start: prompt tokens computed, without prefix hits, and tokens generated.
  uint64_t prompt_tokens = 0, generation_tokens = 0;
  TierUse tiers = {};  // of the sequences that hold a cache now, counted at most every kTierSeconds
  // Diagnostics of the finished sequences by CacheMetric::name: sums, and distributions over sequences.
  std::map<std::string, double> sums = {};
  std::map<std::string, Histogram> distributions = {};
};
// Shortest time between two counts of PolicyStats::tiers, in seconds. A count takes about 20 us for each sequence.
constexpr double kTierSeconds = 1;

struct EngineStats {
  // Sequences.
  //  - requests_running: running ones, including slots reserved for forks.
  //  - requests_waiting: waiting ones, including preempted ones.
  int64_t requests_running = 0, requests_waiting = 0;
  // Bytes.
  //  - kv_bytes_used: held by running sequences.
  //  - kv_bytes_promised: the most that they may hold until their known tokens (prompt and sampled) are computed.
  //  - kv_bytes_budget: limit for sequences, stored prefixes and logits together.
  int64_t kv_bytes_used = 0, kv_bytes_promised = 0, kv_bytes_budget = 0;
  // Tokens.
  //  - prompt_tokens: prompt tokens computed, without prefix hits.
  //  - generation_tokens: tokens generated.
  //  - prefix_cache_queries: prompt tokens looked up in the prefix cache, once for each request.
  //  - prefix_cache_hits: the part of these that was found.
  uint64_t prompt_tokens = 0, generation_tokens = 0, prefix_cache_queries = 0, prefix_cache_hits = 0;
  std::map<std::string, uint64_t> prefix_cache_misses;  // requests by RequestUsage::prefix_miss
  uint64_t steps = 0;                                   // model passes
  // Recomputation.
  //  - preemptions: times that a sequence was preempted.
  //  - recomputed_tokens: tokens recomputed after a preemption, a failed pass or a token that the grammar refused.
  uint64_t preemptions = 0, recomputed_tokens = 0;
  uint64_t logit_check_tokens = 0;  // recomputed for logit checks (SequenceCache::wants_check())
  // Stored prefixes.
  //  - prefix_cache_bytes: bytes that they take in addition to kv_bytes_used.
  //  - prefix_cache_states: number of states in memory.
  int64_t prefix_cache_bytes = 0, prefix_cache_states = 0;
  int64_t kv_offload_bytes_used = 0, kv_offload_bytes_budget = 0;  // of host memory; a budget of 0 disables offloading
  std::map<std::string, uint64_t> finished;     // requests by reason: "stop", "length", "abort", "error"
  std::map<std::string, uint64_t> rejected;     // by submit() and validate(), by name(RequestError::Kind)
  SpeculationUsage speculation;                 // sum over all requests; `method` is unused
  std::map<std::string, PolicyStats> policies;  // by KvCachePolicy::name(), for each policy that was used
  Histogram time_to_first_token, time_per_output_token, e2e_latency, queue_time;
};

struct EngineOptions {
  ModelOptions model;
  int64_t kv_cache_bytes = 0;  // 0: half of the host memory that is free once the model is loaded, even on a GPU
  // Bytes of host memory for the caches of requests that ask for offloading; 0 disables it. Must be 0 on device cpu.
  int64_t kv_offload_bytes = 0;
  // Part of kv_cache_bytes that stored prefixes may fill. -1: all that running sequences do not need; 0 disables them.
  int64_t prefix_cache_bytes = -1;
  // Directory that keeps stored prefixes across restarts; may be empty. Must be empty if tensor_parallel is above 1.
  std::filesystem::path prefix_cache_dir;
  int64_t prefix_cache_dir_bytes = int64_t{4} << 30;  // size limit of that directory; LRU files are deleted first
  int64_t retention_seconds = 3600;                   // the longest time for which a request may raise a priority
  int64_t max_sequences = 32;                         // sequences that run at the same time
  // Requests that may wait in addition to those for which sequence slots are free. Further ones are rejected with
  // kOverloaded (HTTP 429).
  int64_t max_queue = 256;
  int64_t prefill_chunk = 512;                 // work of one pass, in tokens: SchedulerOptions::token_budget
  std::string chat_template_file;              // replaces the model's own
  nlohmann::json kv_cache;                     // default policy; null means "full"
  nlohmann::json speculative;                  // default method; null means "off"
  std::filesystem::path draft_model;           // GGUF file or Hugging Face folder of a smaller model; may be empty
  DraftCopy draft_weights = DraftCopy::kNone;  // kInt4: also loads a 4-bit copy of the model, for method "self"
  // Whether to calibrate the model at the start for requests that choose the policy "calibrated". Otherwise it is
  // calibrated only if the default policy needs it.
  bool calibrates = false;
  std::vector<std::string> allowed_policies;     // policies and presets that requests may name; empty allows all
  std::vector<std::string> allowed_speculation;  // methods that requests may name besides "off"; empty allows all
};

class Engine {
 public:
  // Loads the model and starts the engine thread. `progress` is called with 0 to 1 and a message while loading. Throws
  // ModelError, TokenizerError, ChatTemplateError, CacheError (gates and channel_worth), RequestError (kv_cache,
  // speculative, allowed_policies and allowed_speculation) or RankError (tensor_parallel).
  static std::unique_ptr<Engine> create(const EngineOptions& options,
                                        const std::function<void(double, const std::string&)>& progress = nullptr);
  virtual ~Engine() = default;  // calls stop() and ends the engine thread

  // Queues a request. If it has a grammar, first waits until the grammar is compiled, up to
  // GrammarCompiler::kWaitSeconds. Throws RequestError if the request cannot be served now, or at all.
  std::unique_ptr<GenerationStream> submit(GenerationRequest request);
  // Queues all requests or none, so that those for which there is room start in the same pass.
  virtual std::vector<std::unique_ptr<GenerationStream>> submit_all(std::vector<GenerationRequest> requests) = 0;
  // Checks a request as submit() does, without queueing it. Also compiles its grammar and checks the queue's length.
  virtual void validate(const GenerationRequest& request) const = 0;

  virtual const Tokenizer& tokenizer() const = 0;
  virtual const ChatTemplate* chat_template() const = 0;  // null if the model has none
  virtual const ModelConfig& config() const = 0;
  virtual int64_t context_length() const = 0;
  // Returns the model, dtype, backend, memory, threads, CPU level and policies, for GET /v1/models and the log.
  virtual nlohmann::ordered_json describe() const = 0;
  virtual EngineStats stats() const = 0;  // cheap
  // Waits for the end of the running pass, then returns all unfinished sequences, those of the oldest request first. If
  // `layer` is set, also lists the spans of this layer. Throws RequestError if there is no such layer.
  virtual std::vector<LiveSequence> live(std::optional<int64_t> layer) const = 0;
  // Waits for the end of the running pass, then returns up to `most` stored prefixes, the most valuable first.
  virtual std::vector<PrefixListing> prefixes(int64_t most) const = 0;
  // Returns the memory that a request would take: under its own policy, then under each policy that it may name,
  // presets first. The request is not run, and its grammar is not compiled. MemoryPlan::problem says if the request is
  // too long for the context or too large for the memory, or if the model cannot use the other policy. Throws
  // RequestError (kInvalid) if the request itself is invalid.
  virtual std::vector<MemoryPlan> plan(const GenerationRequest& request) const = 0;

  // Rejects requests from now on, including those that still wait for a grammar. Returns when all accepted requests
  // have finished.
  virtual void drain() = 0;
  virtual void stop() = 0;  // like drain(), but cancels the accepted requests
  virtual bool draining() const = 0;

  // Returns why the engine cannot serve requests any more (a tensor-parallel process has ended), or an empty string.
  virtual std::string lost() const { return {}; }
  // Sets the function to call, once and from any thread, when the engine is lost; null removes it. It is not called if
  // the engine is lost already. Waits for a call in progress, so the function must not call on_lost().
  // NOLINTNEXTLINE(performance-unnecessary-value-param): overrides keep it.
  virtual void on_lost(std::function<void()> /*call*/) {}
};

}  // namespace smartkv
