// What a pass of a model does with pages: it writes new rows of K and V, and attends.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention.h"
#include "kernels/head_rows.h"

namespace smartkv::kernels {

// Writes new rows of K, after RoPE, and V to slots [slot, slot + n) of a dense page.
struct PageWrite {
  const float* k = nullptr;  // [n, n_kv_heads, head_dim], tokens row_stride floats apart; the same for v
  const float* v = nullptr;
  int64_t row_stride = 0;
  int64_t slot = 0, n = 0;
  void* page_k = nullptr;  // [n_kv_heads], head_stride bytes apart; the same for page_v
  void* page_v = nullptr;
  int64_t head_stride = 0;
};

class KvAttention {
 public:
  virtual ~KvAttention() = default;
  // Whether a query's result depends on its own segments only, bit for bit (kernels/attention.h).
  virtual bool batch_invariant() const = 0;
  // Throws std::invalid_argument, naming the reason, if the backend does not support the shape. The CPU backend throws
  // in attention() instead.
  virtual void check(const AttentionShape& shape) const = 0;
  // Applies qk-norm and the rotary embedding. REQUIRES: all pointers of `rows` are memory of allocate().
  virtual void qk_norm_rope(const AttentionShape& shape, const HeadRows& rows) = 0;
  // Writes new rows of K and V. Thread-safe for disjoint slots. The rows must stay valid until the next call of
  // attention(), attention_mass(), apply_writes() or forget_writes() has returned. REQUIRES: all writes until then have
  // the same n_kv_heads and head_dim.
  virtual void write(KvType type, int64_t n_kv_heads, int64_t head_dim, const PageWrite& rows) = 0;
  virtual void forget_writes() noexcept = 0;  // drops queued writes after a pass has failed
  virtual void apply_writes() = 0;            // applies queued writes now, so that the following jobs see them
  // Whether some pages are in pinned host memory at present. If so, prefetch() should be called with the segments of a
  // layer before attention() reads them: while the layer before it is computed, not earlier.
  virtual bool prefetches() const { return false; }
  virtual void prefetch(std::span<const KvSegment> segments) { (void)segments; }
  // Compute what kernels/attention.h defines: the same bits if batch_invariant(), else values within rounding. Results
  // in host memory are valid on return. The results of attention_mass() must be in host memory. REQUIRES: one thread at
  // a time calls attention(), attention_mass(), apply_writes() and qk_norm_rope(), and no write() runs meanwhile.
  virtual void attention(const AttentionShape& shape, std::span<const AttentionTask> tasks) = 0;
  virtual void attention_mass(const AttentionShape& shape, std::span<const AttentionMassTask> tasks) = 0;
};

}  // namespace smartkv::kernels
