#include "lab/benchmark/benchmark.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>

#include "cache/policy.h"
#include "engine/calibration/calibration.h"
#include "engine/model/llama.h"
#include "engine/model/policy_context.h"
#include "engine/parallel/tensor_parallel.h"
#include "engine/system_resources.h"
#include "engine/weights/model_fingerprint.h"
#include "engine/weights/projections.h"
#include "kernels/cpu_level.h"
#include "lab/benchmark/limits.h"
#include "lab/evaluation/markup.h"

namespace smartkv {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Returns the share of the weights that a pass of `rows` rows reads, if experts are chosen evenly.
double read_fraction(const ModelConfig& c, int64_t rows) {
  double all = static_cast<double>(c.hidden_size * c.vocab_size), unread = 0;
  const auto experts = static_cast<double>(c.n_experts);
  const auto skipped = [&] {
    return std::pow(1.0 - static_cast<double>(c.experts_per_token) / experts, static_cast<double>(rows));
  };
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    all += static_cast<double>(c.hidden_size * c.head_dim * 2 * (c.n_heads + c.n_kv_heads));
    for (const MlpTensors& mlp : mlps_of(c, layer)) all += static_cast<double>(3 * c.hidden_size * mlp.size);
    if (c.has_experts(layer)) unread += skipped() * experts * static_cast<double>(3 * c.hidden_size * c.expert_size);
  }
  return 1.0 - unread / all;
}

class Bench {
 public:
  Bench(const BenchmarkOptions& options, Model& model, const KvCachePolicy& policy)
      : options_(options), model_(model), policy_(policy) {}

  // Computes a prompt as it is served: the cache is compressed on the way and at the end, and only the last pass has
  // logits.
  BenchmarkRow prefill(int64_t depth, int64_t tokens) {
    return measure(
        "prefill", depth, 1, tokens, depth + tokens, [&](std::vector<std::unique_ptr<SequenceCache>>& caches) {
          SequenceCache& cache = *caches[0];
          while (cache.tokens() < depth + tokens) {
            const int64_t rest = depth + tokens - cache.tokens();
            const int64_t n = std::min({options_.prefill_chunk, rest, cache.next_boundary() - cache.tokens()});
            pass(caches, n, n == rest ? 1 : 0);
            cache.commit(cache.tokens());
          }
        });
  }
  BenchmarkRow decode(int64_t depth, int64_t batch) {
    return measure("decode", depth, batch, batch * options_.decode_tokens, depth, [&](auto& caches) {
      for (int64_t i = 0; i < options_.decode_tokens; ++i) pass(caches, 1, 1);
    });
  }

 private:
  template <typename Run>
  BenchmarkRow measure(const char* kind, int64_t depth, int64_t batch, int64_t tokens, int64_t prompt, const Run& run) {
    BenchmarkRow row;
    row.kind = kind;
    row.depth = depth;
    row.batch = batch;
    row.tokens = tokens;
    std::vector<double> rates;
    std::vector<std::unique_ptr<SequenceCache>> caches;
    const bool forked = prompt > depth;  // a prefill compresses its cache, so it cannot be truncated and needs a fork
    std::vector<std::unique_ptr<SequenceCache>> at_depth;
    for (int64_t i = 0; i < batch; ++i) at_depth.push_back(filled(depth, prompt, static_cast<uint64_t>(i)));
    if (!forked) caches.swap(at_depth);
    for (int i = 0; i <= options_.repetitions; ++i) {  // the first one warms up
      if (forked) caches.clear();
      for (const auto& cache : at_depth) caches.push_back(cache->fork());
      const auto start = std::chrono::steady_clock::now();
      run(caches);
      if (i > 0) rates.push_back(static_cast<double>(tokens) / seconds_since(start));
      row.kv_bytes = 0;
      for (const auto& cache : caches) {
        row.kv_bytes += cache->stats().bytes;
        if (!forked) cache->truncate(depth);
      }
    }
    std::sort(rates.begin(), rates.end());
    row.best = rates.back();
    row.median = rates[rates.size() / 2];
    return row;
  }

  // Returns a new cache with `depth` random tokens, committed page by page. With several ranks the tokens are computed,
  // because only a pass writes rows on all ranks.
  std::unique_ptr<SequenceCache> filled(int64_t depth, int64_t prompt, uint64_t seed) {
    if (model_.ranks() > 1) return computed(depth, prompt);
    const ModelConfig& c = model_.config();
    const int64_t width = c.n_kv_heads * c.head_dim;
    auto cache = policy_.new_sequence(prompt);
    std::minstd_rand random(static_cast<unsigned>(seed) + 1);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    std::vector<float> rows(static_cast<size_t>(2 * 64 * width));
    while (cache->tokens() < depth) {
      const int64_t n = std::min({int64_t{64}, depth - cache->tokens(), cache->next_boundary() - cache->tokens()});
      for (float& value : rows) value = uniform(random);
      cache->reserve(n);
      for (int64_t layer = 0; layer < c.n_layers; ++layer) {
        cache->write(layer, {rows.data(), rows.data() + width, 2 * width, 0, n});
      }
      cache->advance(n);
      cache->commit(cache->tokens());
    }
    return cache;
  }

