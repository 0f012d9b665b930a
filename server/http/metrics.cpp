#include "server/http/metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <sstream>

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

  void family(const std::string& name, const char* type, const char* help) {
    out_ << "# HELP " << name << ' ' << help << "\n# TYPE " << name << ' ' << type << '\n';
  }

  template <typename T>
  void sample(const std::string& name, const std::string& labels, T value) {
    out_ << name << '{' << labels << "} " << value << '\n';
  }

  // One figure under both prefixes.
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
      const std::string full = prefix + name;
      family(full, "histogram", help);
      uint64_t cumulative = 0;
      for (size_t i = 0; i < histogram.bounds.size() && i < histogram.counts.size(); ++i) {
        cumulative += histogram.counts[i];
        std::ostringstream bound;
        bound << histogram.bounds[i];
        sample(full + "_bucket", model_label_ + ",le=\"" + bound.str() + "\"", cumulative);
      }
      sample(full + "_bucket", model_label_ + ",le=\"+Inf\"", histogram.count);
      sample(full + "_sum", model_label_, histogram.sum);
      sample(full + "_count", model_label_, histogram.count);
    }
  }

  const std::string& model_label() const { return model_label_; }
  std::string text() const { return out_.str(); }

 private:
  std::string model_label_;
  std::ostringstream out_;
};

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

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
  add("smartkv:policy_kv_bytes", "gauge", "KV-cache bytes that they hold; shared pages count for each.",
      [](const PolicyStats& stats) { return stats.bytes; });
  add("smartkv:policy_kv_full_bytes", "gauge", "What the full cache would hold for the same tokens.",
      [](const PolicyStats& stats) { return stats.full_bytes; });
  add("smartkv:policy_prompt_tokens_total", "counter", "Prompt tokens processed, by KV-cache policy.",
      [](const PolicyStats& stats) { return stats.prompt_tokens; });
  add("smartkv:policy_generation_tokens_total", "counter", "Tokens generated, by KV-cache policy.",
      [](const PolicyStats& stats) { return stats.generation_tokens; });
  const auto add_tiers = [&](const char* name, const char* help, TierShares TierUse::*use) {
    text.family(name, "gauge", help);
    for (const auto& [policy, stats] : policies) {
      for (size_t tier = 0; tier < kTiers; ++tier) {
        text.sample(name, text.model_label() + ",policy=\"" + escaped(policy) + "\",tier=\"" + std::string(tier_name(tier)) + '"',
                    (stats.tiers.*use)[tier]);
      }
    }
  };
  add_tiers("smartkv:policy_tier_tokens", "Their tokens by what is kept of them, mean over layers and KV heads.", &TierUse::tokens);
  add_tiers("smartkv:policy_tier_kv_bytes", "Bytes of the pages that attention reads, by what they keep; shared ones count for each.",
            &TierUse::bytes);
}

