#include "kernels/cuda/kv_backend.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/kv_pages.h"
#include "kernels/cuda/platform.h"

namespace smartkv::kernels::cuda {
namespace {

constexpr size_t kAlignment = 256;  // of what kernels read in words of 16 bytes

// What a call brings from the host's memory, packed into one copy, and where it then lies on the device.
class Staging {
 public:
  void clear() { host_.clear(); }
  // Of `bytes` bytes at `from`; null: room only.
  size_t add(const void* from, size_t bytes) {
    const size_t at = (host_.size() + kAlignment - 1) / kAlignment * kAlignment;
    host_.resize(at + bytes);
    if (from != nullptr && bytes > 0) std::memcpy(host_.data() + at, from, bytes);
    return at;
  }
  // Rows of `width` floats, `stride` floats apart, one after the other.
  size_t add_rows(const float* from, int64_t n, int64_t width, int64_t stride) {
    const size_t at = add(nullptr, static_cast<size_t>(n * width) * sizeof(float));
    for (int64_t i = 0; i < n; ++i) {
      std::memcpy(host_.data() + at + static_cast<size_t>(i * width) * sizeof(float), from + i * stride,
                  static_cast<size_t>(width) * sizeof(float));
    }
    return at;
  }
  // What was added, to the device. From memory that is not pinned: when this returns it may be written again.
  std::byte* upload(cudaStream_t stream) {
    std::byte* const device = device_.reserve(std::max<size_t>(1, host_.size()));
    check(cudaMemcpyAsync(device, host_.data(), host_.size(), cudaMemcpyHostToDevice, stream), "copying to the device");
    return device;
  }

 private:
  std::vector<std::byte> host_;
  DeviceBuffer device_;
};

class CudaKvBackend final : public KvBackend {
 public:
  explicit CudaKvBackend(int device) : device_(device) {
    use_device();
    cuda::check(cudaStreamCreate(&stream_), "cudaStreamCreate");
  }
  ~CudaKvBackend() override { cudaStreamDestroy(stream_); }

  std::string_view name() const override { return "cuda"; }
  bool batch_invariant() const override { return false; }
  void check(const AttentionShape& shape) const override { check_shape(shape); }
  bool attends_to(KvSegment::Format format) const override { return format != KvSegment::Format::kIndexed; }

  std::byte* allocate(size_t bytes) override {
    if (bytes == 0) return nullptr;
    use_device();
    void* memory = nullptr;
    if (cudaMallocManaged(&memory, bytes) != cudaSuccess) throw std::bad_alloc();
    std::memset(memory, 0, bytes);
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory, size_t /*bytes*/) noexcept override { cudaFree(memory); }

  void write(KvType /*type*/, int64_t /*n_kv_heads*/, int64_t /*head_dim*/, const PageWrite& rows) override {
    const std::lock_guard lock(writes_mutex_);
    writes_.push_back(rows);
  }
  void forget_writes() noexcept override {
    const std::lock_guard lock(writes_mutex_);
    writes_.clear();
  }

  void attention(const AttentionShape& shape, std::span<const AttentionTask> tasks) override {
    const std::byte* const device = begin(shape, tasks);
    const int64_t row = shape.n_heads * shape.head_dim;
    int64_t rows = 0;
    for (const AttentionTask& task : tasks) rows += task.n;
    std::byte* const out = results_.reserve(static_cast<size_t>(rows * row) * sizeof(uint16_t));
    std::vector<AttentionTask> on_device(tasks.begin(), tasks.end());
    std::byte* next = out;
    for (size_t i = 0; i < tasks.size(); ++i) {
      AttentionTask& task = on_device[i];
      task.q = reinterpret_cast<const float*>(device + queries_[i]);
      task.q_stride = row;
      task.segments = segments_of(i);
      task.out = next;
      next += task.n * row * static_cast<int64_t>(sizeof(uint16_t));
    }
    cuda::attention(shape, on_device, workspace_, stream_);
    const std::byte* from = out;
    for (const AttentionTask& task : tasks) {
      const auto bytes = static_cast<size_t>(task.n * row) * sizeof(uint16_t);
      download(task.out, from, bytes);
      from += bytes;
    }
    wait();
  }

  void attention_mass(const AttentionShape& shape, std::span<const AttentionMassTask> tasks) override {
    const std::byte* const device = begin(shape, tasks);
    size_t floats = 0;
    for (const AttentionMassTask& task : tasks) floats += static_cast<size_t>(attention_mass_floats(shape, task));
    auto* const mass = reinterpret_cast<float*>(results_.reserve(floats * sizeof(float)));
    std::vector<AttentionMassTask> on_device(tasks.begin(), tasks.end());
    float* next = mass;
    for (size_t i = 0; i < tasks.size(); ++i) {
      AttentionMassTask& task = on_device[i];
      task.q = reinterpret_cast<const float*>(device + queries_[i]);
      task.q_stride = shape.n_heads * shape.head_dim;
      task.segments = segments_of(i);
      task.mass = next;
      next += attention_mass_floats(shape, task);
    }
    cuda::attention_mass(shape, on_device, workspace_, stream_);
    const float* from = mass;
    for (const AttentionMassTask& task : tasks) {
      const auto n = static_cast<size_t>(attention_mass_floats(shape, task));
      download(task.mass, from, n * sizeof(float));
      from += n;
    }
    wait();
  }

