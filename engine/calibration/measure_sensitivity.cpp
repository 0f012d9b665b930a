#include "engine/calibration/measure_sensitivity.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "cache/forwarding_cache.h"
#include "cache/policy.h"
#include "engine/model/policy_context.h"
#include "engine/weights/padded_weights.h"
#include "kernels/linear.h"
#include "kernels/quantized_page.h"
#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

constexpr int64_t kSinks = 4;        // first tokens, unlike all others, which no mean counts
constexpr int64_t kPassTokens = 64;  // tokens of a pass
constexpr int64_t kQueryRows = 128;  // queries of a block

// Queries, keys and values of one text, by layer: q [tokens, n_heads, head_dim] and k [tokens, n_kv_heads, head_dim]
// after RoPE, v like k.
struct Rows {
  std::vector<std::vector<float>> q, k, v;
};

// A full cache that records what the model writes and asks.
class RecordingCache final : public ForwardingCache {
 public:
  RecordingCache(SequenceCache& cache, const CacheShape& shape, int64_t n_heads, int64_t tokens, Rows* rows)
      : ForwardingCache({&cache}), shape_(shape), q_width_(n_heads * shape.head_dim), rows_(rows) {
    const auto layers = static_cast<size_t>(shape.n_layers);
    rows->q.assign(layers, std::vector<float>(static_cast<size_t>(tokens * q_width_)));
    rows->k.assign(layers, std::vector<float>(static_cast<size_t>(tokens * kv_width())));
    rows->v = rows->k;
  }
  void write(int64_t layer, const KvRows& rows) override {
    for (int64_t i = 0; i < rows.n; ++i) {
      const auto at = (tokens() + rows.first + i) * kv_width();
      std::copy_n(rows.k + i * rows.stride, kv_width(), rows_->k[static_cast<size_t>(layer)].data() + at);
      std::copy_n(rows.v + i * rows.stride, kv_width(), rows_->v[static_cast<size_t>(layer)].data() + at);
    }
    ForwardingCache::write(layer, rows);
  }
  TokenRange probes(int64_t n) const override { return {tokens(), tokens() + n}; }
  void observe(int64_t layer, const Probe& probe) override {
    std::copy(probe.q.begin(), probe.q.end(), rows_->q[static_cast<size_t>(layer)].begin() + probe.position * q_width_);
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

// The sums of one KV head of a layer over one text.
class HeadMeasure {
 public:
  HeadMeasure(const Model& model, const CacheShape& shape, int64_t layer, int64_t head, int64_t group, const Rows& rows)
      : dim_(shape.head_dim),
        group_(group),
        n_(std::ssize(rows.k[0]) / (shape.n_kv_heads * dim_)),
        q_stride_(shape.n_kv_heads * group * dim_),
        q_(rows.q[static_cast<size_t>(layer)].data() + head * group * dim_),
        k_(static_cast<size_t>(n_ * dim_)),
        v_(k_.size()) {
    for (int64_t t = 0; t < n_; ++t) {
      const auto from = static_cast<std::ptrdiff_t>((t * shape.n_kv_heads + head) * dim_);
      std::copy_n(rows.k[static_cast<size_t>(layer)].begin() + from, dim_, k_.begin() + t * dim_);
      std::copy_n(rows.v[static_cast<size_t>(layer)].begin() + from, dim_, v_.begin() + t * dim_);
    }
    find_offsets(model);
  }

  // Adds to the sensitivities of this head. scale: that of the scores; weight: of this text, over r_l.
  void add(ThreadPool& threads, const std::vector<double>& projection, int64_t head, float scale, double weight,
           SideSensitivity* k, SideSensitivity* v) const {
    Product keys(threads, n_, dim_, [&](int64_t t, int64_t d) { return k_[static_cast<size_t>(t * dim_ + d)]; });
    Product values(threads, dim_, n_, [&](int64_t d, int64_t t) { return v_[static_cast<size_t>(t * dim_ + d)]; });
    std::vector<float> squares(static_cast<size_t>(n_));  // |v_j|^2
    for (int64_t t = 0; t < n_; ++t) {
      for (int64_t d = 0; d < dim_; ++d)
        squares[static_cast<size_t>(t)] +=
            v_[static_cast<size_t>(t * dim_ + d)] * v_[static_cast<size_t>(t * dim_ + d)];
    }
    const double* const products = projection.data() + head * group_ * group_ * dim_;
    double columns = 0;  // mean_a |W_O,a|^2 / D
    for (int64_t a = 0; a < group_; ++a) {
      for (int64_t d = 0; d < dim_; ++d) columns += products[(a * group_ + a) * dim_ + d];
    }
    columns /= static_cast<double>(group_ * dim_);
    std::vector<double> of_k(static_cast<size_t>(dim_)), of_v(of_k.size());
    int64_t queries = 0;
    const auto block_floats = static_cast<size_t>(kQueryRows * n_);
    std::vector<float> p(block_floats), p2(block_floats), o(static_cast<size_t>(kQueryRows * dim_)), o2(o.size());
    std::vector<std::vector<float>> far(static_cast<size_t>(group_), std::vector<float>(block_floats));
    for (int64_t first = 3 * kPageTokens; first < n_; first += kQueryRows) {
      const int64_t rows = std::min(kQueryRows, n_ - first);
      queries += rows;
      for (int64_t a = 0; a < group_; ++a) {
        std::vector<float>& far_p = far[static_cast<size_t>(a)];
        keys.multiply(q_ + first * q_stride_ + a * dim_, q_stride_, rows, p.data());
        threads.parallel_for(rows, [&](int64_t r) {
          softmax(first + r, scale, p.data() + r * n_, p2.data() + r * n_, far_p.data() + r * n_);
        });
        values.multiply(p.data(), n_, rows, o.data());
        values.multiply(p2.data(), n_, rows, o2.data());
        for (int64_t r = 0; r < rows; ++r) {
          const float *of_o = o.data() + r * dim_, *of_o2 = o2.data() + r * dim_, *of_p2 = p2.data() + r * n_;
          double moved = 0, total = 0, norm = 0;  // sum_j A^2 D
          for (int64_t j = 0; j < n_; ++j) {
            total += static_cast<double>(of_p2[j]);
            moved += static_cast<double>(of_p2[j] * squares[static_cast<size_t>(j)]);
          }
          for (int64_t d = 0; d < dim_; ++d) {
            moved -= 2 * static_cast<double>(of_o[d] * of_o2[d]);
            norm += static_cast<double>(of_o[d] * of_o[d]);
          }
          moved = std::max(0.0, moved + norm * total) / static_cast<double>(dim_);
          const float* const q = q_ + (first + r) * q_stride_ + a * dim_;
          for (int64_t d = 0; d < dim_; ++d) of_k[static_cast<size_t>(d)] += moved * static_cast<double>(q[d] * q[d]);
        }
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
    const double share = weight / static_cast<double>(std::max<int64_t>(1, queries));
    for (int64_t d = 0; d < dim_; ++d) {
      const auto i = static_cast<size_t>(d);
      k->lambda[i] += static_cast<float>(share * of_k[i] * columns * k_variance_[i]);
      v->lambda[i] += static_cast<float>(share * std::max(0.0, of_v[i]) * v_variance_[i]);
    }
  }

  const std::vector<float>& k_mean() const { return k_mean_; }
  const std::vector<float>& v_mean() const { return v_mean_; }
  const std::vector<double>& k_variance() const { return k_variance_; }

 private:
  void find_offsets(const Model& model) {
    const int64_t half = dim_ / 2;
    std::vector<float> angles(static_cast<size_t>(dim_));
    std::vector<double> k(static_cast<size_t>(dim_)), v(k.size());
    for (int64_t t = kSinks; t < n_; ++t) {
      float *const cos = angles.data(), *const sin = cos + half;
      model.rope_angles(t, cos, sin);
      const float* const row = k_.data() + t * dim_;
      for (int64_t f = 0; f < half; ++f) {  // the inverse of the rotation and its factor
        const float square = cos[f] * cos[f] + sin[f] * sin[f];
        k[static_cast<size_t>(f)] += static_cast<double>((row[f] * cos[f] + row[f + half] * sin[f]) / square);
        k[static_cast<size_t>(f + half)] += static_cast<double>((row[f + half] * cos[f] - row[f] * sin[f]) / square);
      }
      for (int64_t d = 0; d < dim_; ++d)
        v[static_cast<size_t>(d)] += static_cast<double>(v_[static_cast<size_t>(t * dim_ + d)]);
    }
    const auto count = static_cast<double>(n_ - kSinks);
    for (size_t d = 0; d < k.size(); ++d) {
      k_mean_.push_back(static_cast<float>(k[d] / count));
      v_mean_.push_back(static_cast<float>(v[d] / count));
    }
    k_variance_.assign(k.size(), 0);
    v_variance_.assign(k.size(), 0);
    for (int64_t t = kPageTokens; t < n_; ++t) {
      float *const cos = angles.data(), *const sin = cos + half;
      model.rope_angles(t, cos, sin);
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
  }

  // Turns the scores of query i into probabilities. squares: their squares, and far: themselves, for tokens in pages.
  void softmax(int64_t i, float scale, float* p, float* squares, float* far) const {
    const float top = *std::max_element(p, p + i + 1);
    float sum = 0;
    for (int64_t j = 0; j <= i; ++j) sum += p[j] = std::exp(scale * (p[j] - top));
    for (int64_t j = 0; j <= i; ++j) p[j] /= sum;
    std::fill(p + i + 1, p + n_, 0.0f);
    const int64_t end = (i / kPageTokens - 1) * kPageTokens;
    for (int64_t j = 0; j < n_; ++j) {
      far[j] = j >= kPageTokens && j < end ? p[j] : 0.0f;
      squares[j] = far[j] * far[j];
    }
  }

  int64_t dim_, group_, n_, q_stride_;
  const float* q_;
  std::vector<float> k_, v_, k_mean_, v_mean_;
  std::vector<double> k_variance_, v_variance_;
};

// Sets the mean of a pair of channels that are rotated together to 0 if it would lower their variance by less than 2 %.
// Attention need not add it then.
void drop_small_means(const std::vector<double>& variance, std::vector<float>* mean) {
  constexpr double kLeast = 0.02;
  const size_t half = mean->size() / 2;
  for (size_t f = 0; f < half; ++f) {
    float &x = (*mean)[f], &y = (*mean)[f + half];
    const double energy = static_cast<double>(x * x + y * y);
    if (energy < kLeast * (energy + variance[f] + variance[f + half])) x = y = 0;
  }
}

}  // namespace

Sensitivity measure_sensitivity(Model& model, const Weights& weights, const CacheShape& shape, ThreadPool& threads,
                                std::span<const std::vector<TokenId>> texts) {
  const std::unique_ptr<Weights> padded = pad_weights(weights);
  const Weights& served = padded != nullptr ? *padded : weights;
  const int64_t n_heads = served.config().n_heads, kv = shape.n_kv_heads, group = n_heads / kv, dim = shape.head_dim;
  Sensitivity found{shape.n_layers, kv, dim, {}, {}};
  const SideSensitivity zero{std::vector<float>(static_cast<size_t>(dim)),
                             std::vector<float>(static_cast<size_t>(dim))};
  found.k.assign(static_cast<size_t>(shape.n_layers * kv), zero);
  found.v = found.k;
  std::vector<std::vector<double>> k_variance(found.k.size());
  std::vector<float> logits(static_cast<size_t>(model.config().vocab_size));
  for (const std::vector<TokenId>& text : texts) {
    Rows rows;
    std::vector<std::vector<float>> residual(static_cast<size_t>(shape.n_layers));
    const std::unique_ptr<KvCachePolicy> full = model.make_policy(policy_context(model, shape, &threads), "full");
    const std::unique_ptr<SequenceCache> cache = full->new_sequence(std::ssize(text));
    RecordingCache recording(*cache, shape, n_heads, std::ssize(text), &rows);
    model.watch_residual(
        [&](int64_t layer, float squares) { residual[static_cast<size_t>(layer)].push_back(squares); });
    for (int64_t first = 0; first < std::ssize(text); first += kPassTokens) {
      const int64_t n = std::min(kPassTokens, std::ssize(text) - first);
      const SequenceInput input{std::span(text).subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
                                &recording};
      model.forward({&input, 1}, logits.data());
      recording.commit(recording.tokens());
    }
    model.watch_residual(nullptr);
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    for (int64_t layer = 0; layer < shape.n_layers; ++layer) {
      std::vector<float>& squares = residual[static_cast<size_t>(layer)];
      std::nth_element(squares.begin(), squares.begin() + std::ssize(squares) / 2, squares.end());
      const double weight =
          1.0 / (static_cast<double>(squares[squares.size() / 2]) * static_cast<double>(texts.size()));
      const std::vector<double> projection = projection_products(served, layer, kv, group, dim);
      for (int64_t head = 0; head < kv; ++head) {
        const HeadMeasure measure(model, shape, layer, head, group, rows);
        SideSensitivity &k = found.k[static_cast<size_t>(layer * kv + head)],
                        &v = found.v[static_cast<size_t>(layer * kv + head)];
        measure.add(threads, projection, head, scale, weight, &k, &v);
        std::vector<double>& variance = k_variance[static_cast<size_t>(layer * kv + head)];
        variance.resize(static_cast<size_t>(dim));
        for (int64_t d = 0; d < dim; ++d) {
          const auto i = static_cast<size_t>(d);
          variance[i] += measure.k_variance()[i] / static_cast<double>(texts.size());
          k.mean[i] += measure.k_mean()[i] / static_cast<float>(texts.size());
          v.mean[i] += measure.v_mean()[i] / static_cast<float>(texts.size());
        }
      }
    }
  }
  for (size_t i = 0; i < found.k.size(); ++i) drop_small_means(k_variance[i], &found.k[i].mean);
  return found;
}

}  // namespace smartkv
