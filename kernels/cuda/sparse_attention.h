// Attention over indexed pages on a CUDA device: what each KV head of each query reads is chosen by the rule of
// kernels/sparse_attention.h and gathered into dense pages, over which attention.h's kernels then run beside the other segments.
//
// How many tokens a query reads depends on its pages alone, so the host plans all launches without waiting. A page that is not
// read whole always has an entry for its mean; where the choice took all its tokens, one of no weight.
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

struct SparsePage;   // rows of tables
struct SparseQuery;
struct MassRun;

// A query: how much it reads, and where in the batch's memory lies what belongs to it.
struct SparsePlan {
  size_t task = 0;
  int64_t query = 0;
  int64_t seen = 0;    // tokens
  int64_t scored = 0;  // pages that are not read whole
  int64_t budget = 0;  // tokens of theirs that are read
  int64_t read = 0, entries = 0;  // tokens; with the means
  int64_t pages = 0, first_bias = 0;  // gathered ones; from which on they have a bias
  int64_t others = 0;  // tokens that it sees of pages without index
  size_t promises = 0, list = 0, bias = 0, mass = 0, gathered = 0, end = 0;
};

// What calls need for a moment: grows to the largest and is then reused. For calls on one stream.
struct SparseWorkspace {
  size_t most_bytes = size_t{256} << 20;  // of a batch of several queries
  UploadRing tables;
  DeviceBuffer memory;
  std::vector<SparsePlan> plans;
  std::vector<std::byte> pages, queries, items, runs;  // of the host: see row_table.h
  std::vector<KvSegment> segments;
  std::vector<PromiseTask> promises;
  std::tuple<std::vector<AttentionTask>, std::vector<AttentionMassTask>> tasks;
};

// The tasks of a call of attention() or attention_mass() without indexed pages, and the queries of those that have some, each a
// task of its own: what a query reads does not depend on the others. Queries come in batches, so that memory is bounded.
template <typename Task>
class SparseBatches {
 public:
  // std::invalid_argument for a segment that does not fit.
  SparseBatches(const AttentionShape& shape, std::span<const Task> tasks, SparseWorkspace& workspace);

  // Goes on to the next batch; the first has the tasks without indexed pages. False: there is none.
  bool next();
  // What the indices are to say first.
  std::span<const PromiseTask> promises() const { return workspace_.promises; }
  // After that: chooses and gathers what the batch's queries read.
  void gather(CUstream_st* stream);
  // What attention runs over then.
  std::span<const Task> tasks() const { return batch_; }
  // After that, of attention_mass(): the mass of what was read, 0 of what was not.
  void hand_out(CUstream_st* stream) const requires std::is_same_v<Task, AttentionMassTask>;

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
  size_t task_ = 0;  // of the next query
  int64_t query_ = 0;
  bool started_ = false;
  const SparseQuery* queries_ = nullptr;  // on the device, as the others
  const SparsePage* pages_ = nullptr;
  const MassRun* runs_ = nullptr;
};

// Shared memory of a block that chooses; that gathers.
size_t choice_bytes();
size_t gather_bytes(int64_t head_dim);

}  // namespace smartkv::kernels::cuda
