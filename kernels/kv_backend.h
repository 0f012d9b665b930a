// Where the pages of a model's KV caches live, and who computes on them: the CPU, or a device (kernels/cuda/kv_backend.h).
//
// Only what pages hold is the backend's memory: what KvSegment::k and v, and TokenPlace, point to. The host may not reach it:
// what is done with pages is done here, in jobs. Everything else that it is given (queries, rows, results, biases, orders of
// channels, lists of segments, jobs) is the host's; but rows of write(), queries and results of attention() and queries of
// attention_mass() may be in memory of allocate(), too, in the order of a device's legacy default stream.
//
// Jobs of one call do not depend on each other: none reads or writes what another one writes. Calls take effect in their
// order. They may wait in a queue, until attention(), attention_mass(), finish(), download() or upload() is called for
// whatever: a page may be released meanwhile, and what a job points to in the host's memory may go once its call returned, but
// for that of write() and read().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/attention.h"
#include "kernels/block_summarizer.h"
#include "kernels/gate_maps.h"
#include "kernels/head_rows.h"
#include "kernels/token_draw.h"

namespace smartkv::kernels {

// Rows of new K, after RoPE, and V for slots [slot, slot + n) of a dense page.
struct PageWrite {
  const float* k = nullptr;  // [n, n_kv_heads, head_dim], rows row_stride floats apart; so is v
  const float* v = nullptr;
  int64_t row_stride = 0;
  int64_t slot = 0, n = 0;
  void* page_k = nullptr;  // [n_kv_heads], each head_stride bytes apart; so is page_v
  void* page_v = nullptr;
  int64_t head_stride = 0;
};

// A token of one KV head: a slot of its dense page, or rows of its own.
struct TokenPlace {
  static constexpr int32_t kRow = -1;  // as a slot: k and v are f32 [head_dim] each, in memory of allocate()

