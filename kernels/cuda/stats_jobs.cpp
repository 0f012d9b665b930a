#include "kernels/cuda/stats_jobs.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace smartkv::kernels::cuda {
namespace {

constexpr size_t kNone = ResultSpace::kNone;

template <typename T>
const T* input(const std::byte* staged, size_t offset) {
  return offset == kNone ? nullptr : reinterpret_cast<const T*>(staged + offset);
}
template <typename T>
T* output(std::byte* results, size_t offset) {
  return offset == kNone ? nullptr : reinterpret_cast<T*>(results + offset);
}

}  // namespace

void ResultSpace::clear() {
  results_.clear();
  bytes_ = 0;
}

size_t ResultSpace::add(void* to, size_t row_bytes, size_t rows, size_t stride) {
  if (to == nullptr) return kNone;
  const size_t at = bytes_;
  results_.push_back({static_cast<std::byte*>(to), at, row_bytes, rows, stride});
  bytes_ += (row_bytes * rows + 7) / 8 * 8;
  return at;
}

void ResultSpace::hand_out(const std::byte* from) const {
  for (const Result& result : results_) {
    for (size_t row = 0; row < result.rows; ++row) {
      std::memcpy(result.to + row * result.stride, from + result.at + row * result.row_bytes, result.row_bytes);
    }
  }
}

// Stages data that several jobs of a call share once.
class StatsJobs::CallStaging {
 public:
  explicit CallStaging(Staging& staging) : staging_(staging) {}
  size_t add(const void* from, size_t bytes) {
    if (from == nullptr) return kNone;
    for (auto known = known_.rbegin(); known != known_.rend(); ++known) {
      if (known->from == from && known->bytes == bytes) return known->at;
    }
    known_.push_back({from, bytes, staging_.add(from, bytes)});
    return known_.back().at;
  }

 private:
  struct Known {
    const void* from;
    size_t bytes, at;
  };
  Staging& staging_;
  std::vector<Known> known_;
};

void StatsJobs::clear() {
  pages_.clear();
  page_orders_.clear();
  score_calls_.clear();
  scorings_.clear();
  studies_.clear();
  products_.clear();
  summaries_.clear();
  figures_.clear();
}

StatsJobs::Range StatsJobs::add_pages(std::span<const KvSegment> pages, size_t order_bytes, CallStaging* staging) {
  const Range range{pages_.size(), pages.size()};
  for (const KvSegment& page : pages) {
    pages_.push_back(page);
    page_orders_.push_back(staging->add(page.channel_order, order_bytes));
  }
  return range;
}

void StatsJobs::score(int64_t n_kv_heads, int64_t head_dim, std::shared_ptr<const DeviceGate> gate,
                       std::span<const TokenScoring> layers, Staging& staging, ResultSpace& results) {
  CallStaging call(staging);
  for (const TokenScoring& layer : layers) {
    const auto bytes = static_cast<size_t>(n_kv_heads * layer.n) * sizeof(float);
    const size_t angles = call.add(layer.angles, static_cast<size_t>(layer.n * head_dim) * sizeof(float));
    const size_t importance = gate == nullptr ? 0 : static_cast<size_t>(gate->importance_heads() * layer.n) * sizeof(float);
    scorings_.push_back({layer, add_pages(layer.pages, 0, &call), angles, results.add(layer.scores, bytes),
                         results.add(layer.importance, importance)});
  }
  const bool joins = !score_calls_.empty() && score_calls_.back().gate == gate && score_calls_.back().n_kv_heads == n_kv_heads;
  if (!joins) score_calls_.push_back({std::move(gate), n_kv_heads, 0});
  score_calls_.back().end = scorings_.size();
}

void StatsJobs::page_stats(int64_t head_dim, std::span<const PageStats> pages, ResultSpace& results) {
  for (const PageStats& page : pages) {
    const auto heads = static_cast<size_t>(page.n_heads), channels = heads * static_cast<size_t>(head_dim);
    const auto tokens = heads * static_cast<size_t>(page.n);
    studies_.push_back({page, results.add(page.k_range, channels * sizeof(float)), results.add(page.v_range, tokens * sizeof(float)),
                        results.add(page.k_squares, channels * sizeof(double)), results.add(page.v_squares, heads * sizeof(double))});
  }
}

void StatsJobs::multiply_keys(int64_t head_dim, std::span<const KeyProducts> products, Staging& staging, ResultSpace& results) {
  CallStaging call(staging);
  const auto row = static_cast<size_t>(head_dim);
  for (const KeyProducts& job : products) {
    const auto queries = static_cast<size_t>(job.n_queries), order_bytes = static_cast<size_t>(job.head + 1) * row;
    Products& to = products_.emplace_back(Products{job, {}, job.residual != nullptr, kNone, kNone, kNone, kNone});
    to.order = call.add(job.page.channel_order, order_bytes);
    if (to.has_residual) {
      to.residual = *job.residual;
      to.residual_order = call.add(to.residual.channel_order, order_bytes);
    }
    to.q = call.add(job.q, queries * row * sizeof(float));
    to.out = results.add(job.out, static_cast<size_t>(job.n) * sizeof(float), queries,
                         static_cast<size_t>(job.out_stride) * sizeof(float));
  }
}

