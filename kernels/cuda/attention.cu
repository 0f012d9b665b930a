#include "kernels/cuda/attention.h"

#include <cstring>

#include "kernels/attention_kernels.h"
#include "kernels/cuda/attention_block.h"

namespace smartkv::kernels::cuda {
namespace {

// Blocks per multiprocessor that the use of registers must allow. Blocks of few rows wait for memory, and three of them
// with two pages each in flight are enough (docs/notes/2026-11-cuda-on-paper.md). Sums for 256 channels take all
// registers that a thread can have.
template <int kDim, int kRowWarps>
__global__ void __launch_bounds__(kThreads, kDim <= 128 && kRowWarps == 1 ? 3 : 2)
    attention_kernel(const Tables tables) {
  Block<kDim, kRowWarps, Goal::kOutput> block(tables, tables.items[blockIdx.x]);
  block.run();
  block.write_output();
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 4) mass_sums_kernel(const Tables tables) {
  Block<kDim, 1, Goal::kSums> block(tables, tables.items[blockIdx.x]);
  block.run();
  block.write_sums();
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 4) mass_kernel(const Tables tables) {
  Block<kDim, 1, Goal::kProbabilities> block(tables, tables.items[blockIdx.x]);
  block.load_sums();
  block.run();
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 4) promise_kernel(const Tables tables) {
  Block<kDim, 1, Goal::kPromises> block(tables, tables.items[blockIdx.x]);
  block.load_sums();
  block.run();
}

// Merges the splits of each row in order and writes `out`. A warp takes a row.
__global__ void __launch_bounds__(kThreads) merge_kernel(const Tables tables, const Rows* merges) {
  const Rows rows = merges[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x % 32), dim = tables.shape.head_dim,
            n_rows = rows.n_queries * rows.n_heads;
  const auto row_of = [&](int split, int r) {
    return tables.partial + (int64_t{rows.partial} + split * n_rows + r) * (dim + kPartialPadding);
  };
  for (int r = static_cast<int>(threadIdx.x / 32); r < n_rows; r += kWarps) {
    float m = kNoMaximum, l = 0.0f;
    for (int split = 0; split < rows.splits; ++split) m = fmaxf(m, row_of(split, r)[dim]);
    for (int split = 0; split < rows.splits; ++split) {
      const float* const from = row_of(split, r) + dim;
      l += from[1] * exp2_fast(from[0] - m);
    }
    const float share = 1.0f / l;
    auto* const out = static_cast<uint16_t*>(tables.tasks[rows.task].out) + output_row(tables.shape, rows, r) * dim;
    for (int d = 2 * lane; d < dim; d += 64) {
      float2 o = make_float2(0.0f, 0.0f);
      for (int split = 0; split < rows.splits; ++split) {
        const float* const from = row_of(split, r);
        const float factor = exp2_fast(from[dim] - m);
        const float2 x = *reinterpret_cast<const float2*>(from + d);
        o = make_float2(fmaf(x.x, factor, o.x), fmaf(x.y, factor, o.y));
      }
      *reinterpret_cast<uint32_t*>(out + d) = pack_bf16(o.x * share, o.y * share);
    }
  }
}

// The plan's tables on the device.
struct Uploaded {
  Tables tables;
  const Item* items[4];  // Items of each class.
  const Rows* merges;
};

Uploaded upload(const AttentionShape& shape, AttentionWorkspace& workspace, cudaStream_t stream) {
  const AttentionPlan& plan = workspace.plan;
  size_t bytes = 0;
  const auto room_for = [&](const auto& rows) {  // Returns an offset, a multiple of 16.
    const size_t at = (bytes + 15) / 16 * 16;
    bytes = at + rows.size() * sizeof(rows[0]);
    return at;
  };
  const size_t segments = room_for(plan.segments), tasks = room_for(plan.tasks), merges = room_for(plan.merges);
  size_t items[4];
  for (int i = 0; i < 4; ++i) items[i] = room_for(plan.classes[i].items);
  std::byte* const host = workspace.tables.room(bytes, stream);
  const auto fill = [&](const auto& rows, size_t at) {
    if (!rows.empty()) std::memcpy(host + at, rows.data(), rows.size() * sizeof(rows[0]));
  };
  fill(plan.segments, segments);
  fill(plan.tasks, tasks);
  fill(plan.merges, merges);
  for (int i = 0; i < 4; ++i) fill(plan.classes[i].items, items[i]);
  const std::byte* const device = workspace.tables.send(stream);
  Uploaded out = {};
  out.tables.shape = {static_cast<int32_t>(shape.n_heads), static_cast<int32_t>(shape.n_kv_heads),
                      static_cast<int32_t>(shape.head_dim), shape.scale * kLog2e};
  out.tables.segments = reinterpret_cast<const Segment*>(device + segments);
  out.tables.tasks = reinterpret_cast<const Task*>(device + tasks);
  const int64_t row_floats = shape.head_dim + kPartialPadding;
  const auto partial_bytes = static_cast<size_t>(plan.partial_rows * row_floats) * sizeof(float);
  out.tables.partial = reinterpret_cast<float*>(workspace.partial.reserve(partial_bytes));
  for (int i = 0; i < 4; ++i) out.items[i] = reinterpret_cast<const Item*>(device + items[i]);
  out.merges = reinterpret_cast<const Rows*>(device + merges);
  return out;
}

// Launches one kernel over the items of each class of the plan. kernel_of(class) returns the kernel and its shared
// memory.
template <typename KernelOf>
void launch_classes(const AttentionPlan& plan, Uploaded& uploaded, const char* name, cudaStream_t stream,
                    const KernelOf& kernel_of) {
  for (int i = 0; i < 4; ++i) {
    const ItemClass& items = plan.classes[i];
    uploaded.tables.items = uploaded.items[i];
    uploaded.tables.stages = items.stages;
    uploaded.tables.stage_bytes = items.stage_bytes;
    const auto [kernel, shared_bytes] = kernel_of(items);
    launch(kernel, name, static_cast<int64_t>(items.items.size()), kThreads, shared_bytes, stream, uploaded.tables);
  }
}

// The kernel and the bytes of shared memory that kernel_of() returns to launch_classes().
struct Chosen {
  void (*kernel)(Tables);
  size_t shared_bytes;
};

template <int kDim>
Chosen attention_of(const ItemClass& items) {
  if (items.rows == kFewRows) {
    return {attention_kernel<kDim, 1>, BlockLayout<kDim, 1>::bytes(items)};
  }
  return {attention_kernel<kDim, 4>, BlockLayout<kDim, 4>::bytes(items)};
}

// Calls function(room), where `room` is the least head_dim with a kernel that holds this head_dim, as a type.
template <typename Function>
auto with_room_for(int64_t head_dim, const Function& function) {
  if (head_dim <= 64) return function(std::integral_constant<int, 64>{});
  if (head_dim <= 128) return function(std::integral_constant<int, 128>{});
  return function(std::integral_constant<int, 256>{});
}

void attend(const AttentionShape& shape, std::span<const AttentionTask> tasks, AttentionWorkspace& workspace,
            cudaStream_t stream) {
  plan_attention(shape, tasks, workspace.plan);
  Uploaded uploaded = upload(shape, workspace, stream);
  launch_classes(workspace.plan, uploaded, "attention", stream, [&](const ItemClass& items) {
    return with_room_for(shape.head_dim, [&](auto room) { return attention_of<room>(items); });
  });
  launch(merge_kernel, "attention: merge", static_cast<int64_t>(workspace.plan.merges.size()), kThreads, 0, stream,
         uploaded.tables, uploaded.merges);
}

// Makes two passes over K for everything that is planned: the sums of the rows, then the kernel that kernel_of(room for
// head_dim) returns, which uses the probabilities.
template <typename KernelOf>
void find_probabilities(const AttentionShape& shape, AttentionWorkspace& workspace, const char* name, size_t more_bytes,
                        cudaStream_t stream, const KernelOf& kernel_of) {
  Uploaded uploaded = upload(shape, workspace, stream);
  const auto launch_all = [&](const char* pass, size_t more, const auto& kernel) {
    launch_classes(workspace.plan, uploaded, pass, stream, [&](const ItemClass& items) {
      return with_room_for(shape.head_dim, [&](auto room) {
        return Chosen{kernel(room), BlockLayout<room, 1>::bytes(items) + more};
      });
    });
  };
  launch_all("sums of probabilities", 0, [](auto room) { return mass_sums_kernel<room>; });
  launch_all(name, more_bytes, kernel_of);
}

// For each batch: gathers what queries with indexed pages read, then calls function(tasks of the batch).
template <typename Task, typename Function>
void read_sparsely(const AttentionShape& shape, SparseBatches<Task>& batches, AttentionWorkspace& workspace,
                   cudaStream_t stream, const Function& function) {
  while (batches.next()) {
    if (!batches.promises().empty()) {
      plan_promises(shape, batches.promises(), workspace.plan);
      find_probabilities(shape, workspace, "promises", kPromiseBytes, stream,
                         [](auto room) { return promise_kernel<room>; });
    }
    batches.gather(stream);
    function(batches.tasks());
  }
}

}  // namespace

void attention(const AttentionShape& shape, std::span<const AttentionTask> tasks, AttentionWorkspace& workspace,
               CUstream_st* stream) {
  check_shape(shape);
  SparseBatches<AttentionTask> batches(shape, tasks, workspace.sparse);
  read_sparsely(shape, batches, workspace, stream,
                [&](std::span<const AttentionTask> batch) { attend(shape, batch, workspace, stream); });
}

void attention_mass(const AttentionShape& shape, std::span<const AttentionMassTask> tasks,
                    AttentionWorkspace& workspace, CUstream_st* stream) {
  check_shape(shape);
  SparseBatches<AttentionMassTask> batches(shape, tasks, workspace.sparse);
  read_sparsely(shape, batches, workspace, stream, [&](std::span<const AttentionMassTask> batch) {
    for (const AttentionMassTask& task : batch) {
      check(cudaMemsetAsync(task.mass, 0, static_cast<size_t>(attention_mass_floats(shape, task)) * sizeof(float),
                            stream),
            "attention_mass: zeros");
    }
    plan_attention_mass(shape, batch, workspace.plan);
    find_probabilities(shape, workspace, "attention_mass", 0, stream, [](auto room) { return mass_kernel<room>; });
    batches.hand_out(stream);
  });
}

}  // namespace smartkv::kernels::cuda
