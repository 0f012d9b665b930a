// Each job takes a block of threads.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "cache/policies/block_summary/least_squares.h"
#include "cache/policies/block_summary/summary_jobs.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/kv_backend.h"
#include "kernels/cuda/page_queue.h"
#include "kernels/cuda/page_values.h"
#include "kernels/cuda/platform.h"
#include "kernels/cuda/row_table.h"

namespace smartkv {
namespace {

using namespace kernels;
using namespace kernels::cuda;

// Scratch of a job in device memory, for n entries, m summaries, d channels and q queries.
struct Scratch {
  double *own, *mass, *squares;               // [n]: exp(bias), sum of attention received, sum of its squares
  double *gram, *rhs, *weights, *x, *used;    // [m, m], [m] each
  double* query_mass;                         // [q]
  double *errors, *shares, *fit;              // For least squares: [q, d], [q, m], [m, d].
  double *all_gram, *target, *sub;            // For matching: [n, n], [n], [m, m].
  float *k, *v, *units;                       // [d, n], [n, d], [d, n]
  float *attention, *cosine, *mean, *values;  // [q, n], [n], [d], [m, d]
  int32_t *order, *chosen, *nearest;          // [n] each
};

struct Sizes {
  int64_t n, m, d, q;
  bool matching, least_squares;  // Whether the job's rule needs scratch memory for them.
};

// Lays out the scratch of a job from `at` on, or only counts if `at` is null. Returns the bytes.
size_t lay_out(const Sizes& of, std::byte* at, Scratch* scratch) {
  size_t bytes = 0;
  const auto add = [&](auto** to, int64_t count) {
    *to = at == nullptr ? nullptr : reinterpret_cast<std::remove_reference_t<decltype(*to)>>(at + bytes);
    bytes += static_cast<size_t>(count) * sizeof(**to);
  };
  const auto [n, m, d, q, matching, least_squares] = of;
  for (double** to : {&scratch->own, &scratch->mass, &scratch->squares}) add(to, n);
  add(&scratch->gram, m * m);
  for (double** to : {&scratch->rhs, &scratch->weights, &scratch->x, &scratch->used}) add(to, m);
  add(&scratch->query_mass, q);
  add(&scratch->errors, least_squares ? q * d : 0);
  add(&scratch->shares, least_squares ? q * m : 0);
  add(&scratch->fit, least_squares ? m * d : 0);
  add(&scratch->all_gram, matching ? n * n : 0);
  add(&scratch->target, matching ? n : 0);
  add(&scratch->sub, matching ? m * m : 0);
  for (float** to : {&scratch->k, &scratch->v, &scratch->units}) add(to, n * d);
  add(&scratch->attention, q * n);
  add(&scratch->cosine, n);
  add(&scratch->mean, d);
  add(&scratch->values, m * d);
  for (int32_t** to : {&scratch->order, &scratch->chosen, &scratch->nearest}) add(to, n);
  return (bytes + 255) / 256 * 256;
}

// The entries of one KV head. All pointers are those of this head.
struct Entries {
  const TokenPlace* tokens;
  const float* bias;
  const float* q;
  const float* log_norm;
  int32_t coded, n, n_queries, head_dim;  // coded: entries in quantized pages, which begin at `pages` in the table
  int32_t pages;
};

struct SummaryRow {
  Entries entries;
  Scratch scratch;
  SummaryRule rule;
  int32_t count;
  const TokenPlace* to;
  int32_t* pivots;
  int32_t* group;
  float* bias;
};

struct StatsRow {
  Entries entries;
  Scratch scratch;
  EntryStat stat;
  int32_t pivots;
  float* out;
};

// Calls task(i) for i in [0, n) on the block's threads. All threads see the results.
template <typename Task>
__device__ __forceinline__ void for_all(int64_t n, const Task& task) {
  for (auto i = static_cast<int64_t>(threadIdx.x); i < n; i += kThreads) task(static_cast<int>(i));
  __syncthreads();
}
template <typename Task>
__device__ __forceinline__ void by_one(const Task& task) {
  if (threadIdx.x == 0) task();
  __syncthreads();
}

__device__ void load_entries(const Entries& of, const Segment* segments, const Scratch& to) {
  const int n = of.n, dim = of.head_dim;
  for_all(int64_t{n} * dim, [&](int i) {
    const int entry = i / dim, d = i % dim;
    if (entry < of.coded) {
      const Segment& page = segments[of.pages + entry / kPage];
      const int channel = page.channel_order == nullptr ? d : page.channel_order[d];
      to.k[channel * n + entry] = decoded(page, page.k, true, d, entry % kPage, kPage);
      to.v[entry * dim + d] = decoded(page, page.k, false, entry % kPage, d, dim);
    } else {
      const TokenPlace& place = of.tokens[entry - of.coded];
      to.k[d * n + entry] = k_of(place, d);
      to.v[entry * dim + d] = v_of(place, dim, d);
    }
  });
}

// Computes the attention that each entry receives from each query.
__device__ void find_attention(const Entries& of, const Scratch& to) {
  for_all(int64_t{of.n_queries} * of.n, [&](int i) {
    const int query = i / of.n, j = i % of.n;
    const float* const q = of.q + query * of.head_dim;
    float score = 0.0f;
    for (int d = 0; d < of.head_dim; ++d) score = fmaf(q[d], to.k[d * of.n + j], score);
    to.attention[i] = expf(fminf(score + of.bias[j] - of.log_norm[query], 0.0f));
  });
}

__device__ float unit_product(const float* units, const float* with, int stride, int n, int dim, int j) {
  float product = 0.0f;
  for (int d = 0; d < dim; ++d) product = fmaf(units[d * n + j], with[d * stride], product);
  return product;
}

__device__ void find_units(const Entries& of, const Scratch& to) {
  for_all(of.n, [&](int j) {
    float squares = 0.0f;
    for (int d = 0; d < of.head_dim; ++d) squares = fmaf(to.k[d * of.n + j], to.k[d * of.n + j], squares);
    const float norm = sqrtf(squares), inverse = norm > 0 ? norm : 1.0f;
    for (int d = 0; d < of.head_dim; ++d) to.units[d * of.n + j] = to.k[d * of.n + j] / inverse;
  });
}

// Updates the cosine of each entry with its nearest pivot so far, and the number of that pivot.
__device__ void consider(const Entries& of, const Scratch& to, int pivot, int number) {
  for_all(of.n, [&](int j) {
    const float cosine = unit_product(to.units, to.units + pivot, of.n, of.n, of.head_dim, j);
    if (number > 0 && cosine <= to.cosine[j]) return;
    to.cosine[j] = cosine;
    to.nearest[j] = number;
  });
}

__device__ void find_nearest(const Entries& of, const Scratch& to, const int32_t* pivots, int count) {
  for (int p = 0; p < count; ++p) consider(of, to, pivots[p], p);
  for_all(count, [&](int p) { to.nearest[pivots[p]] = p; });
}

// Writes the pivots that are marked as chosen, in ascending order.
__device__ void collect(const Entries& of, const Scratch& scratch, int32_t* pivots) {
  by_one([&] {
    for (int j = 0, next = 0; j < of.n; ++j) {
      if (scratch.chosen[j] != 0) pivots[next++] = j;
    }
  });
}

__device__ void choose_by_cosine(const Entries& of, const Scratch& scratch, int count) {
  for_all(of.head_dim, [&](int d) {
    float sum = 0.0f;
    for (int j = 0; j < of.n; ++j) sum += scratch.units[d * of.n + j];
    scratch.mean[d] = sum;
  });
  for_all(of.n, [&](int j) {
    scratch.cosine[j] = unit_product(scratch.units, scratch.mean, 1, of.n, of.head_dim, j);
    scratch.chosen[j] = 0;
  });
  by_one([&] {
    int best = 0;
    for (int j = 1; j < of.n; ++j) best = scratch.cosine[j] > scratch.cosine[best] ? j : best;
    scratch.order[0] = best;
  });
  for (int p = 0; p < count; ++p) {
    const int pivot = scratch.order[0];
    __syncthreads();  // All threads have read it.
    consider(of, scratch, pivot, p);
    by_one([&] {
      scratch.chosen[pivot] = 1;
      int farthest = -1;  // An entry is chosen once, even if another has the same key.
      for (int j = 0; j < of.n; ++j) {
        if (scratch.chosen[j] == 0 && (farthest < 0 || scratch.cosine[j] < scratch.cosine[farthest])) farthest = j;
      }
      scratch.order[0] = farthest < 0 ? pivot : farthest;
    });
  }
}

// Orders the entries by descending mean square attention.
__device__ void order_by_attention(const Entries& of, const Scratch& scratch) {
  for_all(of.n, [&](int j) {
    double squares = 0;
    for (int i = 0; i < of.n_queries; ++i) {
      const double share = scratch.attention[i * of.n + j];
      squares += share * share;
    }
    scratch.squares[j] = squares;
    scratch.chosen[j] = 0;
  });
  for_all(of.n, [&](int j) {
    int before = 0;
    for (int i = 0; i < of.n; ++i) {
      before += scratch.squares[i] > scratch.squares[j] || (scratch.squares[i] == scratch.squares[j] && i < j) ? 1 : 0;
    }
    scratch.order[before] = j;
  });
}

// Does what bounded_least_squares() of least_squares.h does, by one thread. low and high are the same for all
// unknowns.
__device__ void fit_within(const double* gram, const double* rhs, double low, double high, int n, double* x) {
  for (int sweep = 0; sweep < kLeastSquaresSweeps; ++sweep) {
    for (int i = 0; i < n; ++i) {
      const double* const row = gram + i * n;
      if (!(row[i] > 0)) continue;
      double gradient = -rhs[i];
      for (int j = 0; j < n; ++j) gradient += row[j] * x[j];
      x[i] = fmin(fmax(x[i] - gradient / row[i], low), high);
    }
  }
}

__device__ void choose_by_matching(const Entries& of, const Scratch& scratch, int count) {
  const int n = of.n;
  for_all(int64_t{n} * n, [&](int at) {
    const int i = at / n, j = at % n;
    double product = 0;
    for (int query = 0; query < of.n_queries; ++query) {
      product += static_cast<double>(scratch.attention[query * n + i]) * scratch.attention[query * n + j];
    }
    scratch.all_gram[at] = product;
  });
  for_all(n, [&](int i) {  // Dot products of the columns with the block's mass.
    double sum = 0;
    for (int j = 0; j < n; ++j) sum += scratch.all_gram[i * n + j];
    scratch.target[i] = sum;
  });
  order_by_attention(of, scratch);
  by_one([&] {
    int size = 0;
    int32_t* const pivots = scratch.nearest;
    for (; size < count; ++size) {
      int next = n;
      double best = 0;
      for (int i = 0; i < n; ++i) {
        double product = scratch.target[i];
        for (int p = 0; p < size; ++p) product -= scratch.all_gram[i * n + pivots[p]] * scratch.x[p];
        product /= sqrt(fmax(scratch.all_gram[i * n + i], 1e-300));
        if (scratch.chosen[i] == 0 && product > best) best = product, next = i;
      }
      if (next == n) break;  // nothing is left to explain
      scratch.chosen[next] = 1;
      pivots[size] = next;
      scratch.x[size] = 0;
      for (int i = 0; i <= size; ++i) {
        scratch.rhs[i] = scratch.target[pivots[i]];
        for (int j = 0; j <= size; ++j) scratch.sub[i * (size + 1) + j] = scratch.all_gram[pivots[i] * n + pivots[j]];
      }
      fit_within(scratch.sub, scratch.rhs, 0.0, 1e30, size + 1, scratch.x);
    }
    for (int i = 0; i < n && size < count; ++i) {
      if (scratch.chosen[scratch.order[i]] != 0) continue;
      scratch.chosen[scratch.order[i]] = 1;
      ++size;
    }
  });
}

__device__ void choose_pivots(PivotRule rule, const Entries& of, const Scratch& scratch, int count, int32_t* pivots) {
  if (rule == PivotRule::kPosition) {
    for_all(count, [&](int p) {
      const int64_t n = of.n;
      pivots[p] = static_cast<int32_t>((p * n / count + (p + 1) * n / count) / 2);
    });
    return;
  }
  if (rule == PivotRule::kCosine) choose_by_cosine(of, scratch, count);
  if (rule == PivotRule::kMatching) choose_by_matching(of, scratch, count);
  if (rule == PivotRule::kAttention) {
    order_by_attention(of, scratch);
    for_all(count, [&](int p) { scratch.chosen[scratch.order[p]] = 1; });
  }
  collect(of, scratch, pivots);
}

// Computes the mean of each group's values, weighted by `weights` [n]. Weighs by exp(b) if all weights of a group are
// 0.
__device__ void find_group_values(const Entries& of, const Scratch& scratch, const int32_t* group, int count,
                                  const double* weights) {
  for_all(count, [&](int g) {
    double sum = 0;
    for (int j = 0; j < of.n; ++j) sum += group[j] == g ? weights[j] : 0.0;
    scratch.used[g] = sum;
  });
  for_all(int64_t{count} * of.head_dim, [&](int i) {
    const int g = i / of.head_dim, d = i % of.head_dim;
    double sum = 0, used = 0;
    for (int j = 0; j < of.n; ++j) {
      if (group[j] != g) continue;
      const double weight = scratch.used[g] > 0 ? weights[j] : scratch.own[j];
      used += weight;
      sum += weight * scratch.v[j * of.head_dim + d];
    }
    scratch.values[i] = static_cast<float>(sum / used);
  });
}

// Fits exp(b) of the pivots near the counts, scratch.weights, so that the pivots have the block's mass at each query.
__device__ void fit_weights(const Entries& of, const Scratch& scratch, const int32_t* pivots, int count) {
  const auto unit = [&](int i) { return scratch.weights[i] / exp(static_cast<double>(of.bias[pivots[i]])); };
  for_all(int64_t{count} * count, [&](int at) {
    const int i = at / count, j = at % count;
    double product = 0;
    for (int query = 0; query < of.n_queries; ++query) {
      const float* const row = scratch.attention + query * of.n;
      product += static_cast<double>(row[pivots[i]]) * row[pivots[j]];
    }
    scratch.gram[at] = product * unit(i) * unit(j);
  });
  for_all(count, [&](int i) {
    double product = 0;
    for (int query = 0; query < of.n_queries; ++query) {
      product += scratch.attention[query * of.n + pivots[i]] * scratch.query_mass[query];
    }
    scratch.rhs[i] = product * unit(i);
    scratch.x[i] = 1;
  });
  by_one([&] {
    double diagonal = 0;
    for (int i = 0; i < count; ++i) diagonal += scratch.gram[i * count + i] / count;
    for (int i = 0; i < count; ++i) {
      scratch.gram[i * count + i] += kBiasRidge * diagonal;
      scratch.rhs[i] += kBiasRidge * diagonal;
    }
    const double most = exp(static_cast<double>(kMostBias));
    fit_within(scratch.gram, scratch.rhs, 1 / most, most, count, scratch.x);
    for (int i = 0; i < count; ++i) scratch.weights[i] *= scratch.x[i];
  });
}

// Moves scratch.values so that the output of the summaries comes closer to the output of the block at each query.
__device__ void fit_values(const Entries& of, const Scratch& scratch, const int32_t* pivots, int count) {
  const int dim = of.head_dim;
  by_one([&] {
    double squares = 0;
    for (int query = 0; query < of.n_queries; ++query) squares += scratch.query_mass[query] * scratch.query_mass[query];
    scratch.used[0] = squares;
  });
  const double squares = scratch.used[0];
  if (!(squares > 0)) return;  // No query attends to this block.
  for_all(int64_t{of.n_queries} * count, [&](int at) {
    const int query = at / count, pivot = pivots[at % count];
    scratch.shares[at] = scratch.attention[query * of.n + pivot] * scratch.weights[at % count] /
                         exp(static_cast<double>(of.bias[pivot]));
  });
  for_all(int64_t{of.n_queries} * dim, [&](int at) {
    const int query = at / dim, d = at % dim;
    double error = 0;
    for (int j = 0; j < of.n; ++j)
      error += static_cast<double>(scratch.attention[query * of.n + j]) * scratch.v[j * dim + d];
    for (int i = 0; i < count; ++i) error -= scratch.shares[query * count + i] * scratch.values[i * dim + d];
    scratch.errors[at] = error;
  });
  for_all(int64_t{count} * count, [&](int at) {
    double product = 0;
    for (int query = 0; query < of.n_queries; ++query) {
      product += scratch.shares[query * count + at / count] * scratch.shares[query * count + at % count];
    }
    scratch.gram[at] = product + (at / count == at % count ? kValueRidge * squares / count : 0.0);
  });
  for_all(int64_t{count} * dim, [&](int at) {
    double product = 0;
    for (int query = 0; query < of.n_queries; ++query) {
      product += scratch.shares[query * count + at / dim] * scratch.errors[query * dim + at % dim];
    }
    scratch.fit[at] = product;
  });
  by_one([&] {  // gram = L L^T. L takes the place of gram.
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j <= i; ++j) {
        double sum = scratch.gram[i * count + j];
        for (int k = 0; k < j; ++k) sum -= scratch.gram[i * count + k] * scratch.gram[j * count + k];
        scratch.gram[i * count + j] = i == j ? sqrt(sum) : sum / scratch.gram[j * count + j];
      }
    }
  });
  for_all(dim, [&](int d) {
    const auto at = [&](int i) -> double& { return scratch.fit[i * dim + d]; };
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j < i; ++j) at(i) -= scratch.gram[i * count + j] * at(j);
      at(i) /= scratch.gram[i * count + i];
    }
    for (int i = count - 1; i >= 0; --i) {
      for (int j = i + 1; j < count; ++j) at(i) -= scratch.gram[j * count + i] * at(j);
      at(i) /= scratch.gram[i * count + i];
    }
    for (int i = 0; i < count; ++i) scratch.values[i * dim + d] += static_cast<float>(at(i));
  });
}

