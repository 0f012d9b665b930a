#include "kernels/kv_backend.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

#include "kernels/aligned_buffer.h"
#include "kernels/calibrated_page.h"
#include "kernels/elementwise.h"
#include "kernels/indexed_rows.h"
#include "kernels/thread_pool.h"

namespace smartkv::kernels {
namespace {

const uint8_t* order_of(const uint8_t* channel_order, int64_t head, int64_t head_dim) {
  return channel_order == nullptr ? nullptr : channel_order + head * head_dim;
}

void decode(int64_t head_dim, const KvSegment& page, int64_t head, float* k, float* v) {
  if (page.format == KvSegment::Format::kCalibrated) {
    const auto* const block =
        static_cast<const std::byte*>(page.k) + page.table->heads[static_cast<size_t>(head)].first;
    return decode_calibrated(*page.table, head, page.middle.host, block, k, v);
  }
  dequantize_page(page.quantized, head_dim, order_of(page.channel_order, head, head_dim),
                  static_cast<const std::byte*>(page.k) + head * page.head_stride, k, v);
}

void load_place(KvType type, int64_t head_dim, const TokenPlace& place, float* k, float* v) {
  if (place.slot == TokenPlace::kRow) {
    std::copy_n(static_cast<const float*>(place.k), head_dim, k);
    std::copy_n(static_cast<const float*>(place.v), head_dim, v);
    return;
  }
  load_kv(type, head_dim, {.k = place.k, .v = place.v}, 0, place.slot, k, v);
}

void move_token(KvType type, int64_t head_dim, const TokenMove& move) {
  const auto& [from, to] = move;
  if (to.slot == TokenPlace::kRow) {
    load_place(type, head_dim, from, static_cast<float*>(to.k), static_cast<float*>(to.v));
  } else if (from.slot == TokenPlace::kRow) {
    store_kv(type, 1, head_dim, static_cast<const float*>(from.k), static_cast<const float*>(from.v), to.slot, to.k,
             to.v, 0);
  } else {
    move_kv(type, head_dim, from.k, from.v, from.slot, to.k, to.v, to.slot);
  }
}

// Decodes a quantized page as decode() does. If there is a residual, the first `columns` channels of K in the order of
// the residual come from it.
void decode_with_residual(int64_t head_dim, const KvSegment& page, const KvSegment* residual, int64_t columns,
                          int64_t head, float* k, float* v) {
  decode(head_dim, page, head, k, v);
  if (residual == nullptr) return;
  std::vector<float> rest(static_cast<size_t>(2 * kPageTokens * head_dim));
  decode(head_dim, *residual, head, rest.data(), rest.data() + kPageTokens * head_dim);
  const uint8_t* const order = order_of(residual->channel_order, head, head_dim);
  for (int64_t row = 0; row < kPageTokens * head_dim; row += head_dim) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t at = row + (order == nullptr ? c : order[c]);
      k[at] = rest[static_cast<size_t>(at)];
    }
  }
}

void encode_page(KvType type, int64_t head_dim, const PageEncode& page) {
  const int64_t values = kPageTokens * head_dim;
  std::vector<float> rows(static_cast<size_t>(2 * values));
  float *const k = rows.data(), *const v = k + values;
  for (int64_t head = 0; head < page.n_heads; ++head) {
    const PageSource& from = page.source;
    if (from.quantized != nullptr) {
      decode_with_residual(head_dim, *from.quantized, from.residual, from.residual_columns, head, k, v);
    } else {
      float* to = k;
      for (const TokenPlace& place : from.tokens.subspan(static_cast<size_t>(head * kPageTokens), kPageTokens)) {
        load_place(type, head_dim, place, to, to + values);
        to += head_dim;
      }
    }
    auto* const blocks = static_cast<std::byte*>(page.blocks);
    if (page.table != nullptr) {
      encode_calibrated(*page.table, head, page.middle.host, k, v, page.wide == nullptr ? 0 : page.wide[head],
                        blocks + page.table->heads[static_cast<size_t>(head)].first);
      continue;
    }
    quantize_page(page.layout, head_dim, order_of(page.channel_order, head, head_dim), k, v,
                  blocks + head * page.block_stride);
    if (page.rows == nullptr) continue;
    encode_rows(type, head_dim, page.row_bits, k, v,
                static_cast<std::byte*>(page.rows) + head * indexed_rows_bytes(type, head_dim, page.row_bits));
  }
}

