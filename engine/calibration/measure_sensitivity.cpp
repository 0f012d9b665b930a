#include "engine/calibration/measure_sensitivity.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include <nlohmann/json.hpp>

#include "cache/forwarding_cache.h"
#include "cache/policy.h"
#include "engine/calibration/fit_ridge.h"
#include "engine/model/policy_context.h"
#include "engine/sampling/logit_metrics.h"
#include "engine/sampling/row_scan.h"
#include "engine/system_resources.h"
#include "engine/weights/padded_weights.h"
#include "kernels/linear.h"
#include "kernels/quantized_page.h"
#include "kernels/rope.h"
#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

constexpr int64_t kSinks = 4;           // first tokens, unlike all others, which no mean counts
constexpr int64_t kPassTokens = 64;     // tokens of a pass
constexpr int64_t kQueryRows = 128;     // queries of a block
constexpr int64_t kSampledRows = 1024;  // at least so many queries are looked at, if there are
constexpr int64_t kTails = 4;           // places where answers are compared
constexpr int64_t kTailTokens = 32;     // answers at a place
constexpr double kTrialBits = 2.25;     // of the codes that are tried
constexpr double kFloor = 1e-3;         // least importance of a token, relative to the mean of a KV head
// lambda of the first layer is multiplied by this, unless answers are measured: its errors pass through all other
// layers. On training text at 2.5 bits, 8 lowered the divergence of SmolLM2-135M from 0.063 to 0.012 and raised that of
// Qwen2.5-Coder-0.5B from 0.0105 to 0.0121.
constexpr float kFirstLayer = 4;

// Queries, keys and values of a text, by layer as caches number them: k [tokens, n_kv_heads, head_dim] after RoPE, v
// like k, and q [n, n_heads, head_dim] after RoPE, of the blocks of kQueryRows queries that begin at starts.
struct Rows {
  std::vector<std::vector<float>> q, k, v;
  std::vector<int64_t> starts;

  Rows(const CacheShape& shape, int64_t n_heads, int64_t tokens) {
    const int64_t blocks = std::max<int64_t>(0, tokens - 3 * kPageTokens + kQueryRows - 1) / kQueryRows;
    const int64_t stride = std::max<int64_t>(1, blocks / (kSampledRows / kQueryRows));
    for (int64_t i = 0; i < blocks; i += stride) starts.push_back(3 * kPageTokens + i * kQueryRows);
    const auto layers = static_cast<size_t>(shape.n_layers);
    k.assign(layers, std::vector<float>(static_cast<size_t>(tokens * shape.n_kv_heads * shape.head_dim)));
    v = k;
    q.assign(layers, std::vector<float>(starts.size() * static_cast<size_t>(kQueryRows * n_heads * shape.head_dim)));
  }
  // Returns the row of q of a token, or -1.
  int64_t query_row(int64_t token) const {
    const auto after = std::upper_bound(starts.begin(), starts.end(), token);
    if (after == starts.begin() || token >= after[-1] + kQueryRows) return -1;
    return (after - starts.begin() - 1) * kQueryRows + token - after[-1];
  }
};
static_assert(kQueryRows % kPassTokens == 0 && 3 * kPageTokens % kPassTokens == 0);

// A full cache that records what the model writes and asks.
class RecordingCache final : public ForwardingCache {
 public:
  RecordingCache(SequenceCache& cache, const CacheShape& shape, int64_t n_heads, Rows* rows)
      : ForwardingCache({&cache}), shape_(shape), q_width_(n_heads * shape.head_dim), rows_(rows) {}
  void write(int64_t layer, const KvRows& rows) override {
    for (int64_t i = 0; i < rows.n; ++i) {
      const auto at = (tokens() + rows.first + i) * kv_width();
      std::copy_n(rows.k + i * rows.stride, kv_width(), rows_->k[static_cast<size_t>(layer)].data() + at);
      std::copy_n(rows.v + i * rows.stride, kv_width(), rows_->v[static_cast<size_t>(layer)].data() + at);
    }
    ForwardingCache::write(layer, rows);
  }
  TokenRange probes(int64_t n) const override {
    if (rows_->query_row(tokens()) < 0) return {};
    return {tokens(), tokens() + n};
  }
  void observe(int64_t layer, const Probe& probe) override {
    std::copy(probe.q.begin(), probe.q.end(),
              rows_->q[static_cast<size_t>(layer)].begin() + rows_->query_row(probe.position) * q_width_);
  }
  std::unique_ptr<SequenceCache> fork() const override { return nullptr; }
  std::unique_ptr<SequenceCache> resume(int64_t) const override { return nullptr; }