void add_process(TextBuilder& text) {
  text.single("process_resident_memory_bytes", "gauge", "Resident memory.", resident_bytes());
  text.single("process_cpu_seconds_total", "counter", "User and system CPU time.", cpu_seconds());
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
  text.both("num_requests_running", "gauge", "Sequences that are prefilling or decoding.", stats.requests_running);
  text.both("num_requests_waiting", "gauge", "Requests in the queue.", stats.requests_waiting);
  text.both("kv_cache_usage_perc", "gauge", "KV-cache bytes held, as a fraction of the budget (1: full).", usage);
  text.both("prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
            stats.prefix_cache_queries);
  text.both("prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.", stats.prefix_cache_hits);
  text.single("smartkv:prefix_cache_bytes", "gauge", "Bytes held for prompts to come.", stats.prefix_cache_bytes);
  text.single("smartkv:prefix_cache_states", "gauge", "States held for prompts to come.", stats.prefix_cache_states);
  text.both("prompt_tokens_total", "counter", "Prompt tokens processed.", stats.prompt_tokens);
  text.both("generation_tokens_total", "counter", "Tokens generated.", stats.generation_tokens);
  for (const char* prefix : {"smartkv:", "vllm:"}) {
    const std::string name = std::string(prefix) + "request_success_total";
    text.family(name, "counter", "Finished requests by reason.");
    for (const auto& [reason, count] : stats.finished) {
      text.sample(name, text.model_label() + ",finished_reason=\"" + escaped(reason) + "\"", count);
    }
  }
  text.both("num_preemptions_total", "counter", "Sequences that lost their memory to older ones.", stats.preemptions);
  text.single("smartkv:recomputed_tokens_total", "counter", "Tokens computed anew after a preemption.",
              stats.recomputed_tokens);
  const SpeculationUsage& speculation = stats.speculation;
  text.both("spec_decode_num_drafts_total", "counter", "Drafts that were verified.", speculation.passes);
  text.both("spec_decode_num_draft_tokens_total", "counter", "Tokens drafted.", speculation.drafted);
  text.both("spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens accepted.", speculation.accepted);
  if (speculation.drafted > 0) {
    text.both("spec_decode_draft_acceptance_rate", "gauge", "Drafted tokens accepted since the start, as a fraction of all drafted.",
              static_cast<double>(speculation.accepted) / static_cast<double>(speculation.drafted));
  }
  text.single("smartkv:spec_decode_num_rewinds_total", "counter",
              "Verifying passes after which drafted tokens were cut out of the cache.", speculation.rewinds);
  text.single("smartkv:spec_decode_num_rewound_tokens_total", "counter", "Drafted tokens that were cut out of the cache.",
              speculation.rewound_tokens);
  text.single("smartkv:spec_decode_num_fallbacks_total", "counter",
              "Choices that went on without the model that drafted for them, because it failed or computed NaN or infinity.",
              speculation.fallbacks);
  for (const char* prefix : {"smartkv:", "vllm:"}) {
    const std::string name = std::string(prefix) + "spec_decode_num_accepted_tokens_per_pos_total";
    text.family(name, "counter", "Drafted tokens accepted, by their position in the draft.");
    for (size_t i = 0; i < speculation.accepted_at.size(); ++i) {
      text.sample(name, text.model_label() + ",position=\"" + std::to_string(i) + "\"", speculation.accepted_at[i]);
    }
  }
  text.histogram("time_to_first_token_seconds", "Submission to first token.", stats.time_to_first_token);
  text.histogram("time_per_output_token_seconds", "Time per token after the first.", stats.time_per_output_token);
  text.histogram("e2e_request_latency_seconds", "Submission to last token.", stats.e2e_latency);
  text.histogram("request_queue_time_seconds", "Submission to first scheduled.", stats.queue_time);

  text.single("smartkv:kv_bytes_used", "gauge", "KV-cache bytes held.", stats.kv_bytes_used);
  text.single("smartkv:kv_bytes_promised", "gauge", "KV-cache bytes once all running sequences have their prompts.",
              stats.kv_bytes_promised);
  text.single("smartkv:kv_bytes_budget", "gauge", "KV-cache bytes that may be held.", stats.kv_bytes_budget);
  add_policies(text, stats.policies);
  text.single("smartkv:steps_total", "counter", "Passes of the model.", stats.steps);
  text.single("smartkv:requests_rejected_total", "counter", "Requests refused at admission.", stats.rejected);
  for (const auto& [name, value] : stats.extra) {
    text.single("smartkv:" + name, name.ends_with("_total") ? "counter" : "gauge", "See docs.", value);
  }
  text.family("smartkv:http_requests_total", "counter", "HTTP responses by route and status.");
  for (const auto& [key, count] : requests.counts()) {
    text.sample("smartkv:http_requests_total",
                "route=\"" + escaped(key.first) + "\",code=\"" + std::to_string(key.second) + "\"", count);
  }
  add_process(text);
  return text.text();
}

}  // namespace smartkv::http