  std::unique_ptr<SequenceCache> computed(int64_t depth, int64_t prompt) {
    std::vector<std::unique_ptr<SequenceCache>> caches;
    caches.push_back(policy_.new_sequence(prompt));
    SequenceCache& cache = *caches[0];
    while (cache.tokens() < depth) {
      pass(caches, std::min({options_.prefill_chunk, depth - cache.tokens(), cache.next_boundary() - cache.tokens()}),
           0);
      cache.commit(cache.tokens());
    }
    return std::move(caches[0]);
  }

  void pass(std::vector<std::unique_ptr<SequenceCache>>& caches, int64_t n, int64_t n_logits) {
    const int64_t vocab = model_.config().vocab_size;
    tokens_.resize(static_cast<size_t>(n));
    for (TokenId& token : tokens_) token = static_cast<TokenId>(random_() % static_cast<unsigned>(vocab));
    inputs_.clear();
    for (const auto& cache : caches) inputs_.push_back({tokens_, cache.get(), n_logits});
    logits_.resize(static_cast<size_t>(static_cast<int64_t>(caches.size()) * std::max<int64_t>(1, n_logits) * vocab));
    model_.forward(inputs_, logits_.data());
  }

  const BenchmarkOptions& options_;
  Model& model_;
  const KvCachePolicy& policy_;
  std::minstd_rand random_{7};
  std::vector<TokenId> tokens_;
  std::vector<SequenceInput> inputs_;
  std::vector<float> logits_;
};

}  // namespace

std::vector<BenchmarkRow> measure_rates(Model& model, const KvCachePolicy& policy, const BenchmarkOptions& options,
                                        const std::function<void(const BenchmarkRow&)>& on_row) {
  Bench bench(options, model, policy);
  std::vector<BenchmarkRow> rows;
  const auto add = [&](const BenchmarkRow& row) {
    rows.push_back(row);
    if (on_row) on_row(row);
  };
  for (const int64_t depth : options.depths) {
    for (const int64_t tokens : options.prompts) add(bench.prefill(depth, tokens));
    for (const int64_t batch : options.batches) add(bench.decode(depth, batch));
  }
  return rows;
}

BenchmarkReport run_benchmark(const BenchmarkOptions& options, const std::function<void(const BenchmarkRow&)>& on_row) {
  BenchmarkReport report;
  ModelOptions served = options.model;
  if (served.threads == 0) served.threads = available_cores();
  report.threads = served.threads;
  report.tensor_parallel = served.tensor_parallel;
  ThreadPool pool(threads_of_rank(served.threads, 0, served.tensor_parallel));
  if (options.limits) report.limits = measure_limits(pool);

  const auto start = std::chrono::steady_clock::now();
  const std::unique_ptr<Weights> weights = Weights::open(served.path);
  const std::unique_ptr<Model> model =
      served.tensor_parallel > 1 ? load_ranked(*weights, served, pool) : load_llama(*weights, served, pool);
  report.load_s = seconds_since(start);
  report.model = model->config().name;
  report.cpu_level = std::string(kernels::name(kernels::cpu_level()));
  report.backend = name(served.backend);
  report.dtype = stored_weights(served, *weights);
  report.weight_bytes = model->weight_bytes();

  const CacheShape shape = ranked_cache_shape(model->config(), served);
  const auto policy = model->make_policy(policy_context(*model, shape, &pool, {model_identity(*weights), served.gates},
                                                        calibrated_on_demand(*model, *weights, pool, served)),
                                         options.kv_cache);
  const auto add = [&](BenchmarkRow row) {
    if (options.limits) {
      // A pass reads the weights, or those of the experts that it needs, once and each sequence's cache once. A product
      // takes 2 operations per weight.
      const ModelConfig& c = model->config();
      const double passes =
          row.kind == "decode"
              ? static_cast<double>(options.decode_tokens)
              : std::ceil(static_cast<double>(row.tokens) / static_cast<double>(options.prefill_chunk));
      const int64_t pass_rows = row.kind == "decode" ? row.batch : std::min(options.prefill_chunk, row.tokens);
      const double bytes = passes * (static_cast<double>(report.weight_bytes) * read_fraction(c, pass_rows) +
                                     static_cast<double>(row.kv_bytes));
      double per_token =
          2.0 * static_cast<double>(c.n_layers * c.hidden_size * c.head_dim * 2 * (c.n_heads + c.n_kv_heads));
      for (int64_t layer = 0; layer < c.n_layers; ++layer) {
        per_token += 2.0 * static_cast<double>(c.mlp_weights_per_token(layer));
      }
      const double seen = static_cast<double>(row.depth) + 0.5 * static_cast<double>(row.tokens / row.batch);
      const double attended = seen * static_cast<double>(c.n_full_layers()) +
                              std::min(seen, static_cast<double>(c.sliding_window)) *
                                  static_cast<double>(c.n_window_layers());  // over all layers
      const double attention = 4.0 * attended * static_cast<double>(c.n_heads * c.head_dim);
      const double head = 2.0 * static_cast<double>(c.hidden_size * c.vocab_size) *
                          (row.kind == "decode" ? static_cast<double>(row.tokens) : 1.0);
      const double operations = static_cast<double>(row.tokens) * (per_token + attention) + head;
      const bool floats = report.dtype == "bf16" || report.dtype == "f32" || report.dtype == "f16";
      const double rate =
          floats ? report.limits.bf16_gflops : std::max(report.limits.bf16_gflops, report.limits.int8_gops);
      const double floor = std::max(bytes / (report.limits.read_gb_per_s * 1e9), operations / (rate * 1e9));
      row.limit = static_cast<double>(row.tokens) / floor;
    }
    report.rows.push_back(row);
    if (on_row) on_row(row);
  };
  measure_rates(*model, *policy, options, add);
  report.resident_bytes = resident_bytes();
  return report;
}

