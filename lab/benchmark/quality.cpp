#include "lab/benchmark/quality.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "cache/policy.h"
#include "engine/model/llama.h"
#include "engine/model/policy_context.h"
#include "engine/system_resources.h"
#include "engine/text/tokenizer.h"
#include "lab/evaluation/markup.h"

namespace smartkv {
namespace {

constexpr int64_t kQualityChunk = 64;  // rows of logits held at a time

struct QualityCandidate {
  std::unique_ptr<Model> model;
  std::unique_ptr<KvCachePolicy> policy;
  std::unique_ptr<SequenceCache> cache;
  QualityRow row;
  std::vector<double> divergences;
  double loss = 0;
  int64_t same = 0;
  std::vector<float> logits;
};

// Turns logits into log probabilities, in place.
void log_softmax(float* row, int64_t n) {
  const float maximum = *std::max_element(row, row + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(row[i] - maximum));
  const float shift = maximum + static_cast<float>(std::log(sum));
  if (!std::isfinite(shift)) throw std::runtime_error("logits: expected finite values, found NaN or infinity");
  for (int64_t i = 0; i < n; ++i) row[i] -= shift;
}

std::vector<TokenId> read_tokens(const QualityOptions& options, const Tokenizer& tokenizer) {
  std::ifstream file(options.text, std::ios::binary);
  if (!file) throw ModelError(options.text.string() + ": cannot be opened");
  std::stringstream text;
  text << file.rdbuf();
  std::vector<TokenId> tokens = tokenizer.encode(text.str(), {false, false});
  if (static_cast<int64_t>(tokens.size()) <= options.context) {
    throw ModelError(options.text.string() + ": expected more than " + std::to_string(options.context) +
                     " tokens, found " + std::to_string(tokens.size()));
  }
  return tokens;
}

void add_token(QualityCandidate& candidate, const float* reference, const float* row, int64_t vocab, TokenId next) {
  double divergence = 0;
  int64_t top = 0, reference_top = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    divergence += std::exp(static_cast<double>(reference[i])) * (static_cast<double>(reference[i]) - row[i]);
    if (row[i] > row[top]) top = i;
    if (reference[i] > reference[reference_top]) reference_top = i;
  }
  candidate.divergences.push_back(std::max(0.0, divergence));
  candidate.same += top == reference_top ? 1 : 0;
  candidate.loss -= row[next];
}

void finish(QualityCandidate& candidate) {
  QualityRow& row = candidate.row;
  std::sort(candidate.divergences.begin(), candidate.divergences.end());
  const size_t n = candidate.divergences.size();
  for (const double d : candidate.divergences) row.kl_mean += d / static_cast<double>(n);
  row.tokens = static_cast<int64_t>(n);
  row.kl_p99 = candidate.divergences[n * 99 / 100];
  row.kl_max = candidate.divergences.back();
  row.same_top = static_cast<double>(candidate.same) / static_cast<double>(n);
  row.perplexity = std::exp(candidate.loss / static_cast<double>(n));
}

}  // namespace

QualityReport measure_quality(const QualityOptions& options, const std::function<void(double)>& progress) {
  ThreadPool pool(options.model.threads > 0 ? options.model.threads : available_cores());
  const std::unique_ptr<Weights> weights = Weights::open(options.model.path);
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(*weights, options.model.path);
  const std::vector<TokenId> tokens = read_tokens(options, *tokenizer);
  const int64_t vocab = weights->config().vocab_size;

  std::vector<WeightFormat> formats = {WeightFormat::kBf16};
  formats.insert(formats.end(), options.weights.begin(), options.weights.end());
  std::vector<QualityCandidate> candidates;
  for (const WeightFormat format : formats) {
    QualityCandidate& candidate = candidates.emplace_back();
    const ModelOptions served{.weights = format};
    candidate.model = load_llama(*weights, served, pool);
    const CacheShape shape = llama_cache_shape(candidate.model->config(), served);
    candidate.policy = make_policy(policy_context(*candidate.model, shape, &pool), nullptr);
    candidate.row.weights = name(format);
    candidate.row.weight_bytes = candidate.model->weight_bytes();
    candidate.logits.resize(static_cast<size_t>(kQualityChunk * vocab));
  }

  const int64_t fitting = (static_cast<int64_t>(tokens.size()) - 1) / options.context;
  const int64_t windows = std::min(options.windows, fitting);
  for (int64_t window = 0; window < windows; ++window) {
    const int64_t start = window * fitting / windows * options.context;  // spread over the text
    for (QualityCandidate& candidate : candidates) candidate.cache = candidate.policy->new_sequence(options.context);
    for (int64_t at = 0; at < options.context; at += kQualityChunk) {
      const int64_t n = std::min(kQualityChunk, options.context - at);
      for (QualityCandidate& candidate : candidates) {
        const SequenceInput input{std::span(tokens).subspan(static_cast<size_t>(start + at), static_cast<size_t>(n)),
                                  candidate.cache.get(), n};
        candidate.model->forward({&input, 1}, candidate.logits.data());
        pool.parallel_for(n, [&](int64_t i) { log_softmax(candidate.logits.data() + i * vocab, vocab); });
        for (int64_t i = 0; i < n; ++i) {
          add_token(candidate, candidates[0].logits.data() + i * vocab, candidate.logits.data() + i * vocab, vocab,
                    tokens[static_cast<size_t>(start + at + i + 1)]);
        }
      }
      if (progress)
        progress((static_cast<double>(window) + static_cast<double>(at + n) / static_cast<double>(options.context)) /
                 static_cast<double>(windows));
    }
  }
  QualityReport report;
  for (QualityCandidate& candidate : candidates) {
    finish(candidate);
    report.rows.push_back(candidate.row);
  }
  return report;
}

nlohmann::ordered_json QualityReport::to_json() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const QualityRow& row : rows) {
    json.push_back({{"weights", row.weights},
                    {"weight_bytes", row.weight_bytes},
                    {"tokens", row.tokens},
                    {"perplexity", row.perplexity},
                    {"kl_mean", row.kl_mean},
                    {"kl_p99", row.kl_p99},
                    {"kl_max", row.kl_max},
                    {"same_top", row.same_top}});
  }
  return json;
}

std::string QualityReport::to_table() const {
  std::string table = formatted("%-8s %10s %8s %12s %9s %10s %10s %10s %9s\n", "weights", "MB", "tokens", "perplexity",
                                "change", "KL mean", "KL p99", "KL max", "same top");
  for (const QualityRow& row : rows) {
    table += formatted("%-8s %10.1f %8ld %12.4f %+8.2f%% %10.5f %10.5f %10.5f %8.2f%%\n", row.weights.c_str(),
                       static_cast<double>(row.weight_bytes) / 1e6, static_cast<long>(row.tokens), row.perplexity,
                       100.0 * (row.perplexity / rows[0].perplexity - 1.0), row.kl_mean, row.kl_p99, row.kl_max,
                       100.0 * row.same_top);
  }
  return table;
}

}  // namespace smartkv