__device__ void write_rows(const Entries& of, const Scratch& scratch, const SummaryRow& job, const float* values) {
  for_all(int64_t{job.count} * of.head_dim, [&](int i) {
    const int summary = i / of.head_dim, d = i % of.head_dim;
    static_cast<float*>(job.to[summary].k)[d] = scratch.k[d * of.n + job.pivots[summary]];
    static_cast<float*>(job.to[summary].v)[d] = values[i];
  });
}

__global__ void __launch_bounds__(kThreads) summarize_kernel(const SummaryRow* jobs, const Segment* segments) {
  const SummaryRow& job = jobs[blockIdx.x];
  const Entries& of = job.entries;
  const Scratch& scratch = job.scratch;
  const int count = job.count;
  load_entries(of, segments, scratch);
  if (count == of.n) {  // The entries stay as they are.
    for_all(of.n, [&](int j) {
      job.pivots[j] = job.group[j] = j;
      job.bias[j] = of.bias[j];
    });
    write_rows(of, scratch, job, scratch.v);
    return;
  }
  find_attention(of, scratch);
  if (job.rule.pivots != PivotRule::kPosition) find_units(of, scratch);
  choose_pivots(job.rule.pivots, of, scratch, count, job.pivots);
  if (job.rule.pivots == PivotRule::kPosition) {
    for_all(of.n, [&](int j) {
      int p = 0;
      while (static_cast<int64_t>(p + 1) * of.n / count <= j) ++p;
      job.group[j] = p;
    });
  } else {
    find_nearest(of, scratch, job.pivots, count);
    for_all(of.n, [&](int j) { job.group[j] = scratch.nearest[j]; });
  }
  for_all(of.n, [&](int j) {
    scratch.own[j] = exp(static_cast<double>(of.bias[j]));
    double mass = 0;
    for (int query = 0; query < of.n_queries; ++query) mass += scratch.attention[query * of.n + j];
    scratch.mass[j] = mass;
  });
  for_all(of.n_queries, [&](int query) {
    double mass = 0;
    for (int j = 0; j < of.n; ++j) mass += scratch.attention[query * of.n + j];
    scratch.query_mass[query] = mass;
  });
  for_all(count, [&](int g) {
    double weight = 0;
    for (int j = 0; j < of.n; ++j) weight += job.group[j] == g ? scratch.own[j] : 0.0;
    scratch.weights[g] = job.rule.bias == BiasRule::kNone ? scratch.own[job.pivots[g]] : weight;
  });
  find_group_values(of, scratch, job.group, count, job.rule.values == ValueRule::kMean ? scratch.own : scratch.mass);
  if (job.rule.bias == BiasRule::kFitted) fit_weights(of, scratch, job.pivots, count);
  if (job.rule.values == ValueRule::kLeastSquares) fit_values(of, scratch, job.pivots, count);
  for_all(count, [&](int g) { job.bias[g] = static_cast<float>(log(scratch.weights[g])); });
  write_rows(of, scratch, job, scratch.values);
}