 private:
  int64_t kv_width() const { return shape_.n_kv_heads * shape_.head_dim; }

  CacheShape shape_;
  int64_t q_width_;
  Rows* rows_;
};

// Multiplies rows of f32 by a matrix.
class Product {
 public:
  // at(n, k): element of the matrix, [n, k].
  template <typename At>
  Product(ThreadPool& threads, int64_t n, int64_t k, const At& at)
      : threads_(threads), matrix_(kernels::make_packed(kernels::WeightType::kF32, n, k)) {
    threads.parallel_for((n + 15) / 16, [&](int64_t group) {
      std::vector<float> rows(static_cast<size_t>(16 * k));
      for (int64_t i = 0; i < 16 && 16 * group + i < n; ++i) {
        for (int64_t j = 0; j < k; ++j) rows[static_cast<size_t>(i * k + j)] = at(16 * group + i, j);
      }
      kernels::pack_lanes(matrix_, group, rows.data());
    });
  }
  // y [rows, n] = x [rows, k] matrix^T, rows of x `stride` floats apart.
  void multiply(const float* x, int64_t stride, int64_t rows, float* y) {
    kernels::linear(threads_, matrix_, {x, rows, stride}, {y, matrix_.out_features, kernels::Epilogue::kStore, nullptr},
                    scratch_);
  }

 private:
  ThreadPool& threads_;
  kernels::PackedMatrix matrix_;
  kernels::LinearScratch scratch_;
};

// Returns the products of columns of a layer's output projection: (W_O,a^T W_O,b)[d,d], [n_kv_heads, group, group,
// head_dim].
std::vector<double> projection_products(const Weights& weights, int64_t layer, int64_t n_kv_heads, int64_t group,
                                        int64_t dim) {
  const std::string name = "model.layers." + std::to_string(layer) + ".self_attn.o_proj.weight";
  constexpr int64_t kRows = 64;
  const int64_t hidden = weights.config().hidden_size, width = n_kv_heads * group * dim;
  std::vector<double> products(static_cast<size_t>(n_kv_heads * group * group * dim));
  std::vector<float> rows(static_cast<size_t>(kRows * width));
  for (int64_t first = 0; first < hidden; first += kRows) {
    const int64_t n = std::min(kRows, hidden - first);
    weights.read_rows(name, first, n, rows.data());
    for (int64_t pair = 0; pair < n_kv_heads * group * group; ++pair) {
      const int64_t head = pair / (group * group), a = pair / group % group, b = pair % group;
      double* const to = products.data() + pair * dim;
      for (int64_t row = 0; row < n; ++row) {
        const float *x = rows.data() + row * width + (head * group + a) * dim,
                    *y = rows.data() + row * width + (head * group + b) * dim;
        for (int64_t d = 0; d < dim; ++d) to[d] += static_cast<double>(x[d]) * static_cast<double>(y[d]);
      }
    }
  }
  return products;
}

// Sets the mean of a pair of channels that are rotated together to 0 if it would lower their variance by less than 15
// %, a ninth of a bit. Attention need not add it then.
void drop_small_means(std::vector<double>* variances, std::vector<float>* mean) {
  constexpr double kLeast = 0.15;
  std::vector<double>& variance = *variances;
  const size_t half = mean->size() / 2;
  for (size_t f = 0; f < half; ++f) {
    float &x = (*mean)[f], &y = (*mean)[f + half];
    const double energy = static_cast<double>(x * x + y * y);
    if (energy >= kLeast * (energy + variance[f] + variance[f + half])) continue;
    variance[f] += energy / 2;
    variance[f + half] += energy / 2;
    x = y = 0;
  }
}

// How the products of a KV head's queries and keys become scores: kernels::AttentionShape. sinks: of its query heads.
struct Scores {
  float scale = 0, soft_cap = 0;
  const float* sinks = nullptr;
};

