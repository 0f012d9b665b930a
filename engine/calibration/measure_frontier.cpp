#include "engine/calibration/measure_frontier.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cache/policy.h"
#include "engine/log.h"
#include "engine/model/policy_context.h"
#include "engine/sampling/logit_metrics.h"
#include "engine/sampling/row_scan.h"
#include "engine/system_resources.h"
#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;
using nlohmann::json;

constexpr int64_t kPageAnswers = 16;                      // of each page, its last ones
constexpr int64_t kFirstAnswer = 4 * kPageTokens;         // from here on answers are compared
constexpr double kShadowShare = 1.0 / (2 * kPageTokens);  // a query of every other page shows its drift

std::vector<json> candidates() {
  std::vector<json> specs = {{{"policy", "k8v4"}}, {{"policy", "k4v4"}}};
  for (const double bits : {8.5, 6.5, 5.5, 4.5, 4.0, 3.5, 3.0, 2.5, 2.0}) {
    specs.push_back({{"policy", "calibrated"}, {"bits", bits}});
  }
  return specs;
}

// Sums over the answers, or the samples, of one kind of text.
struct KindSums {
  double kl = 0, drift = 0;
  int64_t answers = 0, samples = 0;
};

struct Candidate {
  json spec;
  std::unique_ptr<KvCachePolicy> policy;  // in shadow mode
  std::vector<KindSums> kinds;
  std::unique_ptr<SequenceCache> cache = nullptr;
  double rise = 0, rise_squares = 0;  // sums of log p(next token): the full cache's minus this one's
  double drift = 0, samples = 0;      // of the sequence so far
};

FrontierPoint point_of(const Candidate& of) {
  FrontierPoint point{.spec = of.spec};
  double answers = 0;
  for (const KindSums& kind : of.kinds) {
    if (kind.answers > 0) point.kl = std::max(point.kl, kind.kl / static_cast<double>(kind.answers));
    if (kind.samples > 0) point.drift = std::max(point.drift, kind.drift / static_cast<double>(kind.samples));
    answers += static_cast<double>(kind.answers);
  }
  const double mean = of.rise / answers,
               error = std::sqrt(std::max(0.0, of.rise_squares / answers - mean * mean) / answers);
  point.perplexity_percent = 100 * std::expm1(std::max(mean + error, point.kl));
  const CacheStats stats = of.cache->stats();
  point.bytes_per_token = (static_cast<double>(stats.policy_bytes()) - of.cache->details().at("shadow_bytes")) /
                          static_cast<double>(stats.tokens);
  return point;
}

// Compares the answers at [first, first + n) of a pass. rows: log probabilities of the full cache, then logits of each
// candidate, [n, vocab_size] each.
void compare(std::span<const TokenId> text, int64_t first, int64_t n, int64_t part, std::span<float> rows, size_t vocab,
             ThreadPool& threads, std::span<Candidate> group) {
  threads.parallel_for(n, [&](int64_t i) { log_softmax(rows.subspan(static_cast<size_t>(i) * vocab, vocab)); });
  std::vector<double> kl(group.size() * static_cast<size_t>(n)), rise(kl.size());
  threads.parallel_for(n, [&](int64_t i) {
    const auto exact = rows.subspan(static_cast<size_t>(i) * vocab, vocab);
    std::vector<float> p(vocab);
    exp_row(exact, 0.0f, 1.0f, p.data());
    for (size_t c = 0; c < group.size(); ++c) {
      const size_t at = c * static_cast<size_t>(n) + static_cast<size_t>(i);
      const auto row = rows.subspan((at + static_cast<size_t>(n)) * vocab, vocab);
      log_softmax(row);
      kl[at] = kl_divergence(exact, p, row);
      const auto next = static_cast<size_t>(first + i + 1);
      if (next < text.size()) {
        const auto token = static_cast<size_t>(text[next]);
        rise[at] = static_cast<double>(exact[token]) - static_cast<double>(row[token]);
      }
    }
  });
  for (size_t c = 0; c < group.size(); ++c) {
    for (int64_t i = 0; i < n; ++i) {
      const size_t at = c * static_cast<size_t>(n) + static_cast<size_t>(i);
      KindSums& kind = group[c].kinds[static_cast<size_t>((first + i) / part) % group[c].kinds.size()];
      kind.kl += kl[at];
      ++kind.answers;
      group[c].rise += rise[at];
      group[c].rise_squares += rise[at] * rise[at];
    }
  }
}