  void* k = nullptr;  // of the KV head; so is v
  void* v = nullptr;
  int32_t slot = 0;
};

// Not from rows to rows.
struct TokenMove {
  TokenPlace from, to;
};

// One token's K and V into its slot.
struct TokenWrite {
  const float* k = nullptr;  // [head_dim]
  const float* v = nullptr;
  TokenPlace to;
};

// Bytes of pages: a page, or what a KV head has of it. Multiples of 16, as are the addresses.
struct PageCopy {
  const void* from = nullptr;
  void* to = nullptr;
  size_t bytes = 0;
};

// What becomes a page of codes, of n_heads KV heads: one of
struct PageSource {
  std::span<const TokenPlace> tokens = {};  // [n_heads, kPageTokens], in the order that the page will have
  const KvSegment* codes = nullptr;         // a page of codes
  const float* k = nullptr;                 // rows: [n_heads, kPageTokens, head_dim]; so is v
  const float* v = nullptr;
  // Beside `codes`: the page that has the channels of K which are the first residual_columns of its order; null: there is none.
  const KvSegment* residual = nullptr;
  int64_t residual_columns = 0;
};

struct PageEncode {
  PageSource source;
  int64_t n_heads = 0;
  QuantizedLayout layout;
  const uint8_t* channel_order = nullptr;  // [n_heads, head_dim], see quantized_page.h
  void* blocks = nullptr;                  // [n_heads], each block_stride bytes apart
  int64_t block_stride = 0;
  void* rows = nullptr;                    // of an indexed page, [n_heads] of indexed_rows_bytes(); null: there are none
  int row_bits = 0;
};

// Becomes a cut page (KvSegment::Format::kCut) of all KV heads.
struct PageCut {
  KvSegment page;  // dense, of kPageTokens tokens
  int64_t n_heads = 0;
  KvSegment cut;   // its orders and numbers of channels
  std::byte* k = nullptr;  // where its K and V go: [n_heads], each cut.head_stride bytes apart
  std::byte* v = nullptr;
};

// Tokens [first, first + n) of KV heads [head, head + n_heads) of a page, dense or of codes, as f32. Not an indexed page's rows.
struct PageRead {
  KvSegment page;
  int64_t head = 0, n_heads = 1;
  int64_t first = 0, n = 0;
  float* k = nullptr;       // [n_heads, n, head_dim], heads head_stride floats apart; so is v. Either may be null
  float* v = nullptr;
  int64_t head_stride = 0;
};

// Of one token: f32 [head_dim] each; either may be null.
inline PageRead read_of(const TokenPlace& place, float* k, float* v) {
  PageRead job;
  job.page.tokens = kPageTokens;
  job.page.k = place.k;
  job.page.v = place.v;
  job.first = place.slot;
  job.n = 1;
  job.k = k;
  job.v = v;
  return job;
}

// What policies compute of pages. All results are in the host's memory, there after KvBackend::finish(), and within rounding of
// the CPU's.

// A gate's maps where a backend computes with them.
class BackendGate {
 public:
  virtual ~BackendGate() = default;
};

// Tokens [first, first + n) of one layer, counted from the first of its pages on, which are dense.
struct TokenScoring {
  int64_t layer = 0;
  std::span<const KvSegment> pages;
  int64_t first = 0, n = 0;
  const float* angles = nullptr;  // RoPE's of each token, cos, then sin: f32 [n, head_dim]
  float* scores = nullptr;        // f32 [n_kv_heads, n]: log4 of the expected lifespan; without a gate: |k|
  float* importance = nullptr;    // f32 [the gate's importance_heads, n], by its second heads; null: not asked for
};

// Tokens [first, first + n) of KV heads [0, n_heads) of a dense page. Each result may be null.
struct PageStudy {
  KvSegment page;
  int64_t n_heads = 1;
  int64_t first = 0, n = 0;
  float* k_range = nullptr;     // [n_heads, head_dim]: of each channel, over the tokens
  float* v_range = nullptr;     // [n_heads, n]: of each token, over the channels
  double* k_squares = nullptr;  // [n_heads, head_dim]: sum over the tokens
  double* v_squares = nullptr;  // [n_heads]: sum over tokens and channels
};

// Queries with keys [first, first + n) of a KV head of a page, dense or of codes; of codes with a residual as PageSource has one.
struct KeyProducts {
  KvSegment page;
  const KvSegment* residual = nullptr;
  int64_t residual_columns = 0;
  int64_t head = 0;
  int64_t first = 0, n = 0;
  const float* q = nullptr;  // f32 [n_queries, head_dim]
  int64_t n_queries = 0;
  float* out = nullptr;      // f32 [n_queries, n], rows out_stride floats apart
  int64_t out_stride = 0;
};

// Entries of a KV head, in order of position: those of whole pages of codes, then others.
struct HeadEntries {
  std::span<const KvSegment> codes;  // of all KV heads
  int64_t head = 0;                  // in `codes`
  std::span<const TokenPlace> tokens;
  std::span<const float> bias;       // of all entries
  const SampledQueries* queries = nullptr;  // null: not needed
};

// summarize() of kernels/block_summarizer.h.
struct EntrySummary {
  HeadEntries entries;
  SummaryRule rule;
  std::span<const TokenPlace> to;  // rows, as many as are wanted of summaries: K and V
  int32_t* pivots = nullptr;       // BlockSummary's
  int32_t* group = nullptr;
  float* bias = nullptr;
};

// What makes an entry stand out.
enum class EntryFigure : uint8_t {
  kNovelty,    // 1 - cosine between its key and the nearest of `pivots` ones, farthest points on cosine
  kValueNorm,  // |v|
  kAttention,  // what the queries give it
};
struct EntryFigures {
  HeadEntries entries;
  EntryFigure figure = EntryFigure::kValueNorm;
  int64_t pivots = 0;
  float* out = nullptr;  // f32 [entries]
};

class KvBackend {
 public:
  virtual ~KvBackend() = default;
  virtual std::string_view name() const = 0;
  // Whether a query's result depends on its own segments only, bit for bit: kernels/attention.h.
  virtual bool batch_invariant() const = 0;
  // std::invalid_argument, naming what is wrong, for a shape that it does not run.
  virtual void check(const AttentionShape& shape) const = 0;

  // Zeroed memory of pages, at a multiple of 64 bytes. Thread-safe, as are all calls up to upload(). Throws std::bad_alloc.
  virtual std::byte* allocate(size_t bytes) = 0;
  virtual void release(std::byte* memory, size_t bytes) noexcept = 0;
  virtual bool holds(const void* address) const = 0;  // whether jobs may read there