// Measures one KV head of a layer.
class HeadMeasure {
 public:
  // angles: rotary embedding of each token, cosines, then sines: f32 [tokens, head_dim].
  HeadMeasure(std::span<const float> angles, const CacheShape& shape, int64_t layer, int64_t head, int64_t group,
              const Rows& rows)
      : dim_(shape.head_dim),
        group_(group),
        n_(std::ssize(rows.k[0]) / (shape.n_kv_heads * dim_)),
        q_stride_(shape.n_kv_heads * group * dim_),
        starts_(rows.starts),
        q_(rows.q[static_cast<size_t>(layer)].data() + head * group * dim_),
        angles_(angles),
        k_(static_cast<size_t>(n_ * dim_)),
        v_(k_.size()) {
    for (int64_t t = 0; t < n_; ++t) {
      const auto from = static_cast<std::ptrdiff_t>((t * shape.n_kv_heads + head) * dim_);
      std::copy_n(rows.k[static_cast<size_t>(layer)].begin() + from, dim_, k_.begin() + t * dim_);
      std::copy_n(rows.v[static_cast<size_t>(layer)].begin() + from, dim_, v_.begin() + t * dim_);
    }
    plain_ = k_;
    for (int64_t t = 0; t < n_; ++t) kernels::unrotate(angles_of(t), dim_, plain_.data() + t * dim_);
    find_offsets();
  }

