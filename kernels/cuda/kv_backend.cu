#include "kernels/cuda/kv_backend.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/device_pool.h"
#include "kernels/cuda/device_sampler.h"
#include "kernels/cuda/fetched_pages.h"
#include "kernels/cuda/head_rows.h"
#include "kernels/cuda/kv_pages.h"
#include "kernels/cuda/page_queue.h"
#include "kernels/cuda/page_stats.h"
#include "kernels/cuda/platform.h"
#include "kernels/cuda/uploads.h"
#include "kernels/forwarding_kv_backend.h"

namespace smartkv::kernels::cuda {
namespace {

class CudaKvBackend final : public DeviceKvBackend,
                            public std::enable_shared_from_this<CudaKvBackend>,
                            private DeviceSampler {
 public:
  explicit CudaKvBackend(int device) : device_(device) {
    use_device();
    cuda::check(cudaStreamCreate(&stream_), "cudaStreamCreate");
    queue_->begin(&pool_, ++batch_);
  }
  ~CudaKvBackend() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }

  std::shared_ptr<KvBackend> with_host_pages() override;

  std::string_view name() const override { return "cuda"; }
  bool batch_invariant() const override { return false; }
  void check(const AttentionShape& shape) const override { check_shape(shape); }

  std::byte* allocate(size_t bytes) override { return allocate(bytes, Place::kDevice); }
  std::byte* allocate(size_t bytes, Place place) {
    if (bytes == 0) return nullptr;
    use_device();
    std::byte* memory = try_allocate(bytes, place);
    if (memory == nullptr) {  // Released memory may wait in the queue.
      flush();
      memory = try_allocate(bytes, place);
    }
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }
  void release(std::byte* memory, size_t bytes) noexcept override {
    if (bytes == 0) return;
    const std::lock_guard lock(queue_mutex_);
    queue_->release(memory);
  }
  bool holds(const void* address) const override {
    const std::lock_guard lock(queue_mutex_);
    return pool_.holds(address);
  }
  size_t bytes_in_use() const override { return bytes_in_use(Place::kDevice); }
  size_t bytes_in_use(Place place) const {
    const std::lock_guard lock(queue_mutex_);
    return pool_.bytes_in_use(place);
  }
  size_t bytes_held() const override {
    const std::lock_guard lock(queue_mutex_);
    return pool_.bytes_held(Place::kDevice);
  }

  void move(KvType type, int64_t head_dim, std::span<const TokenMove> moves) override {
    if (!moves.empty()) with_queue(type, head_dim, [&] { queue_->move(moves); });
  }
  void copy(std::span<const PageCopy> copies) override {
    if (copies.empty()) return;
    const std::lock_guard lock(queue_mutex_);
    queue_->copy(copies);
  }
  void encode(KvType type, int64_t head_dim, std::span<const PageEncode> pages) override {
    if (!pages.empty()) with_queue(type, head_dim, [&] { queue_->encode(pages); });
  }
  void read(KvType type, int64_t head_dim, std::span<const PageRead> pages) override {
    if (pages.empty()) return;
    with_queue(type, head_dim, [&] {
      for (const PageRead& page : pages) queue_->reads(page.page.k);
      queue_->jobs<ReadJobs>().read(head_dim, pages, queue_->staging(), queue_->results());
    });
  }
  void page_stats(KvType type, int64_t head_dim, std::span<const PageStats> pages) override {
    if (pages.empty()) return;
    with_queue(type, head_dim, [&] {
      for (const PageStats& page : pages) queue_->reads(page.page.k);
      queue_->jobs<ReadJobs>().page_stats(head_dim, pages, queue_->results());
    });
  }
  void multiply_keys(KvType type, int64_t head_dim, std::span<const KeyProducts> products) override {
    if (products.empty()) return;
    with_queue(type, head_dim, [&] {
      for (const KeyProducts& product : products) {
        queue_->reads(product.page.k);
        if (product.residual != nullptr) queue_->reads(product.residual->k);
      }
      queue_->jobs<ReadJobs>().multiply_keys(head_dim, products, queue_->staging(), queue_->results());
    });
  }
  void enqueue(KvType type, int64_t head_dim, const std::function<void(PageQueue&)>& call) override {
    with_queue(type, head_dim, [&] { call(*queue_); });
  }
  void on_stream(const std::function<void(cudaStream_t)>& work) override {
    const std::lock_guard lock(run_mutex_);
    use_device();
    work(stream_);
  }
  void finish() override { flush(); }
  void download(const std::byte* page, size_t bytes, void* to) override {
    const std::lock_guard lock(run_mutex_);
    run_queue();
    if (bytes == 0) return;
    cuda::check(cudaMemcpyAsync(to, page, bytes, cudaMemcpyDefault, stream_), "copying a page from the device");
    wait();
  }
  void upload(const void* from, size_t bytes, std::byte* page) override {
    const std::lock_guard lock(run_mutex_);
    run_queue();
    if (bytes == 0) return;
    fetched_.forget();
    cuda::check(cudaMemcpyAsync(page, from, bytes, cudaMemcpyDefault, stream_), "copying a page to the device");
    wait();
  }

