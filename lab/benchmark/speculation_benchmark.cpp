#include "lab/benchmark/speculation_benchmark.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>

#include "engine/speculation/spec.h"
#include "lab/benchmark/speculation_workloads.h"
#include "lab/evaluation/markup.h"

namespace smartkv {
namespace {

constexpr int64_t kWholePrompts = int64_t{1} << 24;  // budget of one pass in tokens: more than the prompts of any row

// The results of running a workload once with one method.
struct SpeculationRun {
  std::vector<std::vector<TokenId>> outputs;
  int64_t decoded = 0, passes = 0;  // tokens after each sequence's first; passes that a sequence was part of
  int64_t drafted = 0, accepted = 0;
  int64_t cache_bytes = 0;  // peak bytes of all caches
  double decode_ms = 0;

  double rate() const { return 1000.0 * static_cast<double>(decoded) / decode_ms; }
};

struct Case {
  const SpeculationWorkload& workload;
  int64_t sequences = 1;
  int64_t tokens = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

class SpeculationBench {
 public:
  SpeculationBench(Engine& engine, int repetitions)
      : engine_(engine),
        weight_bytes_(engine.describe().value("weight_bytes", int64_t{0})),
        int4_weight_bytes_(engine.describe().value("int4_weight_bytes", int64_t{0})),
        repetitions_(repetitions) {}

  SpeculationRow measure(const Case& c, const nlohmann::json& method) {
    SpeculationRow row;
    row.workload = c.workload.name;
    row.method = method;
    row.temperature = c.workload.temperature;
    row.sequences = c.sequences;
    row.depth = mean_length(c.workload.prompts);
    const SpeculationSpec spec = parse_speculation(method);
    std::vector<double> plain_rates, rates, ratios;
    int64_t decoded = 0, passes = 0;
    for (int i = 0; i < repetitions_; ++i) {
      const SpeculationRun plain = run(c, "off"), run_with = run(c, method);
      plain_rates.push_back(plain.rate());
      rates.push_back(run_with.rate());
      ratios.push_back(rates.back() / plain_rates.back());
      decoded += run_with.decoded;
      passes += run_with.passes;
      row.drafted += run_with.drafted;
      row.accepted += run_with.accepted;
      if (row.difference.empty()) row.difference = difference(plain, run_with);
      if (spec.method == DraftMethod::kSelf) row.bound = bound(spec, plain.cache_bytes, run_with.cache_bytes);
    }
    row.tokens_per_pass = static_cast<double>(decoded) / static_cast<double>(passes);
    row.plain = median(plain_rates);
    row.speculative = median(rates);
    row.speedup = median(ratios);
    row.speedup_min = *std::min_element(ratios.begin(), ratios.end());
    return row;
  }

  GenerationRequest request(const Case& c, size_t index, const nlohmann::json& method) const {
    GenerationRequest request;
    request.id = "bench-" + std::to_string(index);
    request.prompt = c.workload.prompts[index % c.workload.prompts.size()];
    request.max_tokens = c.tokens;
    request.sampling.temperature = c.workload.temperature;
    request.sampling.seed = index + 1;
    request.ignore_eos = c.workload.ignore_eos;
    request.speculative = method;
    return request;
  }

  SpeculationRun run(const Case& c, const nlohmann::json& method) {
    SpeculationRun run;
    const size_t prompts = c.workload.prompts.size(), side_by_side = static_cast<size_t>(c.sequences);
    for (size_t first = 0; first < prompts; first += side_by_side) run_group(c, first, method, &run);
    if (run.decoded == 0) {
      throw std::runtime_error("workload \"" + c.workload.name + "\": expected more than one decoded token, found one");
    }
    return run;
  }

 private:
  static int64_t mean_length(const std::vector<std::vector<TokenId>>& prompts) {
    size_t sum = 0;
    for (const auto& prompt : prompts) sum += prompt.size();
    return static_cast<int64_t>(sum / prompts.size());
  }