  // Sets the sensitivities of this head.
  void find(ThreadPool& threads, const std::vector<double>& projection, int64_t head, const Scores& scores,
            double residual, SideSensitivity* k, SideSensitivity* v, ImportanceMap* importance) const {
    Product keys(threads, n_, dim_, [&](int64_t t, int64_t d) { return k_[static_cast<size_t>(t * dim_ + d)]; });
    Product values(threads, dim_, n_, [&](int64_t d, int64_t t) { return v_[static_cast<size_t>(t * dim_ + d)]; });
    std::vector<float> squares(static_cast<size_t>(n_));  // |v_j|^2
    for (int64_t t = 0; t < n_; ++t) {
      for (int64_t d = 0; d < dim_; ++d)
        squares[static_cast<size_t>(t)] +=
            v_[static_cast<size_t>(t * dim_ + d)] * v_[static_cast<size_t>(t * dim_ + d)];
    }
    const double* const products = projection.data() + head * group_ * group_ * dim_;
    std::vector<double> norms(static_cast<size_t>(dim_));  // |W_O|^2 by column, mean over query heads
    for (int64_t a = 0; a < group_; ++a) {
      for (int64_t d = 0; d < dim_; ++d)
        norms[static_cast<size_t>(d)] += products[(a * group_ + a) * dim_ + d] / static_cast<double>(group_);
    }
    const double columns = std::accumulate(norms.begin(), norms.end(), 0.0) / static_cast<double>(dim_);
    std::vector<double> of_k(static_cast<size_t>(dim_)), of_v(of_k.size());
    std::vector<double> used(static_cast<size_t>(n_)), seen(used.size());  // sum of p^2; queries that see the token far
    const auto block_floats = static_cast<size_t>(kQueryRows * n_);
    std::vector<float> p(block_floats), p2(block_floats), o(static_cast<size_t>(kQueryRows * dim_)), o2(o.size());
    std::vector<std::vector<float>> far(static_cast<size_t>(group_), std::vector<float>(block_floats));
    int64_t queries = 0;
    for (size_t block = 0; block < starts_.size(); ++block) {
      const int64_t first = starts_[block], rows = std::min(kQueryRows, n_ - first);
      queries += rows;
      const float* const q_block = q_ + static_cast<int64_t>(block) * kQueryRows * q_stride_;
      for (int64_t a = 0; a < group_; ++a) {
        std::vector<float>& far_p = far[static_cast<size_t>(a)];
        keys.multiply(q_block + a * dim_, q_stride_, rows, p.data());
        threads.parallel_for(rows, [&](int64_t r) {
          softmax(first + r, scores, a, p.data() + r * n_, p2.data() + r * n_, far_p.data() + r * n_);
        });
        values.multiply(p.data(), n_, rows, o.data());
        values.multiply(p2.data(), n_, rows, o2.data());
        for (int64_t r = 0; r < rows; ++r) {
          const float *of_o = o.data() + r * dim_, *of_o2 = o2.data() + r * dim_, *of_p2 = p2.data() + r * n_;
          double moved = 0, total = 0, norm = 0;  // sum_j A^2 D
          for (int64_t j = 0; j < n_; ++j) {
            used[static_cast<size_t>(j)] += static_cast<double>(of_p2[j]);
            total += static_cast<double>(of_p2[j]);
            moved += static_cast<double>(of_p2[j] * squares[static_cast<size_t>(j)]);
          }
          for (int64_t d = 0; d < dim_; ++d) {
            moved -= 2 * static_cast<double>(of_o[d] * of_o2[d]);
            norm += static_cast<double>(of_o[d] * of_o[d]);
          }
          moved = std::max(0.0, moved + norm * total) / static_cast<double>(dim_);
          const float* const q = q_block + r * q_stride_ + a * dim_;
          for (int64_t d = 0; d < dim_; ++d) of_k[static_cast<size_t>(d)] += moved * static_cast<double>(q[d] * q[d]);
        }
      }
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = kPageTokens; j < far_end(first + r); ++j) ++seen[static_cast<size_t>(j)];
      }
      for (int64_t a = 0; a < group_; ++a) {
        for (int64_t b = a; b < group_; ++b) {
          double both = 0;
          for (size_t i = 0; i < static_cast<size_t>(rows * n_); ++i)
            both += static_cast<double>(far[static_cast<size_t>(a)][i] * far[static_cast<size_t>(b)][i]);
          const double* const of = products + (a * group_ + b) * dim_;
          for (int64_t d = 0; d < dim_; ++d) of_v[static_cast<size_t>(d)] += (a == b ? 1 : 2) * both * of[d];
        }
      }
    }
    const double share = 1.0 / (residual * static_cast<double>(std::max<int64_t>(1, queries)));
    for (int64_t d = 0; d < dim_; ++d) {
      const auto i = static_cast<size_t>(d);
      k->lambda[i] = static_cast<float>(share * of_k[i] * columns * k_variance_[i]);
      v->lambda[i] = static_cast<float>(share * std::max(0.0, of_v[i]) * v_variance_[i]);
    }
    k->mean = k_mean_;
    v->mean = v_mean_;
    fit(threads, used, seen, norms, residual, importance);
  }

 private:
  // Fits the importance of tokens that enough queries saw.
  void fit(ThreadPool& threads, std::span<const double> used, std::span<const double> seen,
           std::span<const double> norms, double residual, ImportanceMap* importance) const {
    constexpr double kEnough = 128;  // queries
    const int64_t n_features = ImportanceMap::n_features(dim_);
    std::vector<float> features;
    std::vector<double> labels;
    double mean = 0;
    for (int64_t t = kPageTokens; t < n_; ++t) {
      if (seen[static_cast<size_t>(t)] < kEnough) continue;
      const float* const v = v_.data() + t * dim_;
      features.resize(features.size() + static_cast<size_t>(n_features));
      ImportanceMap::features(plain_.data() + t * dim_, v, dim_, features.data() + features.size() - n_features);
      double norm = 0;
      for (int64_t d = 0; d < dim_; ++d) norm += norms[static_cast<size_t>(d)] * static_cast<double>(v[d] * v[d]);
      labels.push_back(used[static_cast<size_t>(t)] / seen[static_cast<size_t>(t)] * norm / residual);
      mean += labels.back();
    }
    mean /= static_cast<double>(std::max<size_t>(1, labels.size()));
    for (double& label : labels) label = std::log(std::max(label, kFloor * mean + 1e-30));
    if (labels.empty()) {  // a short text: no token matters more than another
      importance->weights.assign(static_cast<size_t>(n_features), 0.0f);
    } else {
      importance->weights = fit_ridge(threads, features, labels);
    }
  }

  const float* angles_of(int64_t t) const { return angles_.data() + t * dim_; }

  void find_offsets() {
    const int64_t half = dim_ / 2;
    std::vector<double> k(static_cast<size_t>(dim_)), v(k.size());
    for (int64_t t = kSinks; t < n_; ++t) {
      for (int64_t d = 0; d < dim_; ++d) {
        k[static_cast<size_t>(d)] += static_cast<double>(plain_[static_cast<size_t>(t * dim_ + d)]);
        v[static_cast<size_t>(d)] += static_cast<double>(v_[static_cast<size_t>(t * dim_ + d)]);
      }
    }
    const auto count = static_cast<double>(n_ - kSinks);
    for (size_t d = 0; d < k.size(); ++d) {
      k_mean_.push_back(static_cast<float>(k[d] / count));
      v_mean_.push_back(static_cast<float>(v[d] / count));
    }
    k_variance_.assign(k.size(), 0);
    v_variance_.assign(k.size(), 0);
    for (int64_t t = kPageTokens; t < n_; ++t) {
      const float *const cos = angles_of(t), *const sin = cos + half;
      for (int64_t f = 0; f < half; ++f) {
        const auto i = static_cast<size_t>(f), j = static_cast<size_t>(f + half);
        const float* const row = k_.data() + t * dim_;
        k_variance_[i] += std::pow(row[f] - (k_mean_[i] * cos[f] - k_mean_[j] * sin[f]), 2);
        k_variance_[j] += std::pow(row[f + half] - (k_mean_[j] * cos[f] + k_mean_[i] * sin[f]), 2);
      }
      for (int64_t d = 0; d < dim_; ++d) {
        v_variance_[static_cast<size_t>(d)] +=
            std::pow(v_[static_cast<size_t>(t * dim_ + d)] - v_mean_[static_cast<size_t>(d)], 2);
      }
    }
    for (size_t d = 0; d < k.size(); ++d) {
      k_variance_[d] /= static_cast<double>(n_ - kPageTokens);
      v_variance_[d] /= static_cast<double>(n_ - kPageTokens);
    }
    drop_small_means(&k_variance_, &k_mean_);
  }

  // Returns the end of the tokens that query i finds in pages. The first page is not one of these.
  static int64_t far_end(int64_t i) { return (i / kPageTokens - 1) * kPageTokens; }

  // Turns the products of query i, of query head a, and the keys into probabilities. squares: their squares, and far:
  // themselves, for tokens in pages.
  void softmax(int64_t i, const Scores& scores, int64_t a, float* p, float* squares, float* far) const {
    for (int64_t j = 0; j <= i; ++j) {
      p[j] *= scores.scale;
      if (scores.soft_cap > 0) p[j] = scores.soft_cap * std::tanh(p[j] / scores.soft_cap);
    }
    const float top = *std::max_element(p, p + i + 1);
    float sum = scores.sinks == nullptr ? 0 : std::exp(scores.sinks[a] - top);
    for (int64_t j = 0; j <= i; ++j) sum += p[j] = std::exp(p[j] - top);
    for (int64_t j = 0; j <= i; ++j) p[j] /= sum;
    std::fill(p + i + 1, p + n_, 0.0f);
    const int64_t end = far_end(i);
    for (int64_t j = 0; j < n_; ++j) {
      far[j] = j >= kPageTokens && j < end ? p[j] : 0.0f;
      squares[j] = far[j] * far[j];
    }
  }

  int64_t dim_, group_, n_, q_stride_;
  const std::vector<int64_t>& starts_;
  const float* q_;
  std::span<const float> angles_;
  std::vector<float> k_, plain_, v_, k_mean_, v_mean_;  // plain_: k_ before RoPE
  std::vector<double> k_variance_, v_variance_;
};

