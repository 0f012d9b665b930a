// A KvBackend owns the pages of a model's KV caches and computes on them: on the CPU or on a device
// (kernels/cuda/kv_backend.h).
//
// Memory.
//  - The contents of pages, to which KvSegment::k and v and TokenPlace point, may be device memory. The host must not
//    dereference these pointers; it uses the jobs below.
//  - Everything else (queries, rows, results, biases, channel orders, lists of segments, jobs) is host memory.
//  - The rows of write(), the queries and results of attention() and the queries of attention_mass() may also be memory
//    of allocate(). The caller's own work on it must be ordered by the device's legacy default stream.
//
// Order.
//  - REQUIRES: the jobs of one call are independent. No job reads or writes memory that another one writes.
//  - Jobs take effect in the order of the calls. They may be queued until the next call of attention(),
//    attention_mass(), apply_writes(), finish(), prefetch(), download() or upload() for any page.
//  - The rows of write() may reach their pages as late as in the next call of attention(), attention_mass() or
//    apply_writes(), after all jobs queued before that call.
//  - A page may be released while jobs on it are queued.
//  - Host memory that a job reads may be freed after the call has returned, except for write(). Results of read() and
//    of the jobs of policies are valid after finish().
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

// Writes new rows of K, after RoPE, and V to slots [slot, slot + n) of a dense page.
struct PageWrite {
  const float* k = nullptr;  // [n, n_kv_heads, head_dim], rows row_stride floats apart; the same for v
  const float* v = nullptr;
  int64_t row_stride = 0;
  int64_t slot = 0, n = 0;
  void* page_k = nullptr;  // [n_kv_heads], head_stride bytes apart; the same for page_v
  void* page_v = nullptr;
  int64_t head_stride = 0;
};

// Where a token of one KV head lies: in a slot of a dense page, or in rows of its own.
struct TokenPlace {
  static constexpr int32_t kRow = -1;  // value of `slot`: k and v are f32 [head_dim] each, in memory of allocate()

  void* k = nullptr;  // the KV head's part of the page; the same for v
  void* v = nullptr;
  int32_t slot = 0;
};

// Moves a token. REQUIRES: at least one of `from` and `to` is a slot of a page.
struct TokenMove {
  TokenPlace from, to;
};

// Writes one token's K and V.
struct TokenWrite {
  const float* k = nullptr;  // [head_dim]
  const float* v = nullptr;
  TokenPlace to;
};

// Copies a page or one KV head's part of it. REQUIRES: sizes and addresses are multiples of 16.
struct PageCopy {
  const void* from = nullptr;
  void* to = nullptr;
  size_t bytes = 0;
};

// Source of a quantized page of n_heads KV heads. Exactly one of `tokens`, `codes` and `k` is set.
struct PageSource {
  std::span<const TokenPlace> tokens = {};  // [n_heads, kPageTokens], in the order of the new page
  const KvSegment* codes = nullptr;         // a quantized page
  const float* k = nullptr;                 // rows: [n_heads, kPageTokens, head_dim]; the same for v
  const float* v = nullptr;
  // With `codes`: a second page, from which K takes the first residual_columns channels in the channel order of that
  // page. May be null.
  const KvSegment* residual = nullptr;
  int64_t residual_columns = 0;
};

struct PageEncode {
  PageSource source;
  int64_t n_heads = 0;
  QuantizedLayout layout;
  const uint8_t* channel_order = nullptr;  // [n_heads, head_dim], see quantized_page.h
  void* blocks = nullptr;                  // [n_heads], block_stride bytes apart
  int64_t block_stride = 0;
  void* rows = nullptr;  // rows of an indexed page, [n_heads] of indexed_rows_bytes() each; null for other pages
  int row_bits = 0;
};

// Makes a cut page (KvSegment::Format::kCut) of all KV heads from a dense one.
struct PageCut {
  KvSegment page;  // dense, of kPageTokens tokens
  int64_t n_heads = 0;
  KvSegment cut;   // gives the new page's channel orders and numbers of channels
  std::byte* k = nullptr;  // destinations of K and V: [n_heads], cut.head_stride bytes apart
  std::byte* v = nullptr;
};

// Reads tokens [first, first + n) of KV heads [head, head + n_heads) of a dense or quantized page, or of the index of
// an indexed page, as f32. It cannot read a cut page or the rows of an indexed page.
struct PageRead {
  KvSegment page;
  int64_t head = 0, n_heads = 1;
  int64_t first = 0, n = 0;
  float* k = nullptr;       // [n_heads, n, head_dim], heads head_stride floats apart; same for v; either may be null
  float* v = nullptr;
  int64_t head_stride = 0;
};