  void qk_norm_rope(const AttentionShape& shape, const HeadRows& rows) override {
    const std::lock_guard lock(run_mutex_);
    use_device();
    cuda::qk_norm_rope(shape, rows, stream_);
  }
  void write(KvType /*type*/, int64_t n_kv_heads, int64_t head_dim, const PageWrite& rows) override {
    const std::lock_guard lock(writes_mutex_);
    write_shape_ = {n_kv_heads, n_kv_heads, head_dim, 1.0f};
    writes_.push_back(rows);
  }
  void apply_writes() override {
    const std::lock_guard lock(run_mutex_);
    run_queue();
    staging_.clear();
    stage_writes(write_shape_);
    place_writes(staging_.upload(stream_), write_shape_);
    waited_ = false;
  }
  void forget_writes() noexcept override {
    const std::lock_guard lock(writes_mutex_);
    writes_.clear();
  }

  bool prefetches() const override { return bytes_in_use(Place::kHost) > 0; }
  void prefetch(std::span<const KvSegment> segments) override {
    const std::lock_guard lock(run_mutex_);
    run_queue();
    host_pages_.clear();
    {
      const std::lock_guard queue_lock(queue_mutex_);
      for (const KvSegment& segment : segments) {
        const DevicePool::Page page = pool_.page_at(segment.k);
        if (page.place == Place::kHost) host_pages_.push_back({page.begin, page.end});
      }
    }
    fetched_.fetch(host_pages_, stream_);
  }

  void attention(const AttentionShape& shape, std::span<const AttentionTask> tasks) override {
    const std::lock_guard lock(run_mutex_);
    const std::byte* const device = begin(shape, tasks);
    const auto row = static_cast<size_t>(shape.n_heads * shape.head_dim) * sizeof(uint16_t);
    size_t bytes = 0;  // Bytes of results for the host.
    on_device_.clear();
    for (const AttentionTask& task : tasks) {
      on_device_.push_back(holds(task.out));
      if (!on_device_.back()) bytes += static_cast<size_t>(task.n) * row;
    }
    std::byte* next = results_.reserve(bytes);
    tasks_.assign(tasks.begin(), tasks.end());
    for (size_t i = 0; i < tasks.size(); ++i) {
      AttentionTask& task = tasks_[i];
      place(device, shape, i, &task);
      if (on_device_[i]) continue;
      task.out = next;
      next += static_cast<size_t>(task.n) * row;
    }
    cuda::attention(shape, tasks_, workspace_, stream_);
    waited_ = false;
    if (bytes == 0) return;
    const std::byte* from = fetch_results(bytes);
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (on_device_[i]) continue;
      const size_t size = static_cast<size_t>(tasks[i].n) * row;
      std::memcpy(tasks[i].out, from, size);
      from += size;
    }
  }

  void attention_mass(const AttentionShape& shape, std::span<const AttentionMassTask> tasks) override {
    const std::lock_guard lock(run_mutex_);
    const std::byte* const device = begin(shape, tasks);
    size_t floats = 0;
    for (const AttentionMassTask& task : tasks) floats += static_cast<size_t>(attention_mass_floats(shape, task));
    auto* next = reinterpret_cast<float*>(results_.reserve(floats * sizeof(float)));
    mass_tasks_.assign(tasks.begin(), tasks.end());
    for (size_t i = 0; i < tasks.size(); ++i) {
      AttentionMassTask& task = mass_tasks_[i];
      place(device, shape, i, &task);
      task.mass = next;
      next += attention_mass_floats(shape, task);
    }
    cuda::attention_mass(shape, mass_tasks_, workspace_, stream_);
    const auto* from = reinterpret_cast<const float*>(fetch_results(floats * sizeof(float)));
    for (const AttentionMassTask& task : tasks) {
      const int64_t n = attention_mass_floats(shape, task);
      std::copy_n(from, n, task.mass);
      from += n;
    }
  }

  DeviceSampler* device_sampler() override { return this; }