void read_page(KvType type, int64_t head_dim, const PageRead& job) {
  const auto row = [](float* rows, int64_t offset) { return rows == nullptr ? nullptr : rows + offset; };
  std::vector<float> all(
      job.page.format == KvSegment::Format::kDense ? 0 : static_cast<size_t>(2 * kPageTokens * head_dim));
  for (int64_t head = 0; head < job.n_heads; ++head) {
    float *const k = row(job.k, head * job.head_stride), *const v = row(job.v, head * job.head_stride);
    if (all.empty()) {
      for (int64_t i = 0; i < job.n; ++i) {
        load_kv(type, head_dim, job.page, job.head + head, job.first + i, row(k, i * head_dim), row(v, i * head_dim));
      }
      continue;
    }
    const int64_t values = kPageTokens * head_dim;
    if (k != nullptr && v != nullptr && job.n == kPageTokens) {
      decode(head_dim, job.page, job.head + head, k, v);
      continue;
    }
    decode(head_dim, job.page, job.head + head, all.data(), all.data() + values);
    if (k != nullptr) std::copy_n(all.data() + job.first * head_dim, job.n * head_dim, k);
    if (v != nullptr) std::copy_n(all.data() + values + job.first * head_dim, job.n * head_dim, v);
  }
}

// Copies channels of K: channel c of `to` is channel order[c] of `from`. K is [channels / Step][kPageTokens][Step].
template <typename T, int64_t Step>
void cut_keys(const T* from, const uint8_t* order, int64_t channels, T* to) {
  for (int64_t c = 0; c < channels; ++c) {
    const int64_t d = order == nullptr ? c : order[c];
    const T* const row = from + d / Step * Step * kPageTokens + d % Step;
    T* const cut = to + c / Step * Step * kPageTokens + c % Step;
    for (int64_t t = 0; t < kPageTokens; ++t) cut[t * Step] = row[t * Step];
  }
}

// Does the same for V, [kPageTokens / Step][channels][Step].
template <typename T, int64_t Step>
void cut_values(const T* from, int64_t head_dim, const uint8_t* order, int64_t channels, T* to) {
  for (int64_t t = 0; t < kPageTokens; t += Step, from += head_dim * Step, to += channels * Step) {
    for (int64_t c = 0; c < channels; ++c) {
      std::copy_n(from + (order == nullptr ? c : order[c]) * Step, Step, to + c * Step);
    }
  }
}

template <typename T, int64_t Step>
void cut_page(int64_t head_dim, const PageCut& job) {
  const KvSegment& cut = job.cut;
  for (int64_t head = 0; head < job.n_heads; ++head) {
    const auto of = [&](const void* rows) {
      return reinterpret_cast<const T*>(static_cast<const std::byte*>(rows) + head * job.page.head_stride);
    };
    const auto to = [&](std::byte* rows) { return reinterpret_cast<T*>(rows + head * cut.head_stride); };
    cut_keys<T, Step>(of(job.page.k), order_of(cut.channel_order, head, head_dim), cut.k_channels, to(job.k));
    cut_values<T, Step>(of(job.page.v), head_dim, order_of(cut.value_order, head, head_dim), cut.v_channels, to(job.v));
  }
}

void find_page_stats(KvType type, int64_t head_dim, const PageStats& job) {
  const int64_t values = job.n * head_dim;
  std::vector<float> k(static_cast<size_t>(values)), v(k.size()), high(static_cast<size_t>(head_dim));
  for (int64_t head = 0; head < job.n_heads; ++head) {
    read_page(type, head_dim, {job.page, head, 1, job.first, job.n, k.data(), v.data(), 0});
    if (job.k_range != nullptr) {  // Row by row, as they lie: compilers vectorize these loops.
      float* const low = job.k_range + head * head_dim;
      std::copy_n(k.begin(), head_dim, low);
      std::copy_n(k.begin(), head_dim, high.begin());
      for (int64_t t = 1; t < job.n; ++t) {
        const float* const row = k.data() + t * head_dim;
        for (int64_t d = 0; d < head_dim; ++d) {
          low[d] = row[d] < low[d] ? row[d] : low[d];
          high[static_cast<size_t>(d)] = row[d] > high[static_cast<size_t>(d)] ? row[d] : high[static_cast<size_t>(d)];
        }
      }
      for (int64_t d = 0; d < head_dim; ++d) low[d] = high[static_cast<size_t>(d)] - low[d];
    }
    for (int64_t t = 0; job.v_range != nullptr && t < job.n; ++t) {
      const auto [low, most] = std::minmax_element(v.begin() + t * head_dim, v.begin() + (t + 1) * head_dim);
      job.v_range[head * job.n + t] = *most - *low;
    }
    if (job.k_squares != nullptr) {
      double* const sums = job.k_squares + head * head_dim;
      std::fill_n(sums, head_dim, 0.0);
      for (int64_t at = 0; at < values; ++at) {
        const auto value = static_cast<double>(k[static_cast<size_t>(at)]);
        sums[at % head_dim] += value * value;
      }
    }
    if (job.v_squares != nullptr) job.v_squares[head] = std::inner_product(v.begin(), v.end(), v.begin(), 0.0);
  }
}

