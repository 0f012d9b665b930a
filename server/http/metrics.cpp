#include "server/http/metrics.h"

#include <sys/resource.h>

#include <sstream>

#include "cache/policy.h"
#include "engine/log.h"
#include "engine/system_resources.h"

namespace smartkv::http {

namespace {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == '"') result += '\\';
    if (c == '\n') {
      result += "\\n";
    } else {
      result += c;
    }
  }
  return result;
}

class TextBuilder {
 public:
  explicit TextBuilder(const std::string& model) : model_label_("model_name=\"" + escaped(model) + "\"") {
    out_.precision(15);
  }

  void family(const std::string& name, const char* type, std::string_view help) {
    out_ << "# HELP " << name << ' ' << help << "\n# TYPE " << name << ' ' << type << '\n';
  }

  template <typename T>
  void sample(const std::string& name, const std::string& labels, T value) {
    out_ << name << '{' << labels << "} " << value << '\n';
  }

  // Adds one metric under both prefixes.
  template <typename T>
  void both(const std::string& name, const char* type, const char* help, T value) {
    for (const char* prefix : {"smartkv:", "vllm:"}) single(prefix + name, type, help, value);
  }

  template <typename T>
  void single(const std::string& name, const char* type, const char* help, T value) {
    family(name, type, help);
    sample(name, model_label_, value);
  }

  void histogram(const std::string& name, const char* help, const Histogram& histogram) {
    for (const char* prefix : {"smartkv:", "vllm:"}) {
      family(prefix + name, "histogram", help);
      distribution(prefix + name, model_label_, histogram);
    }
  }

  void distribution(const std::string& name, const std::string& labels, const Histogram& histogram) {
    uint64_t cumulative = 0;
    for (size_t i = 0; i < histogram.bounds.size() && i < histogram.counts.size(); ++i) {
      cumulative += histogram.counts[i];
      std::ostringstream bound;
      bound << histogram.bounds[i];
      sample(name + "_bucket", labels + ",le=\"" + bound.str() + "\"", cumulative);
    }
    sample(name + "_bucket", labels + ",le=\"+Inf\"", histogram.count);
    sample(name + "_sum", labels, histogram.sum);
    sample(name + "_count", labels, histogram.count);
  }

  const std::string& model_label() const { return model_label_; }
  std::string text() const { return out_.str(); }

 private:
  std::string model_label_;
  std::ostringstream out_;
};

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void add_policies(TextBuilder& text, const std::map<std::string, PolicyStats>& policies) {
  const auto add = [&](const char* name, const char* type, const char* help, auto value) {
    text.family(name, type, help);
    for (const auto& [policy, stats] : policies) {
      text.sample(name, text.model_label() + ",policy=\"" + escaped(policy) + "\"", value(stats));
    }
  };
  add("smartkv:policy_sequences", "gauge", "Sequences that hold a cache, by KV-cache policy.",
      [](const PolicyStats& stats) { return stats.sequences; });
  add("smartkv:policy_kv_bytes", "gauge",
      "KV-cache bytes held by running sequences, by policy; shared pages count for each sequence.",
      [](const PolicyStats& stats) { return stats.bytes; });
  add("smartkv:policy_kv_full_bytes", "gauge",
      "KV-cache bytes that policy full would hold for the same tokens, by policy.",
      [](const PolicyStats& stats) { return stats.full_bytes; });
  add("smartkv:policy_prompt_tokens_total", "counter", "Prompt tokens computed for the first time, by KV-cache policy.",
      [](const PolicyStats& stats) { return stats.prompt_tokens; });
  add("smartkv:policy_generation_tokens_total", "counter", "Tokens generated, by KV-cache policy.",
      [](const PolicyStats& stats) { return stats.generation_tokens; });
  const auto add_tiers = [&](const char* name, const char* help, TierShares TierUse::*use) {
    text.family(name, "gauge", help);
    for (const auto& [policy, stats] : policies) {
      for (size_t tier = 0; tier < kTiers; ++tier) {
        text.sample(
            name,
            text.model_label() + ",policy=\"" + escaped(policy) + "\",tier=\"" + std::string(tier_name(tier)) + '"',
            (stats.tiers.*use)[tier]);
      }
    }
  };
  add_tiers("smartkv:policy_tier_tokens",
            "Tokens of running sequences by tier (exact, quantized, summarised or evicted), mean over layers and KV "
            "heads.",
            &TierUse::tokens);
  add_tiers("smartkv:policy_tier_kv_bytes",
            "Bytes of the pages that attention reads, by tier; shared pages count for each sequence.", &TierUse::bytes);
}