// The answers at the end of a part of the text, with the exact cache.
struct Tail {
  int64_t begin = 0;
  std::vector<float> log_p;  // [kTailTokens, vocab_size]
};

// Returns what the model does with a text, and the residual streams and the tails on the way.
// full: the policy of that name.
Rows record(Model& model, const KvCachePolicy& full, const CacheShape& shape, int64_t n_heads,
            std::span<const TokenId> text, std::vector<double>* residual, std::vector<Tail>* tails) {
  const auto vocab = static_cast<size_t>(model.config().vocab_size);
  CacheShape whole = shape;
  whole.n_layers = model.config().n_layers;
  Rows rows(whole, n_heads, std::ssize(text));
  const std::unique_ptr<SequenceCache> cache = full.new_sequence(std::ssize(text));
  RecordingCache recording(*cache, shape, n_heads, &rows);
  std::vector<std::vector<float>> squares(static_cast<size_t>(whole.n_layers));
  model.watch_residual([&](int64_t layer, float square) { squares[static_cast<size_t>(layer)].push_back(square); });
  std::vector<float> last;  // of a pass: without logits it would not compute the last layer's residual stream
  auto tail = tails->begin();
  while (recording.tokens() < std::ssize(text)) {
    const int64_t first = recording.tokens();
    int64_t n = std::min(kPassTokens - first % kPassTokens, std::ssize(text) - first);
    const bool at_tail = tail != tails->end() && tail->begin < first + n;
    if (at_tail) n = tail->begin == first ? kTailTokens : tail->begin - first;
    const bool answers = at_tail && tail->begin == first;
    std::vector<float>& logits = answers ? tail->log_p : last;
    logits.resize(vocab * static_cast<size_t>(answers ? n : 1));
    const SequenceInput input{text.subspan(static_cast<size_t>(first), static_cast<size_t>(n)), &recording,
                              answers ? n : 1};
    model.forward({&input, 1}, logits.data());
    recording.commit(recording.tokens());
    if (!answers) continue;
    for (int64_t i = 0; i < n; ++i) log_softmax(std::span(tail->log_p).subspan(static_cast<size_t>(i) * vocab, vocab));
    ++tail;
  }
  model.watch_residual(nullptr);
  for (std::vector<float>& of : squares) {
    const auto median = of.begin() + std::ssize(of) / 2;
    std::nth_element(of.begin(), median, of.end());
    residual->push_back(static_cast<double>(*median));
  }
  return rows;
}

