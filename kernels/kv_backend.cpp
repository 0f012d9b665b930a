#include "kernels/kv_backend.h"

#include "kernels/aligned_buffer.h"
#include "kernels/elementwise.h"
#include "kernels/thread_pool.h"

namespace smartkv::kernels {
namespace {

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

  void write(KvType type, int64_t n_kv_heads, int64_t head_dim, const PageWrite& rows) override {
    for (int64_t i = 0; i < rows.n; ++i) {
      store_kv(type, n_kv_heads, head_dim, rows.k + i * rows.row_stride, rows.v + i * rows.row_stride, rows.slot + i,
               rows.page_k, rows.page_v, rows.head_stride);
    }
  }
  void forget_writes() noexcept override {}
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