// Adds the diagnostics that caches report (cache_metrics()), summed over finished sequences.
void add_diagnostics(TextBuilder& text, const std::map<std::string, PolicyStats>& policies) {
  for (const CacheMetric& metric : cache_metrics()) {
    const std::string key(metric.name), name = "smartkv:" + key;
    text.family(name, metric.bounds.empty() ? "counter" : "histogram",
                std::string(metric.help) + (metric.bounds.empty()
                                                ? " Summed over finished sequences, by KV-cache policy."
                                                : " Distribution over finished sequences, by KV-cache policy."));
    for (const auto& [policy, stats] : policies) {
      const std::string labels = text.model_label() + ",policy=\"" + escaped(policy) + '"';
      if (const auto sum = stats.sums.find(key); sum != stats.sums.end()) text.sample(name, labels, sum->second);
      const auto distribution = stats.distributions.find(key);
      if (distribution != stats.distributions.end()) text.distribution(name, labels, distribution->second);
    }
  }
}

void add_refusals(TextBuilder& text, const EngineStats& stats, uint64_t by_key_limits) {
  text.family("smartkv:requests_rejected_total", "counter",
              "Requests refused before they were queued, by reason: overloaded (max_queue), too_large (more memory "
              "than the server has), key_limit (limits of the API key), draining, lost (a process of the model ended), "
              "client_gone, and client errors (invalid, context_length).");
  const auto add = [&](const std::string& reason, uint64_t count) {
    text.sample("smartkv:requests_rejected_total", text.model_label() + ",reason=\"" + escaped(reason) + '"', count);
  };
  for (const auto& [reason, count] : stats.rejected) add(reason, count);
  add("key_limit", by_key_limits);
}

void add_process(TextBuilder& text) {
  text.single("process_resident_memory_bytes", "gauge", "Resident memory of the process in bytes.", resident_bytes());
  text.single("process_cpu_seconds_total", "counter", "Seconds of user and system CPU time.", cpu_seconds());
}

}  // namespace

void RequestCounter::add(const std::string& route, int status) {
  const std::lock_guard lock(mutex_);
  ++counts_[{route, status}];
}