// K or V of a KV head.
struct Side {
  int64_t layer = 0, head = 0;
  bool is_k = false;
};

// Puts one side into codes and measures what that does to the answers.
class AnswerMeasure {
 public:
  AnswerMeasure(Model& model, const KvCachePolicy& full, const CacheShape& shape, ThreadPool& threads,
                std::span<const TokenId> text, const Rows& rows, const std::vector<Tail>& tails,
                const Sensitivity& sensitivity)
      : model_(model),
        shape_(shape),
        threads_(threads),
        text_(text),
        rows_(rows),
        tails_(tails),
        full_(full),
        rotations_(std::make_shared<kernels::PageRotations>(
            shape.head_dim,
            [&model](int64_t position, float* cos, float* sin) { model.rope_angles(position, cos, sin); }, nullptr)),
        widths_(allocate_widths(sensitivity, shape, 0, kTrialBits, false, rotations_, nullptr)),
        // Several sides share a pass, because few rows use the weights of a pass badly.
        at_once_(std::clamp<int64_t>(
            available_bytes() / 4 * shape.n_layers / (std::ssize(text) * shape.bytes_per_token() * std::ssize(rows.k)),
            1, 4)) {}

  int64_t at_once() const { return at_once_; }
  // Returns G of each side. sides: at most at_once().
  std::vector<double> divergences(std::span<const Side> sides) {
    std::vector<std::vector<float>> coded;
    std::vector<std::unique_ptr<SequenceCache>> caches;
    for (const Side& side : sides) {
      coded.push_back(coded_rows(side));
      caches.push_back(full_.new_sequence(std::ssize(text_)));
    }
    const auto answers = static_cast<size_t>(kTailTokens * model_.config().vocab_size);
    logits_.resize(sides.size() * answers);
    std::vector<double> sums(sides.size());
    for (const Tail& tail : tails_) {
      std::vector<SequenceInput> batch;
      for (size_t i = 0; i < sides.size(); ++i) {
        fill(caches[i].get(), tail.begin, sides[i], coded[i]);
        batch.push_back({text_.subspan(static_cast<size_t>(tail.begin), kTailTokens), caches[i].get(), kTailTokens});
      }
      model_.forward(batch, logits_.data());
      for (size_t i = 0; i < sides.size(); ++i) {
        caches[i]->commit(caches[i]->tokens());
        sums[i] += mean_divergence(tail, std::span(logits_).subspan(i * answers, answers));
      }
    }
    for (double& sum : sums) sum /= static_cast<double>(tails_.size());
    return sums;
  }
  // Returns D.
  double predicted(const Side& side, const SideSensitivity& sensitivity) const {
    const kernels::HeadWidths& of =
        widths_->layers[static_cast<size_t>(side.layer)].heads[static_cast<size_t>(side.head)];
    return predicted_error(sensitivity, side.is_k ? of.k : of.v);
  }