  void run_group(const Case& c, size_t first, const nlohmann::json& method, SpeculationRun* run) {
    std::vector<GenerationRequest> requests;
    for (size_t i = 0; i < static_cast<size_t>(c.sequences); ++i) requests.push_back(request(c, first + i, method));
    const std::vector<std::unique_ptr<GenerationStream>> streams = engine_.submit_all(std::move(requests));
    // One pass yields all first tokens, but at different times, because a policy may have much to do at the end of a
    // prompt. Decoding begins with the last of them.
    double begin = 0, end = 0, last_start = 0, first_end = std::numeric_limits<double>::infinity();
    int64_t preemptions = 0;
    for (const auto& stream : streams) {
      run->outputs.push_back(read(*stream, run));
      const RequestUsage usage = stream->usage();
      begin = std::max(begin, usage.timings.total_ms - usage.timings.decode_ms);
      end = std::max(end, usage.timings.total_ms);
      last_start = std::max(last_start, usage.timings.queued_ms);
      first_end = std::min(first_end, usage.timings.total_ms);
      preemptions += usage.timings.preemptions;
      run->decoded += usage.completion_tokens - 1;
      run->passes += usage.timings.decode_passes;
      run->drafted += usage.speculation.drafted;
      run->accepted += usage.speculation.accepted;
    }
    if (last_start >= first_end || preemptions > 0) {
      throw std::runtime_error("workload \"" + c.workload.name + "\": " + std::to_string(c.sequences) +
                               " sequences did not run concurrently; raise kv_cache_bytes or max_sequences");
    }
    run->decode_ms += end - begin;
  }

  // Reads one stream to its end. Events of the other streams are joined while they are unread, so those streams cost
  // nothing.
  std::vector<TokenId> read(GenerationStream& stream, SpeculationRun* run) {
    std::vector<TokenId> tokens;
    GenerationEvent event;
    for (;;) {
      const auto status = stream.next(&event, std::chrono::minutes(1));
      if (status == GenerationStream::Status::kEnd) return tokens;
      if (status == GenerationStream::Status::kTimeout) continue;
      if (!event.error.empty()) throw std::runtime_error("a sequence failed: " + event.error);
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
      run->cache_bytes = std::max(run->cache_bytes, engine_.stats().kv_bytes_used);
    }
  }

  static std::string difference(const SpeculationRun& plain, const SpeculationRun& other) {
    for (size_t i = 0; i < plain.outputs.size(); ++i) {
      const std::vector<TokenId>&a = plain.outputs[i], &b = other.outputs[i];
      if (a == b) continue;
      const auto at = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
      const auto token = [at](const std::vector<TokenId>& tokens) {
        return at < tokens.size() ? "token " + std::to_string(tokens[at]) : std::string("the end");
      };
      return "prompt " + std::to_string(i) + ", output token " + std::to_string(at) + ": expected " + token(a) +
             ", found " + token(b);
    }
    return "";
  }

  double bound(const SpeculationSpec& spec, int64_t plain_caches, int64_t both_caches) const {
    const auto own = static_cast<double>(weight_bytes_ + plain_caches);
    const auto draft =
        static_cast<double>((spec.int4 ? int4_weight_bytes_ : weight_bytes_) + both_caches - plain_caches);
    const auto drafted = static_cast<double>(spec.tokens);
    if (plain_caches == 0 || both_caches <= plain_caches) return 0;  // the run was too short to observe its caches
    return (drafted + 1) * own / (drafted * draft + own);
  }