 private:
  // Where a segment's orders and biases lie in the staging; kNone: it has none.
  static constexpr size_t kNone = static_cast<size_t>(-1);
  struct Placed {
    size_t order, bias;
  };

  // Of the calling thread: each has its own.
  void use_device() const { cuda::check(cudaSetDevice(device_), "cudaSetDevice"); }
  void wait() { cuda::check(cudaStreamSynchronize(stream_), "waiting for the device"); }
  void download(void* to, const void* from, size_t bytes) {
    cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "copying from the device");
  }

  // One copy to the device brings what a call reads of the host's memory: rows that wait, which one launch then writes into
  // their pages, and what the tasks point to. Returns where it lies.
  template <typename Task>
  const std::byte* begin(const AttentionShape& shape, std::span<const Task> tasks) {
    use_device();
    staging_.clear();
    stage_writes(shape);
    stage_tasks(shape, tasks);
    const std::byte* const device = staging_.upload(stream_);
    place_writes(device, shape);
    place_segments(device);
    return device;
  }
  void stage_writes(const AttentionShape& shape) {
    const int64_t width = shape.n_kv_heads * shape.head_dim;
    staged_writes_.clear();
    for (const PageWrite& rows : writes_) {
      const size_t k = staging_.add_rows(rows.k, rows.n, width, rows.row_stride);
      staged_writes_.emplace_back(k, staging_.add_rows(rows.v, rows.n, width, rows.row_stride));
    }
  }
  void place_writes(const std::byte* device, const AttentionShape& shape) {
    kv_writes_.clear();
    for (size_t i = 0; i < writes_.size(); ++i) {
      const PageWrite& rows = writes_[i];
      const auto [k, v] = staged_writes_[i];
      kv_writes_.push_back({reinterpret_cast<const float*>(device + k), reinterpret_cast<const float*>(device + v),
                            shape.n_kv_heads * shape.head_dim, nullptr, static_cast<int32_t>(rows.slot),
                            static_cast<int32_t>(rows.n), rows.page_k, rows.page_v, rows.head_stride});
    }
    writes_.clear();
    if (!kv_writes_.empty()) write_kv(shape, kv_writes_, pages_workspace_, stream_);
  }

  // Stages the tasks' queries, and what their segments bring from the host's memory: orders of channels, which pages share,
  // once, and biases.
  template <typename Task>
  void stage_tasks(const AttentionShape& shape, std::span<const Task> tasks) {
    queries_.clear();
    placed_.clear();
    segments_.clear();
    first_segment_.clear();
    orders_.clear();
    const int64_t row = shape.n_heads * shape.head_dim;
    for (const Task& task : tasks) {
      queries_.push_back(staging_.add_rows(task.q, task.n, row, task.q_stride));
      first_segment_.push_back(segments_.size());
      for (const KvSegment& segment : task.segments) {
        Placed placed{kNone, kNone};
        if (segment.channel_order != nullptr) {
          const auto [entry, fresh] = orders_.try_emplace(segment.channel_order, 0);
          if (fresh) entry->second = staging_.add(segment.channel_order, static_cast<size_t>(shape.n_kv_heads * shape.head_dim));
          placed.order = entry->second;
        }
        if (segment.bias != nullptr) {
          placed.bias = staging_.add(segment.bias, static_cast<size_t>(shape.n_kv_heads * kPageTokens) * sizeof(float));
        }
        segments_.push_back(segment);
        placed_.push_back(placed);
      }
    }
    first_segment_.push_back(segments_.size());
  }
  void place_segments(const std::byte* device) {
    for (size_t i = 0; i < segments_.size(); ++i) {
      const Placed& placed = placed_[i];
      if (placed.order != kNone) segments_[i].channel_order = reinterpret_cast<const uint8_t*>(device + placed.order);
      if (placed.bias != kNone) segments_[i].bias = reinterpret_cast<const float*>(device + placed.bias);
    }
  }
  std::span<const KvSegment> segments_of(size_t task) const {
    return std::span(segments_).subspan(first_segment_[task], first_segment_[task + 1] - first_segment_[task]);
  }

  int device_;
  cudaStream_t stream_ = nullptr;
  std::mutex writes_mutex_;
  std::vector<PageWrite> writes_;

  // Of a call; they grow to the largest one and stay.
  Staging staging_;
  DeviceBuffer results_;
  AttentionWorkspace workspace_;
  PageWorkspace pages_workspace_;
  std::vector<std::pair<size_t, size_t>> staged_writes_;  // K and V
  std::vector<KvWrite> kv_writes_;
  std::vector<KvSegment> segments_;
  std::vector<Placed> placed_;
  std::vector<size_t> queries_, first_segment_;  // by task
  std::map<const uint8_t*, size_t> orders_;
};

}  // namespace

std::shared_ptr<KvBackend> make_cuda_kv_backend(int device) { return std::make_shared<CudaKvBackend>(device); }

}  // namespace smartkv::kernels::cuda