// Adds what has been sampled since the last call to the kind of text at `position`.
void add_drift(Candidate* candidate, int64_t position, int64_t part) {
  const std::map<std::string, double> details = candidate->cache->details();
  const double samples = details.at("drift_samples");
  if (samples == candidate->samples) return;
  const double drift = details.at("drift_l2_mean") * samples;  // details have means over layers and samples
  KindSums& kind = candidate->kinds[static_cast<size_t>(position / part) % candidate->kinds.size()];
  if (position >= kFirstAnswer) {
    kind.drift += drift - candidate->drift;
    kind.samples += static_cast<int64_t>(samples - candidate->samples);
  }
  candidate->drift = drift;
  candidate->samples = samples;
}

}  // namespace

Frontier measure_frontier(Model& model, const CacheShape& shape, ThreadPool& threads, std::span<const TokenId> text,
                          int64_t kinds, const std::shared_ptr<const Sensitivity>& sensitivity,
                          const std::function<void(double)>& progress) {
  const int64_t tokens = std::ssize(text), part = std::max<int64_t>(1, tokens / (2 * kinds));
  const auto vocab = static_cast<size_t>(model.config().vocab_size);
  const PolicyContext context = policy_context(model, shape, &threads, {}, [sensitivity] { return sensitivity; });
  const std::unique_ptr<KvCachePolicy> full = model.make_policy(context, "full");
  std::vector<Candidate> all;
  for (const json& spec : candidates()) {
    json shadowed = spec;
    shadowed["shadow"] = kShadowShare;
    try {
      all.push_back({spec, model.make_policy(context, shadowed), std::vector<KindSums>(static_cast<size_t>(kinds))});
    } catch (const CacheError& error) {
      log(LogLevel::kDebug, "frontier: " + spec.dump() + " is left out: " + error.what());
    }
  }
  // A quarter of the memory holds the caches of a group and their shadows.
  const int64_t fit = available_bytes() / 4 / (2 * tokens * shape.bytes_per_token());
  const auto most = static_cast<size_t>(std::clamp<int64_t>(fit, 1, std::ssize(all)));
  std::vector<FrontierPoint> points = {
      {.spec = {{"policy", "full"}}, .bytes_per_token = static_cast<double>(shape.bytes_per_token())}};
  std::vector<float> rows;
  for (size_t begin = 0; begin < all.size(); begin += most) {
    const std::span<Candidate> group = std::span(all).subspan(begin, std::min(most, all.size() - begin));
    const std::unique_ptr<SequenceCache> exact = full->new_sequence(0);
    for (Candidate& candidate : group) candidate.cache = candidate.policy->new_sequence(0);
    while (exact->tokens() < tokens) {
      const int64_t first = exact->tokens();
      int64_t n = std::min(kPageTokens - first % kPageTokens, tokens - first);
      for (const Candidate& candidate : group) n = std::min(n, candidate.cache->next_boundary() - first);
      const int64_t answers = first < kFirstAnswer ? 0 : std::min(n, kPageAnswers);
      std::vector<SequenceInput> batch = {
          {text.subspan(static_cast<size_t>(first), static_cast<size_t>(n)), exact.get(), answers}};
      for (const Candidate& candidate : group) {
        batch.push_back(batch.front());
        batch.back().cache = candidate.cache.get();
      }
      rows.resize(batch.size() * static_cast<size_t>(answers) * vocab);
      model.forward(batch, rows.data());
      if (answers > 0) compare(text, first + n - answers, answers, part, rows, vocab, threads, group);
      exact->commit(exact->tokens());
      for (Candidate& candidate : group) {
        candidate.cache->commit(candidate.cache->tokens());
        add_drift(&candidate, first + n - 1, part);
      }
      if (progress) {
        progress((static_cast<double>(begin) +
                  static_cast<double>(group.size()) * static_cast<double>(first + n) / static_cast<double>(tokens)) /
                 static_cast<double>(all.size()));
      }
    }
    for (Candidate& candidate : group) {
      points.push_back(point_of(candidate));
      candidate.cache.reset();
    }
  }
  return make_frontier(std::move(points));
}

}  // namespace smartkv