std::map<std::pair<std::string, int>, uint64_t> RequestCounter::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::string metrics_text(const EngineStats& stats, const std::string& model, const RequestCounter& requests) {
  TextBuilder text(model);
  const double usage = stats.kv_bytes_budget > 0
                           ? static_cast<double>(stats.kv_bytes_used) / static_cast<double>(stats.kv_bytes_budget)
                           : 0;
  text.both("num_requests_running", "gauge", "Running sequences, whose prompt or answer is being computed.",
            stats.requests_running);
  text.both("num_requests_waiting", "gauge", "Requests in the queue that have not run yet, and preempted sequences.",
            stats.requests_waiting);
  text.both("kv_cache_usage_perc", "gauge",
            "KV-cache bytes held by running sequences, as a fraction of the budget (1: full).", usage);
  text.both("prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
            stats.prefix_cache_queries);
  text.both("prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache and therefore not computed.",
            stats.prefix_cache_hits);
  text.family("smartkv:prefix_cache_misses_total", "counter",
              "Requests of whose prompt a part was not found, by reason: evicted (a state that was evicted had it), "
              "policy (a state has it that cannot be cut back, or of another policy), salt (a state without a salt has "
              "it), never_stored.");
  for (const auto& [reason, count] : stats.prefix_cache_misses) {
    text.sample("smartkv:prefix_cache_misses_total", text.model_label() + ",reason=\"" + escaped(reason) + "\"", count);
  }
  text.single("smartkv:prefix_cache_bytes", "gauge",
              "KV-cache bytes held only for future prompts. They are freed when running sequences need them.",
              stats.prefix_cache_bytes);
  text.single("smartkv:prefix_cache_states", "gauge",
              "Computed prompts kept for future prompts with the same beginning.", stats.prefix_cache_states);
  text.both("prompt_tokens_total", "counter",
            "Prompt tokens computed for the first time: neither prefix hits nor recomputed ones.", stats.prompt_tokens);
  text.both("generation_tokens_total", "counter", "Tokens generated for all requests; prompts are not counted.",
            stats.generation_tokens);
  for (const char* prefix : {"smartkv:", "vllm:"}) {
    const std::string name = std::string(prefix) + "request_success_total";
    text.family(name, "counter",
                "Finished requests by reason: stop, length, abort (the client left or the server stopped) and error "
                "(the request failed).");
    for (const auto& [reason, count] : stats.finished) {
      text.sample(name, text.model_label() + ",finished_reason=\"" + escaped(reason) + "\"", count);
    }
  }
  text.both("num_preemptions_total", "counter",
            "Sequences that were preempted to give memory to older ones; they are recomputed later.",
            stats.preemptions);
  text.single("smartkv:recomputed_tokens_total", "counter", "Tokens recomputed after a preemption.",
              stats.recomputed_tokens);
  text.single("smartkv:logit_check_tokens_total", "counter",
              "Tokens recomputed to compare logits with those of an exact cache.", stats.logit_check_tokens);
  const SpeculationUsage& speculation = stats.speculation;
  text.both("spec_decode_num_drafts_total", "counter",
            "Drafts of one or more tokens that a pass of the model verified.", speculation.passes);
  text.both("spec_decode_num_draft_tokens_total", "counter", "Tokens of verified drafts.", speculation.drafted);
  text.both("spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens that were accepted.",
            speculation.accepted);
  if (speculation.drafted > 0) {
    text.both("spec_decode_draft_acceptance_rate", "gauge",
              "Drafted tokens accepted since the start, as a fraction of all drafted.",
              static_cast<double>(speculation.accepted) / static_cast<double>(speculation.drafted));
  }
  text.single("smartkv:spec_decode_num_rewinds_total", "counter",
              "Verifying passes after which the cache was rolled back.", speculation.rewinds);
  text.single("smartkv:spec_decode_num_rewound_tokens_total", "counter",
              "Drafted tokens that were rolled back in the cache.", speculation.rewound_tokens);
  text.single("smartkv:spec_decode_num_fallbacks_total", "counter",
              "Choices that continued without their draft model, because it failed or computed NaN or infinity.",
              speculation.fallbacks);
  for (const char* prefix : {"smartkv:", "vllm:"}) {
    const std::string name = std::string(prefix) + "spec_decode_num_accepted_tokens_per_pos_total";
    text.family(name, "counter", "Drafted tokens that were accepted, by their position in the draft, from 0.");
    for (size_t i = 0; i < speculation.accepted_at.size(); ++i) {
      text.sample(name, text.model_label() + ",position=\"" + std::to_string(i) + "\"", speculation.accepted_at[i]);
    }
  }
  text.histogram("time_to_first_token_seconds", "Seconds from a request's submission to its first token.",
                 stats.time_to_first_token);
  text.histogram("time_per_output_token_seconds", "Seconds per token after the first token of a choice.",
                 stats.time_per_output_token);
  text.histogram("e2e_request_latency_seconds", "Seconds from a request's submission to its end.", stats.e2e_latency);
  text.histogram("request_queue_time_seconds", "Seconds from a request's submission to the first pass that carries it.",
                 stats.queue_time);

  text.single("smartkv:kv_bytes_used", "gauge", "KV-cache bytes held by running sequences; shared pages count once.",
              stats.kv_bytes_used);
  text.single("smartkv:kv_bytes_promised", "gauge",
              "KV-cache bytes of running sequences once their known tokens are computed.", stats.kv_bytes_promised);
  text.single("smartkv:kv_bytes_budget", "gauge",
              "KV-cache bytes that sequences and kept prompts may hold together (kv_cache_bytes).",
              stats.kv_bytes_budget);
  if (stats.kv_offload_bytes_budget > 0) {
    text.single("smartkv:kv_offload_bytes_used", "gauge", "Bytes of offloaded caches in host memory.",
                stats.kv_offload_bytes_used);
    text.single("smartkv:kv_offload_bytes_budget", "gauge",
                "Limit of host memory for offloaded caches, in bytes (kv_offload_bytes).",
                stats.kv_offload_bytes_budget);
  }
  add_policies(text, stats.policies);
  add_diagnostics(text, stats.policies);
  text.single("smartkv:steps_total", "counter", "Passes of the model, each over a batch of sequences.", stats.steps);
  add_refusals(text, stats, requests.key_refusals());
  text.family("smartkv:http_requests_total", "counter",
              "HTTP requests by route and status. A failed stream counts with the status of its error; a stream that "
              "its client left counts as 499.");
  for (const auto& [key, count] : requests.counts()) {
    text.sample("smartkv:http_requests_total",
                "route=\"" + escaped(key.first) + "\",code=\"" + std::to_string(key.second) + "\"", count);
  }
  text.single("smartkv:log_lines_lost_total", "counter", "Log lines that were lost because they were not read in time.",
              lost_log_lines());
  add_process(text);
  return text.text();
}

}  // namespace smartkv::http