__global__ void __launch_bounds__(kThreads) stats_kernel(const StatsRow* jobs, const Segment* segments) {
  const StatsRow& job = jobs[blockIdx.x];
  const Entries& of = job.entries;
  const Scratch& scratch = job.scratch;
  load_entries(of, segments, scratch);
  if (job.stat == EntryStat::kValueNorm) {
    for_all(of.n, [&](int j) {
      float squares = 0.0f;
      for (int d = 0; d < of.head_dim; ++d)
        squares = fmaf(scratch.v[j * of.head_dim + d], scratch.v[j * of.head_dim + d], squares);
      job.out[j] = sqrtf(squares);
    });
  } else if (job.stat == EntryStat::kAttention) {
    find_attention(of, scratch);
    for_all(of.n, [&](int j) {
      float sum = 0.0f;
      for (int query = 0; query < of.n_queries; ++query) sum += scratch.attention[query * of.n + j];
      job.out[j] = sum;
    });
  } else {
    find_units(of, scratch);
    choose_by_cosine(of, scratch, job.pivots);
    collect(of, scratch, scratch.order);
    find_nearest(of, scratch, scratch.order, job.pivots);
    for_all(of.n, [&](int j) { job.out[j] = 1 - scratch.cosine[j]; });
  }
}

// A quantized page of an entry. order: offset of its channel order in the staging.
struct QueuedPage {
  KvSegment page;
  int64_t head;
  size_t order;
};
// HeadEntries that wait. tokens, bias, q, log_norm: offsets in the staging.
struct QueuedEntries {
  size_t first_page, n_pages;
  int64_t n, n_queries;
  size_t tokens, bias, q, log_norm;
};
struct QueuedSummary {
  QueuedEntries entries;
  SummaryRule rule;
  int64_t count;  // summaries, at most the number of entries
  size_t to, pivots, group, bias;
};
struct QueuedStats {
  QueuedEntries entries;
  EntryStat stat;
  int64_t count;  // pivots, at most the number of entries
  size_t out;
};

