// Attention over indexed pages on a CUDA device. The rule of kernels/sparse_attention.h chooses what each KV head of
// each query reads. These tokens are gathered into dense pages, and the kernels of attention.h run over them and the
// other segments.
//
// The number of tokens that a query reads depends on its pages alone. So the host plans all launches without waiting. A
// page that is not read whole always has an entry for its mean. If the choice took all its tokens, the entry has no
// weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/uploads.h"

struct CUstream_st;  // cudaStream_t points to it

namespace smartkv::kernels::cuda {

struct SparsePage;  // These are rows of tables.
struct SparseQuery;
struct MassRun;

// How much a query reads, and where its data lies in the memory of the batch.
struct SparsePlan {
  size_t task = 0;
  int64_t query = 0;
  int64_t seen = 0;                   // Tokens that it sees.
  int64_t scored = 0;                 // Pages that are not read whole.
  int64_t budget = 0;                 // Tokens to read from these pages.
  int64_t read = 0, entries = 0;      // Tokens to read, without and with the means.
  int64_t pages = 0, first_bias = 0;  // Gathered pages, and the first of them with a bias.
  int64_t others = 0;                 // Tokens that it sees in pages without an index.
  size_t promises = 0, list = 0, bias = 0, mass = 0, gathered = 0, end = 0;  // Offsets in bytes.
};

// Scratch of calls. It grows to the largest call and is then reused. Only for calls on one stream.
struct SparseWorkspace {
  size_t most_bytes = size_t{256} << 20;  // Most bytes of a batch of several queries.
  UploadRing tables;
  DeviceBuffer memory;
  std::vector<SparsePlan> plans;
  std::vector<std::byte> pages, queries, items, runs;  // In host memory: see row_table.h.
  std::vector<KvSegment> segments;
  std::vector<PromiseTask> promises;
  std::tuple<std::vector<AttentionTask>, std::vector<AttentionMassTask>> tasks;
};

// The tasks of a call of attention() or attention_mass() that have no indexed pages, and the queries of the other
// tasks, each as a task of its own: what a query reads does not depend on the others. Queries come in batches, so that
// memory is bounded.
template <typename Task>
class SparseBatches {
 public:
  // Throws std::invalid_argument for a segment that does not fit.
  SparseBatches(const AttentionShape& shape, std::span<const Task> tasks, SparseWorkspace& workspace);

  // Advances to the next batch. The first batch has the tasks without indexed pages. Returns whether there is a batch.
  bool next();
  // Returns the promises to compute first.
  std::span<const PromiseTask> promises() const { return workspace_.promises; }
  // Chooses and gathers what the queries of the batch read. REQUIRES: the promises are computed.
  void gather(CUstream_st* stream);
  // Returns the tasks that attention runs over. REQUIRES: gather() was called.
  std::span<const Task> tasks() const { return batch_; }
  // Writes the mass of the tokens that were read, and 0 for the others, to the results of attention_mass().
  // REQUIRES: attention_mass() ran over tasks().
  void hand_out(CUstream_st* stream) const
    requires std::is_same_v<Task, AttentionMassTask>;

 private:
  SparsePlan plan() const;
  void add(const SparsePlan& of, std::byte* memory);
  int32_t add_pages(std::span<const KvSegment> segments);
  void add_gathered(const SparsePlan& of, const std::byte* memory);
  void to_next_task();

  const AttentionShape& shape_;
  SparseWorkspace& workspace_;
  std::span<const Task> all_;
  std::vector<Task>& batch_;
  size_t task_ = 0;  // Task of the next query.
  int64_t query_ = 0;
  bool started_ = false;
  const SparseQuery* queries_ = nullptr;  // On the device, as are the next two.
  const SparsePage* pages_ = nullptr;
  const MassRun* runs_ = nullptr;
};

// Return the bytes of shared memory of a block that chooses, and of a block that gathers.
size_t choice_bytes();
size_t gather_bytes(int64_t head_dim);

}  // namespace smartkv::kernels::cuda
