#include "engine/model/cache_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise.h"

namespace smartkv {

CacheAttention::CacheAttention(const Weights& weights, const ModelConfig& config, kernels::KvType type,
                               ThreadPool& pool, std::shared_ptr<kernels::KvBackend> backend)
    : config_(config),
      cache_layers_(static_cast<size_t>(config.n_layers)),
      shape_{config.n_heads, config.n_kv_heads, config.head_dim, 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
             type},
      norms_(static_cast<size_t>(config.n_layers)),
      rope_(config.rope, config.head_dim, config.context_length),
      window_rope_(config.window_rope(), config.head_dim, config.context_length),
      two_ropes_(config.window_rope_theta > 0),
      query_scale_(config.attention_multiplier > 0 ? static_cast<float>(config.attention_multiplier *
                                                                        std::sqrt(static_cast<double>(config.head_dim)))
                                                   : 1.0f),
      pool_(pool),
      backend_(backend != nullptr ? std::move(backend) : kernels::make_cpu_kv_backend(&pool)) {
  shape_.soft_cap = static_cast<float>(config.attention_soft_cap);
  const std::vector<int64_t> order = config.cache_order();
  for (size_t i = 0; i < order.size(); ++i) cache_layers_[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  const int64_t heads[] = {config.n_heads};
  for (int64_t i = 0; config.attention_sinks && i < config.n_layers; ++i) {
    sinks_.push_back(weights.read("model.layers." + std::to_string(i) + ".self_attn.sinks", heads));
    float_bytes_ += config.n_heads * static_cast<int64_t>(sizeof(float));
  }
  try {
    kernels::AttentionShape widest = shape_;
    widest.sinks = sinks_.empty() ? nullptr : sinks_[0].data();
    for (int64_t i = 0; i < config.n_layers; ++i) widest.window = std::max(widest.window, config.window(i));
    backend_->check(widest);
  } catch (const std::invalid_argument& error) {
    throw ModelError(config.name + ": KV cache on " + std::string(backend_->name()) + ": " + error.what());
  }
  if (config.qk_norm == QkNorm::kNone) return;
  const bool head = config.qk_norm == QkNorm::kHead;
  const int64_t q[] = {head ? config.head_dim : q_width()};
  const int64_t k[] = {head ? config.head_dim : config.n_kv_heads * config.head_dim};
  for (int64_t i = 0; i < config.n_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".self_attn.";
    HeadNorms& norms = norms_[static_cast<size_t>(i)];
    const std::vector<float> of_q = weights.read(layer + "q_norm.weight", q),
                             of_k = weights.read(layer + "k_norm.weight", k);
    norms.q.set(of_q.data(), of_q.size() * sizeof(float));
    norms.k.set(of_k.data(), of_k.size() * sizeof(float));
    float_bytes_ += static_cast<int64_t>((of_q.size() + of_k.size()) * sizeof(float));
  }
}

const float* CacheAttention::sinks(int64_t cache_layer) const {
  const auto layer = std::ranges::find(cache_layers_, cache_layer) - cache_layers_.begin();
  return sinks_.empty() ? nullptr : sinks_[static_cast<size_t>(layer)].data();
}

void CacheAttention::use_device_rows() {
  device_rows_ = true;
  row_angles_.move_to(backend_);
  for (HeadNorms& norms : norms_) {
    norms.q.move_to(backend_);
    norms.k.move_to(backend_);
  }
}

template <typename F>
void CacheAttention::guard(size_t input, const F& f) {
  if (failed(input)) return;
  try {
    f(*batch_[input].cache);
  } catch (...) {
    failures_[input] = std::current_exception();
  }
}

void CacheAttention::begin(std::span<const SequenceInput> batch) {
  constexpr int64_t kPieceRows = 16;
  batch_ = batch;
  backend_->forget_writes();  // Drops writes that a failed pass may have left.
  pieces_.clear();
  wanted_.clear();
  rows_ = wanted_rows_ = 0;
  failures_.assign(batch.size(), nullptr);
  for (size_t i = 0; i < batch.size(); ++i) {
    const int64_t n = tokens(i);
    for (int64_t first = 0; first < n; first += kPieceRows) {
      pieces_.push_back({static_cast<int64_t>(i), first, std::min(kPieceRows, n - first), rows_ + first});
    }
    rows_ += n;
    if (batch[i].n_logits > 0) wanted_.push_back({rows_ - batch[i].n_logits, batch[i].n_logits});
    wanted_rows_ += batch[i].n_logits;
    guard(i, [n](SequenceCache& cache) { cache.reserve(n); });
  }
  const int64_t angles = rows_ * config_.head_dim;  // of one rope
  const auto angle_bytes = static_cast<size_t>((two_ropes_ ? 2 : 1) * angles) * sizeof(float);
  angles_.grow(angle_bytes);
  pool_.parallel_for(static_cast<int64_t>(pieces_.size()), [&](int64_t p) {
    const Piece& piece = pieces_[static_cast<size_t>(p)];
    const int64_t position = batch_[static_cast<size_t>(piece.input)].cache->tokens() + piece.first;
    for (int64_t i = 0; i < piece.n; ++i) {
      float* cos = angles_.as<float>() + (piece.row + i) * config_.head_dim;
      rope_.angles(position + i, cos, cos + config_.head_dim / 2);
      if (two_ropes_) window_rope_.angles(position + i, cos + angles, cos + angles + config_.head_dim / 2);
    }
  });
  if (device_rows_) row_angles_.set(angles_.data(), angle_bytes);
  prefetch(0);
}

// Includes the inputs whose rows the last layer does not need.
void CacheAttention::prefetch(int64_t layer) {
  if (layer == config_.n_layers || !backend_->prefetches()) return;
  ahead_.clear();
  for (size_t i = 0; i < batch_.size(); ++i) {
    guard(i, [&](SequenceCache& cache) { cache.view(cache_layer(layer), tokens(i), &ahead_); });
  }
  backend_->prefetch(ahead_);
}

kernels::HeadRows CacheAttention::head_rows(int64_t layer, float* qkv, int64_t first, int64_t n) const {
  const HeadNorms& norms = norms_[static_cast<size_t>(layer)];
  const float* const angles = device_rows_ ? row_angles_.as<float>() : angles_.as<float>();
  kernels::HeadRows rows;
  rows.qkv = qkv + first * qkv_width();
  rows.rows = n;
  if (!norms.q.empty()) rows.q_norm = norms.q.as<float>();
  if (!norms.k.empty()) rows.k_norm = norms.k.as<float>();
  rows.norm_heads_together = config_.qk_norm == QkNorm::kProjection;
  rows.norm_eps = static_cast<float>(config_.qk_norm_eps > 0 ? config_.qk_norm_eps : config_.rms_norm_eps);
  rows.query_factor = query_scale_;
  const int64_t row = two_ropes_ && config_.has_window(layer) ? rows_ + first : first;
  rows.angles = config_.has_rope(layer) ? angles + row * config_.head_dim : nullptr;
  return rows;
}

void CacheAttention::write(int64_t layer, float* qkv) {
  const int64_t width = qkv_width(), kv_width = config_.n_kv_heads * config_.head_dim;
  write_failures_.assign(batch_.size(), nullptr);
  if (device_rows_) backend_->qk_norm_rope(shape_, head_rows(layer, qkv, 0, rows_));
  pool_.parallel_for(static_cast<int64_t>(pieces_.size()), [&](int64_t p) {
    const Piece& piece = pieces_[static_cast<size_t>(p)];
    const auto input = static_cast<size_t>(piece.input);
    if (failed(input)) return;
    if (!device_rows_) kernels::qk_norm_rope(shape_, head_rows(layer, qkv, piece.row, piece.n));
    const float* k = qkv + piece.row * width + q_width();
    try {
      batch_[input].cache->write(cache_layer(layer), {k, k + kv_width, width, piece.first, piece.n});
    } catch (...) {
      const std::lock_guard lock(write_failures_mutex_);
      write_failures_[input] = std::current_exception();
    }
  });
  for (size_t i = 0; i < batch_.size(); ++i) {
    if (write_failures_[i] != nullptr) failures_[i] = std::move(write_failures_[i]);
  }
}

void CacheAttention::show_hidden(int64_t layer, const LlamaBackend& backend) {
  if (config_.has_window(layer)) return;
  const int64_t row_bytes = config_.hidden_size * (shape_.type == kernels::KvType::kBf16 ? 2 : 4);
  int64_t row = 0;
  for (size_t i = 0; i < batch_.size(); ++i) {
    const int64_t n = tokens(i);
    guard(i, [&](SequenceCache& cache) {
      if (!cache.wants_hidden()) return;
      cache.show_hidden(cache_layer(layer), static_cast<const std::byte*>(backend.attention_input()) + row * row_bytes,
                        n);
    });
    row += n;
  }
}

void CacheAttention::attend(int64_t layer, float* qkv, void* attended) {
  write(layer, qkv);
  prefetch(layer + 1);
  shape_.window = config_.window(layer);
  if (!sinks_.empty()) shape_.sinks = sinks_[static_cast<size_t>(layer)].data();
  const bool last = layer + 1 == config_.n_layers;
  const int64_t row_bytes = q_width() * (shape_.type == kernels::KvType::kBf16 ? 2 : 4);
  tasks_.clear();
  views_.resize(batch_.size());
  auto* out = static_cast<std::byte*>(attended);
  int64_t row = 0;
  for (size_t i = 0; i < batch_.size(); ++i) {
    const int64_t n = tokens(i), active = last ? batch_[i].n_logits : n;
    row += n;
    if (active == 0) continue;
    views_[i].clear();
    guard(i, [&](SequenceCache& cache) { cache.view(cache_layer(layer), n, &views_[i]); });
    if (!failed(i)) tasks_.push_back({qkv + (row - active) * qkv_width(), qkv_width(), active, views_[i], out});
    out += active * row_bytes;
  }
  backend_->attention(shape_, tasks_);
  observe(layer, qkv);
}

// Shows the attention of the probe queries to the caches that asked for them. A policy has no layer with a window.
void CacheAttention::observe(int64_t layer, const float* qkv) {
  if (config_.has_window(layer)) return;
  take_probes(layer, qkv);
  if (mass_tasks_.empty()) return;
  int64_t floats = 0;
  for (const kernels::AttentionMassTask& task : mass_tasks_) floats += kernels::attention_mass_floats(shape_, task);
  mass_.grow(static_cast<size_t>(floats) * sizeof(float));
  float* mass = mass_.as<float>();
  for (kernels::AttentionMassTask& task : mass_tasks_) {
    task.mass = mass;
    mass += kernels::attention_mass_floats(shape_, task);
  }
  backend_->attention_mass(shape_, mass_tasks_);
  if (device_rows_) fetch_queries();
  show_probes(layer);
}

// Copies the probe queries from the device to host memory, and makes the tasks point there.
void CacheAttention::fetch_queries() {
  int64_t n = 0;
  for (const kernels::AttentionMassTask& task : mass_tasks_) n += task.n;
  queries_.grow(static_cast<size_t>(n * q_width()) * sizeof(float));
  float* to = queries_.as<float>();
  for (kernels::AttentionMassTask& task : mass_tasks_) {
    const float* const from = std::exchange(task.q, to);
    for (int64_t i = 0; i < task.n; ++i, to += q_width()) {
      backend_->download(reinterpret_cast<const std::byte*>(from + i * task.q_stride),
                         static_cast<size_t>(q_width()) * sizeof(float), to);
    }
    task.q_stride = q_width();
  }
}

void CacheAttention::take_probes(int64_t layer, const float* qkv) {
  mass_tasks_.clear();
  int64_t first_row = 0;
  for (size_t i = 0; i < batch_.size(); first_row += tokens(i), ++i) {
    if (failed(i)) continue;
    const int64_t begin = batch_[i].cache->tokens();
    const TokenRange probes = batch_[i].cache->probes(tokens(i));
    if (probes.empty()) continue;
    std::vector<kernels::KvSegment>& view = views_[i];
    view.clear();
    guard(i, [&](SequenceCache& cache) { cache.view(cache_layer(layer), probes.end - begin, &view); });
    if (failed(i)) continue;
    mass_tasks_.push_back({qkv + (first_row + probes.first - begin) * qkv_width(), qkv_width(),
                           probes.end - probes.first, view, nullptr});
  }
}

void CacheAttention::show_probes(int64_t layer) {
  size_t t = 0;
  for (size_t input = 0; input < batch_.size(); ++input) {
    if (failed(input)) continue;
    const TokenRange probes = batch_[input].cache->probes(tokens(input));
    if (probes.empty()) continue;
    const kernels::AttentionMassTask& task = mass_tasks_[t++];
    int64_t seen = 1 - task.n;  // Becomes the number of tokens that the first probe sees.
    for (const kernels::KvSegment& segment : task.segments) seen += segment.tokens;
    const float* from = task.mass;
    for (int64_t i = 0; i < task.n; ++i, ++seen) {
      const auto size = static_cast<size_t>(config_.n_kv_heads * seen);
      const Probe probe{probes.first + i, {task.q + i * task.q_stride, static_cast<size_t>(q_width())}, {from, size}};
      guard(input, [&](SequenceCache& cache) { cache.observe(cache_layer(layer), probe); });
      from += size;
    }
  }
}

void CacheAttention::end() {
  for (size_t i = 0; i < batch_.size(); ++i) {
    guard(i, [n = tokens(i)](SequenceCache& cache) { cache.advance(n); });
  }
  std::exception_ptr untold;
  for (size_t i = 0; i < batch_.size(); ++i) {
    if (!failed(i)) continue;
    if (batch_[i].failure != nullptr) {
      *batch_[i].failure = failures_[i];
    } else if (untold == nullptr) {
      untold = failures_[i];
    }
    failures_[i] = nullptr;
  }
  if (untold != nullptr) std::rethrow_exception(untold);
}

}  // namespace smartkv
