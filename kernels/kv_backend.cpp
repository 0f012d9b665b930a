#include "kernels/kv_backend.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/aligned_buffer.h"
#include "kernels/elementwise.h"
#include "kernels/indexed_rows.h"
#include "kernels/thread_pool.h"

namespace smartkv::kernels {
namespace {

const uint8_t* order_of(const uint8_t* channel_order, int64_t head, int64_t head_dim) {
  return channel_order == nullptr ? nullptr : channel_order + head * head_dim;
}

void decode(int64_t head_dim, const KvSegment& page, int64_t head, float* k, float* v) {
  dequantize_page(page.quantized, head_dim, order_of(page.channel_order, head, head_dim),
                  static_cast<const std::byte*>(page.k) + head * page.head_stride, k, v);
}

KvSegment page_of(const TokenPlace& place) {
  KvSegment page;
  page.k = place.k;
  page.v = place.v;
  return page;
}

void encode_page(KvType type, int64_t head_dim, const PageEncode& page) {
  const int64_t values = kPageTokens * head_dim;
  std::vector<float> rows(page.source.k == nullptr ? static_cast<size_t>(2 * values) : 0);
  for (int64_t head = 0; head < page.n_heads; ++head) {
    const float *k = rows.data(), *v = rows.data() + values;
    if (page.source.codes != nullptr) {
      decode(head_dim, *page.source.codes, head, rows.data(), rows.data() + values);
    } else if (page.source.k != nullptr) {
      k = page.source.k + head * values;
      v = page.source.v + head * values;
    } else {
      float* to = rows.data();
      for (const TokenPlace& place : page.source.tokens.subspan(static_cast<size_t>(head * kPageTokens), kPageTokens)) {
        load_kv(type, head_dim, page_of(place), 0, place.slot, to, to + values);
        to += head_dim;
      }
    }
    quantize_page(page.layout, head_dim, order_of(page.channel_order, head, head_dim), k, v,
                  static_cast<std::byte*>(page.blocks) + head * page.block_stride);
    if (page.rows == nullptr) continue;
    encode_rows(type, head_dim, page.row_bits, k, v,
                static_cast<std::byte*>(page.rows) + head * indexed_rows_bytes(type, head_dim, page.row_bits));
  }
}

void read_page(KvType type, int64_t head_dim, const PageRead& job) {
  const auto row = [](float* rows, int64_t offset) { return rows == nullptr ? nullptr : rows + offset; };
  std::vector<float> all(job.page.format == KvSegment::Format::kDense ? 0 : static_cast<size_t>(2 * kPageTokens * head_dim));
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

class CpuKvBackend final : public KvBackend {
 public:
  explicit CpuKvBackend(ThreadPool* threads)
      : own_threads_(threads == nullptr ? std::make_unique<ThreadPool>(1) : nullptr),
        threads_(threads == nullptr ? *own_threads_ : *threads) {}

  std::string_view name() const override { return "cpu"; }
  bool batch_invariant() const override { return true; }
  void check(const AttentionShape& /*shape*/) const override {}  // the kernels themselves do
  bool attends_to(KvSegment::Format /*format*/) const override { return true; }

  std::byte* allocate(size_t bytes) override { return allocate_aligned(bytes); }
  void release(std::byte* memory, size_t bytes) noexcept override { free_aligned(memory, bytes); }
  bool holds(const void* /*address*/) const override { return true; }

  void move(KvType type, int64_t head_dim, std::span<const TokenMove> moves) override {
    for (const auto& [from, to] : moves) move_kv(type, head_dim, from.k, from.v, from.slot, to.k, to.v, to.slot);
  }
  void write_tokens(KvType type, int64_t head_dim, std::span<const TokenWrite> tokens) override {
    for (const auto& [k, v, to] : tokens) store_kv(type, 1, head_dim, k, v, to.slot, to.k, to.v, 0);
  }
  void copy(std::span<const PageCopy> copies) override {
    for (const PageCopy& copy : copies) std::memcpy(copy.to, copy.from, copy.bytes);
  }
  void encode(KvType type, int64_t head_dim, std::span<const PageEncode> pages) override {
    for (const PageEncode& page : pages) encode_page(type, head_dim, page);
  }
  void read(KvType type, int64_t head_dim, std::span<const PageRead> pages) override {
    for (const PageRead& page : pages) read_page(type, head_dim, page);
  }
  void finish() override {}
  void download(const std::byte* page, size_t bytes, void* to) override {
    if (bytes > 0) std::memcpy(to, page, bytes);
  }
  void upload(const void* from, size_t bytes, std::byte* page) override {
    if (bytes > 0) std::memcpy(page, from, bytes);
  }

  void finish_heads(const AttentionShape& shape, const HeadRows& rows) override { kernels::finish_heads(shape, rows); }
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

std::shared_ptr<KvBackend> make_cpu_kv_backend(ThreadPool* threads) { return std::make_shared<CpuKvBackend>(threads); }

}  // namespace smartkv::kernels