 private:
  void draw(std::span<DeviceSample* const> draws) override {
    const std::lock_guard lock(run_mutex_);
    use_device();
    draws_.start(draws, stream_);
    wait();
    draws_.take(draws);
  }

  // Offsets of a segment's channel order and bias in the staging. kNone, here and for rows: there is none, or it is on
  // the device already.
  static constexpr size_t kNone = static_cast<size_t>(-1);
  struct Placed {
    size_t order, bias;
  };

  // Sets the device of the calling thread: each thread has its own.
  void use_device() const { cuda::check(cudaSetDevice(device_), "cudaSetDevice"); }
  void wait() {
    cuda::check(cudaStreamSynchronize(stream_), "waiting for the device");
    waited_ = true;
  }

  std::byte* try_allocate(size_t bytes, Place place) {
    const std::lock_guard lock(queue_mutex_);
    std::byte* const memory = pool_.allocate(bytes, place);
    if (memory != nullptr) queue_->zero(memory, (bytes + 15) / 16 * 16);
    return memory;
  }

  template <typename Function>
  void with_queue(KvType type, int64_t head_dim, const Function& function) {
    if (type != KvType::kBf16) throw std::invalid_argument("CUDA kernels: expected pages of bf16, found f32");
    use_device();
    for (;; flush()) {
      const std::lock_guard lock(queue_mutex_);
      if (queue_->head_dim() != 0 && queue_->head_dim() != head_dim) continue;  // The queue has jobs of another model.
      queue_->start(head_dim);
      return function();
    }
  }

  void flush() {
    const std::lock_guard lock(run_mutex_);
    run_queue();
  }
  // Launches the jobs that wait. REQUIRES: run_mutex_ is held.
  void run_queue() {
    use_device();
    if (!waited_) wait();  // The device may still copy from the queue that is about to be filled.
    {
      const std::lock_guard lock(queue_mutex_);
      if (queue_->empty()) return;
      std::swap(queue_, running_);
      queue_->begin(&pool_, ++batch_);
    }
    waited_ = false;
    fetched_.forget();
    std::exception_ptr error;
    try {
      running_->run(pages_workspace_, stream_);
    } catch (...) {
      error = std::current_exception();
    }
    {
      const std::lock_guard lock(queue_mutex_);
      for (std::byte* const page : running_->released()) pool_.free(page);
    }
    if (error != nullptr) std::rethrow_exception(error);
  }

  // Waits for the device and returns the first `bytes` bytes of the results. They are valid until the next call.
  const std::byte* fetch_results(size_t bytes) {
    std::byte* const to = host_results_.reserve(bytes);
    if (bytes > 0) {
      cuda::check(cudaMemcpyAsync(to, results_.reserve(bytes), bytes, cudaMemcpyDeviceToHost, stream_),
                  "copying results");
    }
    wait();
    return to;
  }