nlohmann::ordered_json BenchmarkReport::to_json() const {
  nlohmann::ordered_json json = {{"model", model},
                                 {"cpu_level", cpu_level},
                                 {"backend", backend},
                                 {"dtype", dtype},
                                 {"tensor_parallel", tensor_parallel},
                                 {"threads", threads},
                                 {"load_s", load_s},
                                 {"weight_bytes", weight_bytes},
                                 {"resident_bytes", resident_bytes}};
  if (limits.read_gb_per_s > 0) {
    json["limits"] = {{"read_gb_per_s", limits.read_gb_per_s},
                      {"read_rows_gb_per_s", limits.read_rows_gb_per_s},
                      {"bf16_gflops", limits.bf16_gflops},
                      {"int8_gops", limits.int8_gops}};
  }
  json["rows"] = nlohmann::ordered_json::array();
  for (const BenchmarkRow& row : rows) {
    json["rows"].push_back({{"kind", row.kind},
                            {"depth", row.depth},
                            {"batch", row.batch},
                            {"tokens", row.tokens},
                            {"tokens_per_s_best", row.best},
                            {"tokens_per_s_median", row.median},
                            {"kv_bytes", row.kv_bytes}});
    if (row.limit > 0) json["rows"].back()["tokens_per_s_limit"] = row.limit;
  }
  return json;
}

std::string BenchmarkReport::to_table() const {
  const std::string ranks = tensor_parallel == 1 ? "" : "  " + std::to_string(tensor_parallel) + " ranks";
  std::string table =
      formatted("%s  %s%s  %s  %d threads  %s  weights %.1f MB  load %.2f s  resident %.0f MB\n", model.c_str(),
                backend.c_str(), ranks.c_str(), dtype.c_str(), threads, cpu_level.c_str(),
                static_cast<double>(weight_bytes) / 1e6, load_s, static_cast<double>(resident_bytes) / 1e6);
  if (limits.read_gb_per_s > 0) {
    table += formatted(
        "limits: read %.1f GB/s, a quarter of all 256-byte rows %.1f GB/s, products %.0f GFLOP/s in bf16, "
        "%.0f Gop/s in int8\n",
        limits.read_gb_per_s, limits.read_rows_gb_per_s, limits.bf16_gflops, limits.int8_gops);
  }
  table += formatted("%-8s %7s %6s %8s %12s %12s %10s%s\n", "", "depth", "batch", "tokens", "best tok/s", "median",
                     "KV MB", limits.read_gb_per_s > 0 ? "  limit tok/s  reached" : "");
  for (const BenchmarkRow& row : rows) {
    table += formatted("%-8s %7ld %6ld %8ld %12.1f %12.1f %10.1f", row.kind.c_str(), static_cast<long>(row.depth),
                       static_cast<long>(row.batch), static_cast<long>(row.tokens), row.best, row.median,
                       static_cast<double>(row.kv_bytes) / 1e6);
    if (row.limit > 0) table += formatted("  %11.1f  %6.0f%%", row.limit, 100.0 * row.best / row.limit);
    table += "\n";
  }
  return table;
}

}  // namespace smartkv