Sizes sizes_of(int64_t head_dim, const QueuedSummary& job) {
  return {job.entries.n,
          job.count,
          head_dim,
          job.entries.n_queries,
          job.rule.pivots == PivotRule::kMatching,
          job.rule.values == ValueRule::kLeastSquares};
}
Sizes sizes_of(int64_t head_dim, const QueuedStats& job) {
  return {job.entries.n, job.count, head_dim, job.entries.n_queries, false, false};
}

class SummaryJobs final : public WaveJobs {
 public:
  void add(int64_t head_dim, std::span<const EntrySummary> jobs, Staging& staging, ResultSpace& results) {
    CallStaging call(staging);
    for (const EntrySummary& from : jobs) {
      summaries_.push_back({queued(head_dim, from.entries, call), from.rule, std::ssize(from.to),
                            call.add(from.to.data(), from.to.size_bytes()),
                            results.add(from.pivots, from.to.size() * sizeof(int32_t)),
                            results.add(from.group, from.entries.bias.size() * sizeof(int32_t)),
                            results.add(from.bias, from.to.size() * sizeof(float))});
    }
  }
  void add(int64_t head_dim, std::span<const EntryStats> jobs, Staging& staging, ResultSpace& results) {
    CallStaging call(staging);
    for (const EntryStats& from : jobs) {
      const int64_t pivots = std::min<int64_t>(from.pivots, std::ssize(from.entries.bias));
      stats_.push_back({queued(head_dim, from.entries, call), from.stat, pivots,
                        results.add(from.out, from.entries.bias.size() * sizeof(float))});
    }
  }
  void clear() override {
    pages_.clear();
    summaries_.clear();
    stats_.clear();
  }
  // Throws std::invalid_argument for a job that does not fit, and std::runtime_error on CUDA errors.
  void run(int64_t head_dim, const WaveMemory& memory, PageWorkspace& workspace, cudaStream_t stream) override {
    const auto stats_row = [&](const QueuedStats& job, const Entries& entries, const Scratch& scratch) {
      return StatsRow{entries, scratch, job.stat, static_cast<int32_t>(job.count), memory.output<float>(job.out)};
    };
    run(stats_kernel, "entry_stats", head_dim, stats_, memory, workspace, stream, stats_row);
    const auto summary_row = [&](const QueuedSummary& job, const Entries& entries, const Scratch& scratch) {
      return SummaryRow{entries,
                        scratch,
                        job.rule,
                        static_cast<int32_t>(job.count),
                        memory.input<TokenPlace>(job.to),
                        memory.output<int32_t>(job.pivots),
                        memory.output<int32_t>(job.group),
                        memory.output<float>(job.bias)};
    };
    run(summarize_kernel, "summarize", head_dim, summaries_, memory, workspace, stream, summary_row);
  }