 private:
  // Appends the text's rows up to `end` to the cache, with `coded` in place of the side's K or V.
  void fill(SequenceCache* cache, int64_t end, const Side& side, const std::vector<float>& coded) const {
    const int64_t at = cache->tokens(), n = end - at, width = shape_.n_kv_heads * shape_.head_dim;
    cache->reserve(n);
    for (int64_t layer = 0; layer < std::ssize(rows_.k); ++layer) {
      const float *k = rows_.k[static_cast<size_t>(layer)].data(), *v = rows_.v[static_cast<size_t>(layer)].data();
      if (layer == side.layer) (side.is_k ? k : v) = coded.data();
      cache->write(layer, {k + at * width, v + at * width, width, 0, n});
    }
    cache->advance(n);
  }

  // Returns K or V of the side's layer, in which the head's rows went through codes. The first page and the last two
  // pages before each tail stay exact.
  std::vector<float> coded_rows(const Side& side) const {
    const auto [layer, head, is_k] = side;
    const kernels::WidthTable& table = widths_->layers[static_cast<size_t>(layer)];
    const int64_t dim = shape_.head_dim, width = shape_.n_kv_heads * dim;
    const std::vector<float>&k = rows_.k[static_cast<size_t>(layer)], &v = rows_.v[static_cast<size_t>(layer)];
    std::vector<float> result = is_k ? k : v;
    threads_.parallel_for(tails_.back().begin / kPageTokens, [&, head = head, is_k = is_k](int64_t page) {
      const int64_t begin = page * kPageTokens, end = begin + kPageTokens;
      const bool near = std::ranges::any_of(
          tails_, [&](const Tail& tail) { return end > tail.begin - kPageTokens && begin < tail.begin; });
      if (page == 0 || near) return;
      std::vector<float> of_k(static_cast<size_t>(dim * kPageTokens)), of_v(of_k.size());
      std::vector<std::byte> block(static_cast<size_t>(table.heads[static_cast<size_t>(head)].at.total));
      const auto from = [&](int64_t t) { return (begin + t) * width + head * dim; };
      for (int64_t t = 0; t < kPageTokens; ++t) {
        std::copy_n(k.begin() + from(t), dim, of_k.begin() + t * dim);
        std::copy_n(v.begin() + from(t), dim, of_v.begin() + t * dim);
      }
      const float* const middle = rotations_->middle(page).host;
      kernels::encode_calibrated(table, head, middle, of_k.data(), of_v.data(), 0, block.data());
      float* const out = (is_k ? of_k : of_v).data();
      kernels::decode_calibrated(table, head, middle, block.data(), is_k ? out : nullptr, is_k ? nullptr : out);
      for (int64_t t = 0; t < kPageTokens; ++t) std::copy_n(out + t * dim, dim, result.begin() + from(t));
    });
    return result;
  }

  // logits: [kTailTokens, vocab_size]; overwritten.
  double mean_divergence(const Tail& tail, std::span<float> logits) const {
    const auto vocab = static_cast<size_t>(model_.config().vocab_size);
    std::vector<double> divergences(kTailTokens);
    threads_.parallel_for(kTailTokens, [&](int64_t i) {
      const auto row = logits.subspan(static_cast<size_t>(i) * vocab, vocab);
      const auto exact = std::span(tail.log_p).subspan(static_cast<size_t>(i) * vocab, vocab);
      std::vector<float> p(vocab);
      exp_row(exact, 0.0f, 1.0f, p.data());
      log_softmax(row);
      divergences[static_cast<size_t>(i)] = kl_divergence(exact, p, row);
    });
    return std::accumulate(divergences.begin(), divergences.end(), 0.0) / kTailTokens;
  }

  Model& model_;
  CacheShape shape_;
  ThreadPool& threads_;
  std::span<const TokenId> text_;
  const Rows& rows_;
  const std::vector<Tail>& tails_;
  const KvCachePolicy& full_;
  std::shared_ptr<const kernels::PageRotations> rotations_;
  std::shared_ptr<const ModelWidths> widths_;
  int64_t at_once_;
  std::vector<float> logits_;  // [sides, kTailTokens, vocab_size]
};

