#include "engine/torch/cuda_graphs.h"

#ifdef SMARTKV_CUDA_GRAPHS
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>

#include "engine/torch/plain_errors.h"

namespace smartkv {
namespace {

using c10::cuda::CUDAStream;

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(std::unique_ptr<at::cuda::CUDAGraph> graph) : graph_(std::move(graph)) {}
  void replay() override { graph_->replay(); }

 private:
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
};

// Captures in a separate stream, because the legacy default stream cannot be captured. LibTorch's streams are
// non-blocking, so the legacy stream stays usable during a capture. All graphs share a memory pool. Each graph returns
// its memory when its work ends, so the graphs can use the same memory, in whatever order they run.
class CudaGraphRecorder final : public GraphRecorder {
 public:
  explicit CudaGraphRecorder(c10::Device device)
      : stream_(c10::cuda::getStreamFromPool(false, device.index())), pool_(at::cuda::graph_pool_handle()) {}

  void warm_up(const std::function<void()>& work) override {
    const CUDAStream current = c10::cuda::getCurrentCUDAStream(stream_.device_index());
    follow(stream_, current);
    std::exception_ptr error;
    try {
      const c10::cuda::CUDAStreamGuard guard(stream_);
      work();
    } catch (...) {
      error = std::current_exception();
    }
    follow(current, stream_);
    if (error != nullptr) std::rethrow_exception(error);
  }

  std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work) override {
    return plain_errors([&] {
      const c10::cuda::CUDAStreamGuard guard(stream_);
      const int64_t before = free_bytes();
      auto graph = std::make_unique<at::cuda::CUDAGraph>();
      try {
        // Thread-local mode, because other threads may allocate during the capture.
        graph->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
        work();
        graph->capture_end();
      } catch (...) {
        abandon(std::move(graph));
        throw;
      }
      bytes_ += before - free_bytes();
      return std::make_unique<CudaGraph>(std::move(graph));
    });
  }

  int64_t bytes() const override { return bytes_; }

 private:
  // Makes work launched in `stream` from now on wait for the work that is in `other`.
  static void follow(const CUDAStream& stream, const CUDAStream& other) {
    c10::cuda::CUDAEvent event;
    event.record(other);
    event.block(stream);
  }

  // Cleans up after an error during a capture. If even ending the capture fails, the graph is leaked, because
  // LibTorch's allocator may keep asking it whether it captures a stream.
  static void abandon(std::unique_ptr<at::cuda::CUDAGraph> graph) {
    try {
      graph->capture_end();
    } catch (const std::exception&) {
      static_cast<void>(graph.release());
    }
    static_cast<void>(cudaGetLastError());
  }

  static int64_t free_bytes() {
    size_t free = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return static_cast<int64_t>(free);
  }

  CUDAStream stream_;
  at::cuda::MempoolId_t pool_;
  int64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<GraphRecorder> make_cuda_graph_recorder(const std::string& device) {
  return plain_errors([&]() -> std::unique_ptr<GraphRecorder> {
    c10::Device on(device);
    if (!on.has_index()) on = c10::Device(on.type(), 0);
    return std::make_unique<CudaGraphRecorder>(on);
  });
}

}  // namespace smartkv
#else
namespace smartkv {

std::unique_ptr<GraphRecorder> make_cuda_graph_recorder(const std::string& device) {
  throw ModelError("device: expected cpu, the only device of this program's LibTorch, found \"" + device + '"');
}

}  // namespace smartkv
#endif