  // Copies what a call reads of host memory to the device in one piece: rows that wait, and what the tasks point to.
  // One launch then writes the rows into their pages. Returns the device address of the copy.
  template <typename Task>
  const std::byte* begin(const AttentionShape& shape, std::span<const Task> tasks) {
    run_queue();
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
      if (holds(rows.k)) {
        staged_writes_.emplace_back(kNone, kNone);
        continue;
      }
      const size_t k = staging_.add_rows(rows.k, rows.n, width, rows.row_stride);
      staged_writes_.emplace_back(k, staging_.add_rows(rows.v, rows.n, width, rows.row_stride));
    }
  }
  void place_writes(const std::byte* device, const AttentionShape& shape) {
    kv_writes_.clear();
    for (size_t i = 0; i < writes_.size(); ++i) {
      const PageWrite& rows = writes_[i];
      const auto [k, v] = staged_writes_[i];
      KvWrite write{rows.k,
                    rows.v,
                    rows.row_stride,
                    nullptr,
                    static_cast<int32_t>(rows.slot),
                    static_cast<int32_t>(rows.n),
                    rows.page_k,
                    rows.page_v,
                    rows.head_stride};
      if (k != kNone) {
        write.k = reinterpret_cast<const float*>(device + k);
        write.v = reinterpret_cast<const float*>(device + v);
        write.row_stride = shape.n_kv_heads * shape.head_dim;
      }
      fetched_.forget(rows.page_k);
      kv_writes_.push_back(write);
    }
    writes_.clear();
    if (!kv_writes_.empty()) write_kv(shape, kv_writes_, pages_workspace_, stream_);
  }

  // Stages the queries of the tasks, and what their segments point to in host memory: biases, and channel orders. Pages
  // share orders, and each order is staged once.
  template <typename Task>
  void stage_tasks(const AttentionShape& shape, std::span<const Task> tasks) {
    queries_.clear();
    placed_.clear();
    segments_.clear();
    first_segment_.clear();
    orders_.clear();
    const int64_t row = shape.n_heads * shape.head_dim;
    for (const Task& task : tasks) {
      queries_.push_back(holds(task.q) ? kNone : staging_.add_rows(task.q, task.n, row, task.q_stride));
      first_segment_.push_back(segments_.size());
      for (const KvSegment& segment : task.segments) {
        Placed placed{kNone, kNone};
        if (segment.channel_order != nullptr) placed.order = stage_order(shape, segment.channel_order);
        if (segment.bias != nullptr) {
          placed.bias = staging_.add(segment.bias, static_cast<size_t>(shape.n_kv_heads * kPageTokens) * sizeof(float));
        }
        segments_.push_back(segment);
        placed_.push_back(placed);
      }
    }
    first_segment_.push_back(segments_.size());
  }
  size_t stage_order(const AttentionShape& shape, const uint8_t* order) {
    const auto known =
        std::find_if(orders_.rbegin(), orders_.rend(), [&](const auto& entry) { return entry.first == order; });
    if (known != orders_.rend()) return known->second;
    orders_.emplace_back(order, staging_.add(order, static_cast<size_t>(shape.n_kv_heads * shape.head_dim)));
    return orders_.back().second;
  }
  void place_segments(const std::byte* device) {
    for (size_t i = 0; i < segments_.size(); ++i) {
      const Placed& placed = placed_[i];
      if (placed.order != kNone) segments_[i].channel_order = reinterpret_cast<const uint8_t*>(device + placed.order);
      if (placed.bias != kNone) segments_[i].bias = reinterpret_cast<const float*>(device + placed.bias);
    }
    fetched_.place(segments_, stream_);
  }
  // Points task i to its data on the device, except for its results.
  template <typename Task>
  void place(const std::byte* device, const AttentionShape& shape, size_t i, Task* task) const {
    if (queries_[i] != kNone) {
      task->q = reinterpret_cast<const float*>(device + queries_[i]);
      task->q_stride = shape.n_heads * shape.head_dim;
    }
    task->segments = std::span(segments_).subspan(first_segment_[i], first_segment_[i + 1] - first_segment_[i]);
  }

  int device_;
  cudaStream_t stream_ = nullptr;

  mutable std::mutex queue_mutex_;  // Taken after run_mutex_.
  DevicePool pool_;
  PageQueue queues_[2];
  PageQueue* queue_ = &queues_[0];
  uint64_t batch_ = 0;

  std::mutex writes_mutex_;
  std::vector<PageWrite> writes_;
  AttentionShape write_shape_;  // Shape of the writes: one query head for each KV head.

  // For the holder of run_mutex_, which guards the stream. Buffers grow to the largest call and never shrink.
  std::mutex run_mutex_;
  bool waited_ = true;  // Whether everything that was launched has been waited for.
  PageQueue* running_ = &queues_[1];
  Staging staging_;
  DeviceBuffer results_;
  HostBuffer host_results_;
  FetchedPages fetched_;
  std::vector<HostPage> host_pages_;
  AttentionWorkspace workspace_;
  PageWorkspace pages_workspace_;
  std::vector<std::pair<size_t, size_t>> staged_writes_;  // Offsets of K and V.
  std::vector<KvWrite> kv_writes_;
  std::vector<KvSegment> segments_;
  std::vector<Placed> placed_;
  std::vector<size_t> queries_, first_segment_;  // One per task.
  std::vector<char> on_device_;                  // For each task, whether its results stay on the device.
  std::vector<std::pair<const uint8_t*, size_t>> orders_;
  std::vector<AttentionTask> tasks_;
  std::vector<AttentionMassTask> mass_tasks_;
  DeviceSamples draws_;
};

// The same device, with pages in host memory.
class HostPages final : public ForwardingKvBackend {
 public:
  explicit HostPages(std::shared_ptr<CudaKvBackend> device) : ForwardingKvBackend(device), device_(*device) {}
  std::byte* allocate(size_t bytes) override { return device_.allocate(bytes, Place::kHost); }

 private:
  CudaKvBackend& device_;
};

std::shared_ptr<KvBackend> CudaKvBackend::with_host_pages() { return std::make_shared<HostPages>(shared_from_this()); }

}  // namespace

std::shared_ptr<DeviceKvBackend> make_cuda_kv_backend(int device) { return std::make_shared<CudaKvBackend>(device); }

}  // namespace smartkv::kernels::cuda
