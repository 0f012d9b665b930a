// Jobs on pages. kv_backend.h states their order, and how long what they point to must stay valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention.h"

namespace smartkv::kernels {

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

// Copies a page or one KV head's part of it. REQUIRES: sizes and addresses are multiples of 16.
struct PageCopy {
  const void* from = nullptr;
  void* to = nullptr;
  size_t bytes = 0;
};

// Source of a quantized page of n_heads KV heads. Exactly one of `tokens` and `quantized` is set.
struct PageSource {
  std::span<const TokenPlace> tokens = {};  // [n_heads, kPageTokens], in the order of the new page
  const KvSegment* quantized = nullptr;     // a quantized page
  // With `quantized`: a second quantized page of the same tokens. The first residual_columns channels of its channel
  // order are read from it instead. May be null.
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
  // For a calibrated page, which has all KV heads; else null. `layout`, channel_order and block_stride do not count
  // then.
  const WidthTable* table = nullptr;
  MirroredFloats middle = {};      // PageRotations::middle() of the page
  const uint64_t* wide = nullptr;  // [n_heads], for a table with two tiers: the masks of the wide tokens
};

// Makes a cut page (KvSegment::Format::kCut) of all KV heads from a dense one.
struct PageCut {
  KvSegment page;  // dense, of kPageTokens tokens
  int64_t n_heads = 0;
  KvSegment cut;           // describes the new page: channel orders, numbers of channels and head_stride
  std::byte* k = nullptr;  // destinations of K and V: [n_heads], cut.head_stride bytes apart
  std::byte* v = nullptr;
};

// Reads tokens [first, first + n) of KV heads [head, head + n_heads) as f32. REQUIRES: the page is dense, quantized,
// calibrated or indexed. For an indexed page, the job reads the index, not the rows.
struct PageRead {
  KvSegment page;
  int64_t head = 0, n_heads = 1;
  int64_t first = 0, n = 0;
  float* k = nullptr;  // [n_heads, n, head_dim], heads head_stride floats apart; same for v; either may be null
  float* v = nullptr;
  int64_t head_stride = 0;
};

// Returns a job that reads one token. k, v: f32 [head_dim]; either may be null. REQUIRES: `place` is a slot of a page.
inline PageRead read_of(const TokenPlace& place, float* k, float* v) {
  return {.page = {.tokens = kPageTokens, .k = place.k, .v = place.v}, .first = place.slot, .n = 1, .k = k, .v = v};
}

// Computes statistics of tokens [first, first + n) of KV heads [0, n_heads) of a dense page. Each result may be null.
struct PageStats {
  KvSegment page;
  int64_t n_heads = 1;
  int64_t first = 0, n = 0;
  float* k_range = nullptr;     // [n_heads, head_dim]: maximum - minimum of each channel over the tokens
  float* v_range = nullptr;     // [n_heads, n]: maximum - minimum of each token over the channels
  double* k_squares = nullptr;  // [n_heads, head_dim]: sum of squares over the tokens
  double* v_squares = nullptr;  // [n_heads]: sum of squares over tokens and channels
};

// Computes the dot products of queries with keys [first, first + n) of a KV head of a dense or quantized page. A
// quantized page may have a residual, as in PageSource.
struct KeyProducts {
  KvSegment page;
  const KvSegment* residual = nullptr;
  int64_t residual_columns = 0;
  int64_t head = 0;
  int64_t first = 0, n = 0;
  const float* q = nullptr;  // f32 [n_queries, head_dim]
  int64_t n_queries = 0;
  float* out = nullptr;  // f32 [n_queries, n], rows out_stride floats apart
  int64_t out_stride = 0;
};

// Thread-safe.
class PageOps {
 public:
  virtual ~PageOps() = default;
  virtual void move(KvType type, int64_t head_dim, std::span<const TokenMove> moves) = 0;
  virtual void copy(std::span<const PageCopy> copies) = 0;
  // Writes the bytes that quantize_page() and encode_rows() define. If a value is not finite, a backend that runs jobs
  // at once throws std::invalid_argument. One that queues them makes the results of attention to the page NaN.
  virtual void encode(KvType type, int64_t head_dim, std::span<const PageEncode> pages) = 0;
  // Whether attention() accepts cut pages. If not, cut() throws std::logic_error.
  virtual bool cuts_pages() const = 0;
  virtual void cut(KvType type, int64_t head_dim, std::span<const PageCut> pages) = 0;
  // The results of these three are valid after finish(). Statistics and products equal those of the CPU backend up to
  // rounding.
  virtual void read(KvType type, int64_t head_dim, std::span<const PageRead> pages) = 0;
  virtual void page_stats(KvType type, int64_t head_dim, std::span<const PageStats> pages) = 0;
  virtual void multiply_keys(KvType type, int64_t head_dim, std::span<const KeyProducts> products) = 0;
  virtual void finish() = 0;  // runs all queued jobs; their results in host memory are valid on return
};

}  // namespace smartkv::kernels