  Engine& engine_;
  int64_t weight_bytes_, int4_weight_bytes_;
  int repetitions_;
};

std::vector<std::string> workloads_of(const SpeculationBenchmarkOptions& options) {
  const std::span<const std::string> all = speculation_workload_names();
  std::vector<std::string> names = options.workloads;
  if (names.empty()) {
    std::copy_if(all.begin(), all.end(), std::back_inserter(names),
                 [&](const std::string& name) { return name != "depth" || !options.text.empty(); });
  }
  for (const std::string& name : names) {
    if (std::find(all.begin(), all.end(), name) == all.end()) {
      throw std::invalid_argument("workloads: expected copy, extract, code, chat, depth or adversarial, found \"" +
                                  name + "\"");
    }
    if (name == "depth" && options.text.empty()) throw std::invalid_argument("workload \"depth\" needs a text");
  }
  return names;
}

std::vector<int64_t> sequences_of(const SpeculationBenchmarkOptions& options, const std::string& workload) {
  if (!options.sequences.empty()) return options.sequences;
  return workload == "depth" ? std::vector<int64_t>{1, 8} : std::vector<int64_t>{1};
}

std::vector<nlohmann::json> methods_of(const SpeculationBenchmarkOptions& options, const std::string& workload,
                                       bool draft_model) {
  return options.methods.empty() ? default_methods(workload, draft_model) : options.methods;
}

// Returns engine options that suit all rows. One pass takes all prompts of a row, so that its sequences decode in step.
EngineOptions engine_options(const SpeculationBenchmarkOptions& options) {
  EngineOptions engine = options.engine;
  engine.prefill_chunk = std::max(engine.prefill_chunk, kWholePrompts);
  engine.prefix_cache_bytes = 0;  // the prompts repeat, and must not hit the prefix cache
  for (const std::string& workload : workloads_of(options)) {
    for (const int64_t sequences : sequences_of(options, workload)) {
      engine.max_sequences = std::max(engine.max_sequences, sequences);
    }
    for (const nlohmann::json& method : methods_of(options, workload, !engine.draft_model.empty())) {
      if (parse_speculation(method).int4) engine.draft_weights = DraftCopy::kInt4;
    }
  }
  return engine;
}

}  // namespace

SpeculationReport run_speculation_benchmark(const SpeculationBenchmarkOptions& options,
                                            const OnSpeculationRow& on_row) {
  return benchmark_speculation(*Engine::create(engine_options(options)), options, on_row);
}

SpeculationReport benchmark_speculation(Engine& engine, const SpeculationBenchmarkOptions& options,
                                        const OnSpeculationRow& on_row) {
  const nlohmann::ordered_json description = engine.describe();
  SpeculationReport report;
  report.model = engine.config().name;
  report.cpu_level = description.value("cpu_level", "");
  report.threads = description.value("threads", 0);
  SpeculationBench bench(engine, options.repetitions);
  const bool draft_model = !description.value("draft_model", std::string()).empty();
  bool warm = false;
  const auto measure = [&](SpeculationWorkload workload, int64_t sequences) {
    workload.temperature = options.temperature.value_or(workload.temperature);
    const Case c{workload, sequences, options.tokens};
    const std::vector<nlohmann::json> methods = methods_of(options, workload.name, draft_model);
    // Check all methods before running the first.
    for (const nlohmann::json& method : methods) engine.validate(bench.request(c, 0, method));
    if (!std::exchange(warm, true)) {
      SpeculationWorkload begin{workload.name, {workload.prompts[0]}, 0, true};
      begin.prompts[0].resize(std::min<size_t>(begin.prompts[0].size(), 64));
      bench.run({begin, 1, 32}, "off");
    }
    for (const nlohmann::json& method : methods) {
      report.rows.push_back(bench.measure(c, method));
      if (on_row) on_row(report.rows.back());
    }
  };
  for (const std::string& name : workloads_of(options)) {
    for (const int64_t sequences : sequences_of(options, name)) {
      if (name != "depth") {
        measure(make_workload(name, engine), sequences);
        continue;
      }
      for (const int64_t depth : options.depths) {
        if (depth + options.tokens > engine.context_length()) {
          throw std::invalid_argument("depth " + std::to_string(depth) + ": expected at most " +
                                      std::to_string(engine.context_length() - options.tokens) + ", the context of " +
                                      std::to_string(engine.context_length()) + " tokens minus the tokens to decode");
        }
        measure(make_depth_workload(options.text, depth, sequences, engine), sequences);
      }
    }
  }
  return report;
}

std::string method_label(const nlohmann::json& method) {
  if (!method.is_object()) return method.is_string() ? method.get<std::string>() : method.dump();
  std::string details;
  for (const auto& [key, value] : method.items()) {
    if (key == "method") continue;
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    details += (details.empty() ? "" : ", ") + (key == "kv_cache" || key == "weights" ? text : key + "=" + text);
  }
  return method.value("method", "") + (details.empty() ? "" : "(" + details + ")");
}

bool SpeculationReport::identical() const {
  return std::all_of(rows.begin(), rows.end(), [](const SpeculationRow& row) { return row.difference.empty(); });
}

nlohmann::ordered_json SpeculationReport::to_json() const {
  nlohmann::ordered_json result = {
      {"model", model}, {"cpu_level", cpu_level}, {"threads", threads}, {"identical", identical()}};
  result["rows"] = nlohmann::ordered_json::array();
  for (const SpeculationRow& row : rows) {
    nlohmann::ordered_json item = {{"workload", row.workload},
                                   {"method", row.method},
                                   {"temperature", row.temperature},
                                   {"sequences", row.sequences},
                                   {"depth", row.depth},
                                   {"drafted", row.drafted},
                                   {"accepted", row.accepted},
                                   {"acceptance", row.acceptance()},
                                   {"tokens_per_pass", row.tokens_per_pass},
                                   {"plain_tokens_per_s", row.plain},
                                   {"tokens_per_s", row.speculative},
                                   {"speedup", row.speedup},
                                   {"speedup_min", row.speedup_min}};
    if (row.bound > 0) item["speedup_bound"] = row.bound;
    item["identical"] = row.difference.empty();
    if (!row.difference.empty()) item["difference"] = row.difference;
    result["rows"].push_back(std::move(item));
  }
  return result;
}

std::string SpeculationReport::to_table() const {
  size_t width = 6;
  for (const SpeculationRow& row : rows) width = std::max(width, method_label(row.method).size());
  width = std::min<size_t>(width, 60);
  std::string table = formatted("%s  %d threads  %s\n", model.c_str(), threads, cpu_level.c_str());
  table += formatted("%-11s %-*s %5s %5s %6s %8s %8s %8s %9s %10s %10s %8s %6s %6s %9s\n", "workload",
                     static_cast<int>(width), "method", "temp", "seqs", "depth", "drafted", "accepted", "accept %",
                     "tok/pass", "plain t/s", "tok/s", "speed-up", "min", "bound", "identical");
  for (const SpeculationRow& row : rows) {
    const std::string bound = row.bound > 0 ? formatted("%.2f", row.bound) : "-";
    table += formatted(
        "%-11s %-*.*s %5.1f %5ld %6ld %8ld %8ld %8.1f %9.2f %10.1f %10.1f %8.2f %6.2f %6s %9s\n", row.workload.c_str(),
        static_cast<int>(width), static_cast<int>(width), method_label(row.method).c_str(),
        static_cast<double>(row.temperature), static_cast<long>(row.sequences), static_cast<long>(row.depth),
        static_cast<long>(row.drafted), static_cast<long>(row.accepted), 100.0 * row.acceptance(), row.tokens_per_pass,
        row.plain, row.speculative, row.speedup, row.speedup_min, bound.c_str(), row.difference.empty() ? "yes" : "NO");
  }
  for (const SpeculationRow& row : rows) {
    if (row.difference.empty()) continue;
    table += "NOT IDENTICAL: " + row.workload + ", " + method_label(row.method) + ", " + std::to_string(row.sequences) +
             " sequences: " + row.difference + "\n";
  }
  return table;
}

}  // namespace smartkv