StatsJobs::Entries StatsJobs::add_entries(int64_t head_dim, const HeadEntries& from, CallStaging* staging) {
  Entries to{{}, add_pages(from.codes, static_cast<size_t>((from.head + 1) * head_dim), staging), kNone, kNone, kNone, kNone};
  to.of.head = from.head;
  to.of.n = static_cast<int64_t>(from.bias.size());
  to.tokens = staging->add(from.tokens.data(), from.tokens.size_bytes());
  to.bias = staging->add(from.bias.data(), from.bias.size_bytes());
  if (from.queries == nullptr) return to;
  to.of.n_queries = from.queries->n;
  to.q = staging->add(from.queries->q.data(), from.queries->q.size() * sizeof(float));
  to.log_norm = staging->add(from.queries->log_norm.data(), from.queries->log_norm.size() * sizeof(float));
  return to;
}

void StatsJobs::summarize(int64_t head_dim, std::span<const EntrySummary> summaries, Staging& staging, ResultSpace& results) {
  CallStaging call(staging);
  for (const EntrySummary& from : summaries) {
    Summary& to = summaries_.emplace_back(Summary{{}, add_entries(head_dim, from.entries, &call), kNone, kNone, kNone, kNone});
    to.job.rule = from.rule;
    to.job.summaries = static_cast<int64_t>(from.to.size());
    to.to = call.add(from.to.data(), from.to.size_bytes());
    to.pivots = results.add(from.pivots, from.to.size() * sizeof(int32_t));
    to.group = results.add(from.group, from.entries.bias.size() * sizeof(int32_t));
    to.bias = results.add(from.bias, from.to.size() * sizeof(float));
  }
}

void StatsJobs::entry_stats(int64_t head_dim, std::span<const EntryStats> entries, Staging& staging, ResultSpace& results) {
  CallStaging call(staging);
  for (const EntryStats& from : entries) {
    Figures& to = figures_.emplace_back(Figures{{}, add_entries(head_dim, from.entries, &call), kNone});
    to.job.figure = from.figure;
    to.job.pivots = from.pivots;
    to.out = results.add(from.out, from.entries.bias.size() * sizeof(float));
  }
}

DeviceEntries StatsJobs::placed(const Entries& from, const std::byte* staged) const {
  DeviceEntries to = from.of;
  to.codes = std::span(pages_).subspan(from.pages.first, from.pages.n);
  to.tokens = input<TokenPlace>(staged, from.tokens);
  to.bias = input<float>(staged, from.bias);
  to.q = input<float>(staged, from.q);
  to.log_norm = input<float>(staged, from.log_norm);
  return to;
}

void StatsJobs::launch_scores(int64_t head_dim, const std::byte* staged, std::byte* results, PageWorkspace& workspace,
                               CUstream_st* stream) {
  std::vector<TokenScoring> layers;
  for (const Scoring& from : scorings_) {
    TokenScoring& layer = layers.emplace_back(from.job);
    layer.pages = std::span(pages_).subspan(from.pages.first, from.pages.n);
    layer.angles = input<float>(staged, from.angles);
    layer.scores = output<float>(results, from.scores);
    layer.importance = output<float>(results, from.importance);
  }
  size_t first = 0;
  for (const ScoreCall& call : score_calls_) {
    score_tokens(call.n_kv_heads, head_dim, call.gate.get(), std::span(layers).subspan(first, call.end - first), workspace, stream);
    first = call.end;
  }
}

void StatsJobs::launch(int64_t head_dim, const std::byte* staged, std::byte* results, PageWorkspace& workspace,
                        SummaryWorkspace& summaries, CUstream_st* stream) {
  for (size_t i = 0; i < pages_.size(); ++i) pages_[i].channel_order = input<uint8_t>(staged, page_orders_[i]);
  launch_scores(head_dim, staged, results, workspace, stream);
  std::vector<PageStats> studies;
  for (const Study& from : studies_) {
    PageStats& job = studies.emplace_back(from.job);
    job.k_range = output<float>(results, from.k_range);
    job.v_range = output<float>(results, from.v_range);
    job.k_squares = output<double>(results, from.k_squares);
    job.v_squares = output<double>(results, from.v_squares);
  }
  study_pages(head_dim, studies, workspace, stream);
  std::vector<KeyProducts> products;
  for (Products& from : products_) {
    KeyProducts& job = products.emplace_back(from.job);
    job.page.channel_order = input<uint8_t>(staged, from.order);
    from.residual.channel_order = input<uint8_t>(staged, from.residual_order);
    job.residual = from.has_residual ? &from.residual : nullptr;
    job.q = input<float>(staged, from.q);
    job.out = output<float>(results, from.out);
    job.out_stride = job.n;
  }
  cuda::multiply_keys(head_dim, products, workspace, stream);
  std::vector<DeviceStats> figures;
  for (const Figures& from : figures_) {
    DeviceStats& job = figures.emplace_back(from.job);
    job.entries = placed(from.entries, staged);
    job.out = output<float>(results, from.out);
  }
  cuda::entry_stats(head_dim, figures, workspace, summaries, stream);
  std::vector<DeviceSummary> jobs;
  for (const Summary& from : summaries_) {
    DeviceSummary& job = jobs.emplace_back(from.job);
    job.entries = placed(from.entries, staged);
    job.to = input<TokenPlace>(staged, from.to);
    job.pivots = output<int32_t>(results, from.pivots);
    job.group = output<int32_t>(results, from.group);
    job.bias = output<float>(results, from.bias);
  }
  summarize_entries(head_dim, jobs, workspace, summaries, stream);
}

}  // namespace smartkv::kernels::cuda