 private:
  QueuedEntries queued(int64_t head_dim, const HeadEntries& from, CallStaging& call) {
    const size_t tokens = call.add(from.tokens.data(), from.tokens.size_bytes());
    QueuedEntries to{pages_.size(),
                     from.quantized.size(),
                     std::ssize(from.bias),
                     0,
                     tokens,
                     call.add(from.bias.data(), from.bias.size_bytes()),
                     ResultSpace::kNone,
                     ResultSpace::kNone};
    const auto order_bytes = static_cast<size_t>((from.head + 1) * head_dim);
    for (const KvSegment& page : from.quantized) {
      pages_.push_back({page, from.head, call.add(page.channel_order, order_bytes)});
    }
    if (from.queries == nullptr) return to;
    to.n_queries = from.queries->n;
    to.q = call.add(from.queries->q.data(), from.queries->q.size() * sizeof(float));
    to.log_norm = call.add(from.queries->log_norm.data(), from.queries->log_norm.size() * sizeof(float));
    return to;
  }

  // Launches a block for each job, with scratch. make_row(job, entries, scratch) makes the row of a job. All quantized
  // pages are in one table behind the rows.
  template <typename Row, typename Job, typename MakeRow>
  void run(void (*kernel)(const Row*, const Segment*), const char* name, int64_t head_dim, const std::vector<Job>& jobs,
           const WaveMemory& memory, PageWorkspace& workspace, cudaStream_t stream, const MakeRow& make_row) const {
    if (jobs.empty()) return;
    check_shape(page_shape(1, head_dim));
    size_t bytes = 0;
    Scratch scratch;
    for (const Job& job : jobs) bytes += lay_out(sizes_of(head_dim, job), nullptr, &scratch);
    std::byte* at = workspace.scratch.reserve(bytes);
    workspace.rows.clear();
    for (const Job& job : jobs) {
      at += lay_out(sizes_of(head_dim, job), at, &scratch);
      const QueuedEntries& of = job.entries;
      const Entries entries{memory.input<TokenPlace>(of.tokens),
                            memory.input<float>(of.bias),
                            memory.input<float>(of.q),
                            memory.input<float>(of.log_norm),
                            static_cast<int32_t>(of.n_pages) * kPage,
                            static_cast<int32_t>(of.n),
                            static_cast<int32_t>(of.n_queries),
                            static_cast<int32_t>(head_dim),
                            static_cast<int32_t>(of.first_page)};
      append_row(make_row(job, entries, scratch), &workspace.rows);
    }
    for (const QueuedPage& from : pages_) {
      append_row(head_row(head_dim, from.page, from.head, memory.input<uint8_t>(from.order)), &workspace.rows);
    }
    const std::byte* const table = workspace.jobs.send(std::span<const std::byte>(workspace.rows), stream);
    const auto* const rows = reinterpret_cast<const Row*>(table);
    const auto* const pages = reinterpret_cast<const Segment*>(rows + jobs.size());
    launch(kernel, name, std::ssize(jobs), kThreads, 0, stream, rows, pages);
  }