// Returns a job that reads one token. k, v: f32 [head_dim]; either may be null. REQUIRES: `place` is a slot of a page.
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

// Jobs of policies on pages. All results except for EntrySummary::to are in host memory, and valid after
// KvBackend::finish(). They equal those of the CPU up to rounding.

// The maps of a gate in a backend's memory.
class BackendGate {
 public:
  virtual ~BackendGate() = default;
};

// Scores tokens [first, first + n) of one layer, counted from the first token of `pages`, which are dense.
struct TokenScoring {
  int64_t layer = 0;
  std::span<const KvSegment> pages;
  int64_t first = 0, n = 0;
  // Rotary embedding of each token, cosines, then sines: f32 [n, head_dim]. Not used without a gate.
  const float* angles = nullptr;
  float* scores = nullptr;        // f32 [n_kv_heads, n]: log4 of the expected lifespan; |k| without a gate
  float* importance = nullptr;    // f32 [the gate's importance_heads, n], from its second heads; null if not needed
};

// Computes statistics of tokens [first, first + n) of KV heads [0, n_heads) of a dense page. Each result may be null.
struct PageStudy {
  KvSegment page;
  int64_t n_heads = 1;
  int64_t first = 0, n = 0;
  float* k_range = nullptr;     // [n_heads, head_dim]: range of each channel over the tokens
  float* v_range = nullptr;     // [n_heads, n]: range of each token over the channels
  double* k_squares = nullptr;  // [n_heads, head_dim]: sum of squares over the tokens
  double* v_squares = nullptr;  // [n_heads]: sum of squares over tokens and channels
};

// Computes the products of queries with keys [first, first + n) of a KV head of a dense or quantized page. A quantized
// page may have a residual, as in PageSource.
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

// Entries of a KV head in order of position: whole quantized pages first, then single tokens.
struct HeadEntries {
  std::span<const KvSegment> codes;  // quantized pages of all KV heads
  int64_t head = 0;                  // index of the KV head in `codes`
  std::span<const TokenPlace> tokens;
  std::span<const float> bias;       // of all entries
  const SampledQueries* queries = nullptr;  // null if not needed
};

// Summarizes entries as summarize() of kernels/block_summarizer.h does.
struct EntrySummary {
  HeadEntries entries;
  SummaryRule rule;
  std::span<const TokenPlace> to;  // rows for K and V, one for each summary
  int32_t* pivots = nullptr;       // results: see BlockSummary
  int32_t* group = nullptr;
  float* bias = nullptr;
};

// Criteria by which an entry stands out.
enum class EntryFigure : uint8_t {
  kNovelty,    // 1 - cosine of its key and the nearest of `pivots` keys, chosen by farthest-point sampling
  kValueNorm,  // |v|
  kAttention,  // attention from the queries
};
// Computes that criterion for each entry.
struct EntryFigures {
  HeadEntries entries;
  EntryFigure figure = EntryFigure::kValueNorm;
  int64_t pivots = 0;    // for kNovelty
  float* out = nullptr;  // f32 [entries]
};

class KvBackend {
 public:
  virtual ~KvBackend() = default;
  virtual std::string_view name() const = 0;
  // Whether a query's result depends on its own segments only, bit for bit (kernels/attention.h).
  virtual bool batch_invariant() const = 0;
  // Throws std::invalid_argument, naming the reason, if the backend does not support the shape. The CPU backend accepts
  // every shape here; its attention() throws instead.
  virtual void check(const AttentionShape& shape) const = 0;

  // Returns zeroed memory for pages, aligned to 64 bytes; null for 0 bytes. Throws std::bad_alloc. The zeroing may be
  // queued like a job: call finish() before anything other than a job writes there. This and all following functions up
  // to upload() are thread-safe, except for score().
  virtual std::byte* allocate(size_t bytes) = 0;
  virtual void release(std::byte* memory, size_t bytes) noexcept = 0;
  virtual bool holds(const void* address) const = 0;  // whether it is in memory of allocate(); always true on the CPU