  virtual void move(KvType type, int64_t head_dim, std::span<const TokenMove> moves) = 0;
  virtual void write_tokens(KvType type, int64_t head_dim, std::span<const TokenWrite> tokens) = 0;
  virtual void copy(std::span<const PageCopy> copies) = 0;
  // The bytes of quantize_page() and encode_rows(). Values that are not finite are std::invalid_argument, or, where the call
  // does not wait for them, NaN in what attends to the page.
  virtual void encode(KvType type, int64_t head_dim, std::span<const PageEncode> pages) = 0;
  // Whether it attends to cut pages. If not, cut() throws std::logic_error.
  virtual bool cuts_pages() const { return false; }
  virtual void cut(KvType type, int64_t head_dim, std::span<const PageCut> pages);
  // What it reads is there after finish().
  virtual void read(KvType type, int64_t head_dim, std::span<const PageRead> pages) = 0;
  virtual void finish() = 0;

  virtual std::shared_ptr<const BackendGate> hold(std::shared_ptr<const GateMaps> gate) = 0;
  // gate: hold()'s, null: key norms. Not thread-safe on the CPU, whose threads it uses.
  virtual void score(KvType type, int64_t n_kv_heads, int64_t head_dim, std::shared_ptr<const BackendGate> gate,
                     std::span<const TokenScoring> layers) = 0;
  virtual void study(KvType type, int64_t head_dim, std::span<const PageStudy> pages) = 0;
  virtual void multiply_keys(KvType type, int64_t head_dim, std::span<const KeyProducts> products) = 0;
  virtual void summarize(KvType type, int64_t head_dim, std::span<const EntrySummary> summaries) = 0;
  virtual void find_figures(KvType type, int64_t head_dim, std::span<const EntryFigures> entries) = 0;

  // A page's bytes, to and from the host's memory, done on return.
  virtual void download(const std::byte* page, size_t bytes, void* to) = 0;
  virtual void upload(const void* from, size_t bytes, std::byte* page) = 0;

  // All that it points to is in memory of allocate().
  virtual void finish_heads(const AttentionShape& shape, const HeadRows& rows) = 0;
  // Thread-safe for disjoint slots. What it points to has to stay until attention() or attention_mass() is called for whatever
  // tasks; or forget_writes().
  virtual void write(KvType type, int64_t n_kv_heads, int64_t head_dim, const PageWrite& rows) = 0;
  virtual void forget_writes() noexcept = 0;
  virtual void apply_writes() = 0;  // before attention() does, where jobs are to see them
  // The same with pages in the host's memory, over which this one attends, too; null: it has none other than its own.
  virtual std::shared_ptr<KvBackend> with_host_pages() { return nullptr; }
  // Whether it has such pages, and is to hear of segments before attention() reads them, as early as a layer before.
  virtual bool prefetches() const { return false; }
  virtual void prefetch(std::span<const KvSegment> segments) { (void)segments; }
  // As kernels/attention.h says, bit for bit where batch_invariant(). What the host's memory gets is there when they return.
  virtual void attention(const AttentionShape& shape, std::span<const AttentionTask> tasks) = 0;
  virtual void attention_mass(const AttentionShape& shape, std::span<const AttentionMassTask> tasks) = 0;

  // Who draws tokens from logits in memory of allocate(), after what is in the legacy default stream; null: nobody.
  virtual TokenDrawer* drawer() { return nullptr; }
};

// The CPU's. threads: outlives it; null: the calling thread only.
std::shared_ptr<KvBackend> make_cpu_kv_backend(ThreadPool* threads);

// A page's bytes, owned.
class PageMemory {
 public:
  // Throws std::bad_alloc.
  PageMemory(std::shared_ptr<KvBackend> backend, size_t size)
      : backend_(std::move(backend)), data_(backend_->allocate(size)), size_(size) {}
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;
  ~PageMemory() { backend_->release(data_, size_); }

  std::byte* data() { return data_; }  // not the host's to reach
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  KvBackend& backend() const { return *backend_; }

 private:
  std::shared_ptr<KvBackend> backend_;
  std::byte* data_;
  size_t size_;
};

}  // namespace smartkv::kernels