  std::vector<QueuedPage> pages_;
  std::vector<QueuedSummary> summaries_;
  std::vector<QueuedStats> stats_;
};

class CudaSummaryKernels final : public SummaryKernels {
 public:
  explicit CudaSummaryKernels(DeviceKvBackend& backend) : backend_(backend) {}
  void summarize(const CacheShape& shape, std::span<const EntrySummary> jobs) override { enqueue(shape, jobs); }
  void entry_stats(const CacheShape& shape, std::span<const EntryStats> jobs) override { enqueue(shape, jobs); }

 private:
  template <typename Job>
  void enqueue(const CacheShape& shape, std::span<const Job> jobs) {
    if (jobs.empty()) return;
    backend_.enqueue(shape.type, shape.head_dim, [&](PageQueue& queue) {
      for (const Job& job : jobs) {
        for (const KvSegment& page : job.entries.quantized) queue.reads(page.k);
        for (const TokenPlace& place : job.entries.tokens) queue.reads(place.k);
        if constexpr (std::is_same_v<Job, EntrySummary>) {
          for (const TokenPlace& place : job.to) queue.writes(place.k);
        }
      }
      queue.jobs<SummaryJobs>().add(shape.head_dim, jobs, queue.staging(), queue.results());
    });
  }

  DeviceKvBackend& backend_;
};

}  // namespace

std::unique_ptr<SummaryKernels> make_cuda_summary_kernels(kernels::cuda::DeviceKvBackend& backend) {
  return std::make_unique<CudaSummaryKernels>(backend);
}

}  // namespace smartkv