  virtual void move(KvType type, int64_t head_dim, std::span<const TokenMove> moves) = 0;
  virtual void write_tokens(KvType type, int64_t head_dim, std::span<const TokenWrite> tokens) = 0;
  virtual void copy(std::span<const PageCopy> copies) = 0;
  // Writes the bytes that quantize_page() and encode_rows() define. For values that are not finite it throws
  // std::invalid_argument, or, if the jobs are queued, makes the results of attention to the page NaN.
  virtual void encode(KvType type, int64_t head_dim, std::span<const PageEncode> pages) = 0;
  // Whether attention() accepts cut pages. If not, cut() throws std::logic_error.
  virtual bool cuts_pages() const { return false; }
  virtual void cut(KvType type, int64_t head_dim, std::span<const PageCut> pages);
  // The results are valid after finish().
  virtual void read(KvType type, int64_t head_dim, std::span<const PageRead> pages) = 0;
  virtual void finish() = 0;  // runs all queued jobs; their results in host memory are valid on return

  // Copies a gate to the backend's memory.
  virtual std::shared_ptr<const BackendGate> hold(std::shared_ptr<const GateMaps> gate) = 0;
  // `gate`: a result of hold(); null scores by the norms of keys. Not thread-safe on the CPU, where it uses the thread
  // pool.
  virtual void score(KvType type, int64_t n_kv_heads, int64_t head_dim, std::shared_ptr<const BackendGate> gate,
                     std::span<const TokenScoring> layers) = 0;
  virtual void study(KvType type, int64_t head_dim, std::span<const PageStudy> pages) = 0;
  virtual void multiply_keys(KvType type, int64_t head_dim, std::span<const KeyProducts> products) = 0;
  virtual void summarize(KvType type, int64_t head_dim, std::span<const EntrySummary> summaries) = 0;
  virtual void find_figures(KvType type, int64_t head_dim, std::span<const EntryFigures> entries) = 0;

  // Copy a page's bytes to and from host memory. They are done on return.
  virtual void download(const std::byte* page, size_t bytes, void* to) = 0;
  virtual void upload(const void* from, size_t bytes, std::byte* page) = 0;

  // Applies qk-norm and the rotary embedding. REQUIRES: all pointers of `rows` are memory of allocate().
  virtual void finish_heads(const AttentionShape& shape, const HeadRows& rows) = 0;
  // Writes new rows of K and V. Thread-safe for disjoint slots. The rows must stay valid until the next call of
  // attention(), attention_mass(), apply_writes() or forget_writes(). REQUIRES: until then, all rows have the same
  // n_kv_heads and head_dim, which are also those of that call.
  virtual void write(KvType type, int64_t n_kv_heads, int64_t head_dim, const PageWrite& rows) = 0;
  virtual void forget_writes() noexcept = 0;  // drops queued writes after a pass has failed
  virtual void apply_writes() = 0;            // applies queued writes now, so that the following jobs see them
  // Returns a backend with the same device but pages in pinned host memory. attention() of this one accepts both kinds
  // of pages. Null on the CPU.
  virtual std::shared_ptr<KvBackend> with_host_pages() { return nullptr; }
  // Whether some pages are in pinned host memory at present. If so, prefetch() should be called with segments before
  // attention() reads them, up to one layer ahead.
  virtual bool prefetches() const { return false; }
  virtual void prefetch(std::span<const KvSegment> segments) { (void)segments; }
  // See kernels/attention.h; bit-exact if batch_invariant(). Results in host memory are valid on return. The results of
  // attention_mass() must be in host memory. REQUIRES: one thread at a time calls attention(), attention_mass(),
  // apply_writes() and finish_heads(), and no write() runs meanwhile.
  virtual void attention(const AttentionShape& shape, std::span<const AttentionTask> tasks) = 0;
  virtual void attention_mass(const AttentionShape& shape, std::span<const AttentionMassTask> tasks) = 0;

  // Returns the device sampler, which samples tokens from logits in memory of allocate(), ordered by the legacy default
  // stream. Null if there is none.
  virtual TokenDrawer* drawer() { return nullptr; }
};

// Returns the backend of the CPU. `threads` must outlive it; null uses the calling thread only.
std::shared_ptr<KvBackend> make_cpu_kv_backend(ThreadPool* threads);

// Owns the memory of a page.
class PageMemory {
 public:
  // Throws std::bad_alloc.
  PageMemory(std::shared_ptr<KvBackend> backend, size_t size)
      : backend_(std::move(backend)), data_(backend_->allocate(size)), size_(size) {}
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;
  ~PageMemory() { backend_->release(data_, size_); }

  std::byte* data() { return data_; }  // may be device memory; the host must not dereference it
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  KvBackend& backend() const { return *backend_; }

 private:
  std::shared_ptr<KvBackend> backend_;
  std::byte* data_;
  size_t size_;
};

}  // namespace smartkv::kernels