// Multiplies lambda by sqrt(G / D).
void weigh_by_answers(AnswerMeasure& measure, const std::function<void(double)>& progress, Sensitivity* found) {
  std::vector<Side> sides;
  for (const bool is_k : {true, false}) {
    for (int64_t i = 0; i < std::ssize(found->k); ++i)
      sides.push_back({i / found->n_kv_heads, i % found->n_kv_heads, is_k});
  }
  std::vector<double> gains;  // G / D
  while (gains.size() < sides.size()) {
    const size_t first = gains.size(), n = std::min(static_cast<size_t>(measure.at_once()), sides.size() - first);
    const std::vector<double> divergences = measure.divergences(std::span(sides).subspan(first, n));
    for (size_t i = 0; i < n; ++i) {
      const Side& side = sides[first + i];
      const auto at = static_cast<size_t>(side.layer * found->n_kv_heads + side.head);
      const double predicted = measure.predicted(side, (side.is_k ? found->k : found->v)[at]);
      gains.push_back(predicted > 0 ? divergences[i] / predicted : 0);
    }
    if (progress) progress(static_cast<double>(gains.size()) / static_cast<double>(sides.size()));
  }
  // A side whose error does nothing in this text may matter in another one.
  std::vector<double> sorted = gains;
  std::ranges::sort(sorted);
  const double least = sorted[sorted.size() / 2] / 100;
  auto gain = gains.begin();
  for (auto* of : {&found->k, &found->v}) {
    for (SideSensitivity& side : *of) {
      const auto factor = static_cast<float>(std::sqrt(std::max(*gain++, least)));
      for (float& lambda : side.lambda) lambda *= factor;
    }
  }
}

}  // namespace

Sensitivity measure_sensitivity(Model& model, const Weights& weights, const CacheShape& shape, ThreadPool& threads,
                                std::span<const TokenId> text, bool by_answers,
                                const std::function<void(double)>& progress) {
  const int64_t tokens = std::ssize(text), last_tail = tokens / 8 * 8 - kTailTokens;
  if (last_tail - tokens / 2 < 4 * kPageTokens) by_answers = false;  // too short
  const std::unique_ptr<Weights> padded = pad_weights(weights);
  const Weights& served = padded != nullptr ? *padded : weights;
  const int64_t n_heads = served.config().n_heads, kv = shape.n_kv_heads, group = n_heads / kv, dim = shape.head_dim;
  std::vector<Tail> tails;
  for (int64_t i = 5; by_answers && i <= 8; ++i) tails.push_back({i * (tokens / 8) - kTailTokens, {}});
  std::vector<double> residual;
  PolicyContext context = policy_context(model, shape, &threads);
  context.window.tokens = tokens;  // nothing leaves, so that passes may end anywhere
  const std::unique_ptr<KvCachePolicy> full = model.make_policy(context, "full");
  const std::vector<int64_t> order = model.config().cache_order();
  const Rows rows = record(model, *full, shape, n_heads, text, &residual, &tails);
  Sensitivity found{shape.n_layers, kv, dim, {}, {}, {}};
  found.importance.resize(static_cast<size_t>(shape.n_layers * kv));
  found.k.assign(static_cast<size_t>(shape.n_layers * kv), {std::vector<float>(static_cast<size_t>(dim)), {}});
  found.v = found.k;
  std::vector<float> angles(static_cast<size_t>(tokens * dim));
  for (int64_t t = 0; t < tokens; ++t) {
    model.rope_angles(t, angles.data() + t * dim, angles.data() + t * dim + dim / 2);
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim)),
              soft_cap = static_cast<float>(model.config().attention_soft_cap);
  for (int64_t layer = 0; layer < shape.n_layers; ++layer) {
    const int64_t of_model = order[static_cast<size_t>(layer)];
    const std::vector<double> projection = projection_products(served, of_model, kv, group, dim);
    for (int64_t head = 0; head < kv; ++head) {
      const auto i = static_cast<size_t>(layer * kv + head);
      const float* const sinks = model.attention_sinks(layer);
      const Scores scores{scale, soft_cap, sinks == nullptr ? nullptr : sinks + head * group};
      HeadMeasure(angles, shape, layer, head, group, rows)
          .find(threads, projection, head, scores, residual[static_cast<size_t>(of_model)], &found.k[i], &found.v[i],
                &found.importance[i]);
    }
  }
  if (by_answers) {
    AnswerMeasure measure(model, *full, shape, threads, text, rows, tails, found);
    weigh_by_answers(measure, progress, &found);
    found.by_answers = true;
    return found;
  }
  for (auto* sides : {&found.k, &found.v}) {
    for (int64_t head = 0; head < kv; ++head) {
      for (float& lambda : (*sides)[static_cast<size_t>(head)].lambda) lambda *= kFirstLayer;
    }
  }
  return found;
}

}  // namespace smartkv