void multiply(KvType type, int64_t head_dim, const KeyProducts& job) {
  std::vector<float> k(
      static_cast<size_t>((job.page.format == KvSegment::Format::kDense ? job.n : kPageTokens) * head_dim)),
      v;
  const float* keys = k.data();
  if (job.page.format == KvSegment::Format::kDense) {
    read_page(type, head_dim, {job.page, job.head, 1, job.first, job.n, k.data(), nullptr, 0});
  } else {
    v.resize(k.size());
    decode_with_residual(head_dim, job.page, job.residual, job.residual_columns, job.head, k.data(), v.data());
    keys += job.first * head_dim;
  }
  for (int64_t i = 0; i < job.n_queries; ++i) {
    const float* const q = job.q + i * head_dim;
    for (int64_t t = 0; t < job.n; ++t) {
      job.out[i * job.out_stride + t] = std::inner_product(q, q + head_dim, keys + t * head_dim, 0.0f);
    }
  }
}

class CpuKvBackend final : public KvBackend {
 public:
  explicit CpuKvBackend(ThreadPool* threads)
      : own_threads_(threads == nullptr ? std::make_unique<ThreadPool>(1) : nullptr),
        threads_(threads == nullptr ? *own_threads_ : *threads) {}

  std::string_view name() const override { return "cpu"; }
  bool batch_invariant() const override { return true; }
  void check(const AttentionShape& /*shape*/) const override {}  // The kernels check it themselves.

  std::byte* allocate(size_t bytes) override { return allocate_aligned(bytes); }
  void release(std::byte* memory, size_t bytes) noexcept override { free_aligned(memory, bytes); }
  bool holds(const void* /*address*/) const override { return true; }

  void move(KvType type, int64_t head_dim, std::span<const TokenMove> moves) override {
    for (const TokenMove& move : moves) move_token(type, head_dim, move);
  }
  void copy(std::span<const PageCopy> copies) override {
    for (const PageCopy& copy : copies) std::memcpy(copy.to, copy.from, copy.bytes);
  }
  void encode(KvType type, int64_t head_dim, std::span<const PageEncode> pages) override {
    for (const PageEncode& page : pages) encode_page(type, head_dim, page);
  }
  bool cuts_pages() const override { return true; }
  void cut(KvType type, int64_t head_dim, std::span<const PageCut> pages) override {
    for (const PageCut& page : pages) {
      type == KvType::kF32 ? cut_page<float, 1>(head_dim, page) : cut_page<uint16_t, 2>(head_dim, page);
    }
  }
  void read(KvType type, int64_t head_dim, std::span<const PageRead> pages) override {
    for (const PageRead& page : pages) read_page(type, head_dim, page);
  }
  void finish() override {}

  void page_stats(KvType type, int64_t head_dim, std::span<const PageStats> pages) override {
    for (const PageStats& page : pages) find_page_stats(type, head_dim, page);
  }
  void multiply_keys(KvType type, int64_t head_dim, std::span<const KeyProducts> products) override {
    for (const KeyProducts& product : products) multiply(type, head_dim, product);
  }

  void download(const std::byte* page, size_t bytes, void* to) override {
    if (bytes > 0) std::memcpy(to, page, bytes);
  }
  void upload(const void* from, size_t bytes, std::byte* page) override {
    if (bytes > 0) std::memcpy(page, from, bytes);
  }

  void qk_norm_rope(const AttentionShape& shape, const HeadRows& rows) override { kernels::qk_norm_rope(shape, rows); }
  void write(KvType type, int64_t n_kv_heads, int64_t head_dim, const PageWrite& rows) override {
    for (int64_t i = 0; i < rows.n; ++i) {
      store_kv(type, n_kv_heads, head_dim, rows.k + i * rows.row_stride, rows.v + i * rows.row_stride, rows.slot + i,
               rows.page_k, rows.page_v, rows.head_stride);
    }
  }
  void forget_writes() noexcept override {}
  void apply_writes() override {}
  void attention(const AttentionShape& shape, std::span<const AttentionTask> tasks) override {
    kernels::attention(threads_, shape, tasks, scratch_);
  }
  void attention_mass(const AttentionShape& shape, std::span<const AttentionMassTask> tasks) override {
    kernels::attention_mass(threads_, shape, tasks, scratch_);
  }

 private:
  std::unique_ptr<ThreadPool> own_threads_;
  ThreadPool& threads_;
  AttentionScratch scratch_;
};

}  // namespace

void KvBackend::cut(KvType /*type*/, int64_t /*head_dim*/, std::span<const PageCut> /*pages*/) {
  throw std::logic_error("KV backend " + std::string(name()) + ": expected no cut pages");
}

std::shared_ptr<KvBackend> make_cpu_kv_backend(ThreadPool* threads) { return std::make_shared<CpuKvBackend>(threads); }

}  // namespace smartkv::kernels
