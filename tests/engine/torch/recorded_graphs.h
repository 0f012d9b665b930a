// Stands for the graphs of a device on the CPU. Capturing changes nothing. A replay does the captured work, and throws
// if its operations or addresses have changed.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <torch/torch.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/torch/pass_graphs.h"

namespace smartkv {

// LibTorch's allocator for the CPU. It notes what a watched thread allocates: memory that belongs to a graph.
class WatchedAllocator final : public c10::Allocator {
 public:
  static WatchedAllocator& instance() {
    static WatchedAllocator allocator;  // lives as long as LibTorch's, which it replaces
    return allocator;
  }
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = usual_->allocate(bytes);
    if (watching != nullptr) (*watching)[data.get()] = bytes;
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return usual_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  inline static thread_local std::map<const void*, size_t>* watching = nullptr;

 private:
  WatchedAllocator() : usual_(c10::GetAllocator(c10::kCPU)) { c10::SetAllocator(c10::kCPU, this, 1); }
  c10::Allocator* usual_;
};

// Runs some work and notes its operations, and where they access memory that the work has not allocated.
class WatchedWork {
 public:
  struct Access {
    std::string operation;
    const void* at;
    bool operator==(const Access&) const = default;
  };

  // undo: restore all memory that the work has written.
  WatchedWork(const std::function<void()>& work, bool undo) {
    current_ = this;
    WatchedAllocator::instance();
    WatchedAllocator::watching = &own_;
    const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(see).needsInputs(true));
    work();
    at::removeCallback(handle);
    WatchedAllocator::watching = nullptr;
    current_ = nullptr;
    if (!undo) return;
    for (const auto& [memory, bytes] : before_) std::memcpy(memory, bytes.data(), bytes.size());
  }
  const std::vector<Access>& accesses() const { return accesses_; }

 private:
  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& operation) {
    for (const c10::IValue& input : operation.inputs()) {
      if (input.isTensor()) current_->see(operation.name(), input.toTensor());
      if (!input.isTensorList()) continue;
      for (const at::Tensor& tensor : input.toTensorVector()) current_->see(operation.name(), tensor);
    }
    return nullptr;
  }
  void see(const char* operation, const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.numel() == 0) return;
    void* const memory = tensor.storage().mutable_data();
    if (own_.contains(memory)) return;
    accesses_.push_back({operation, tensor.const_data_ptr()});
    if (before_.contains(memory)) return;
    const auto* const bytes = static_cast<const char*>(memory);
    before_[memory] = std::vector<char>(bytes, bytes + tensor.storage().nbytes());
  }

  inline static thread_local WatchedWork* current_ = nullptr;
  std::map<const void*, size_t> own_;
  std::map<void*, std::vector<char>> before_;
  std::vector<Access> accesses_;
};

// Counts the calls to a recorder and its graphs.
struct RecordedCounts {
  int64_t warm_ups = 0, captures = 0, replays = 0;
};

class RecordedGraphs final : public GraphRecorder {
 public:
  explicit RecordedGraphs(std::shared_ptr<RecordedCounts> counts) : counts_(std::move(counts)) {}

  void warm_up(const std::function<void()>& work) override {
    ++counts_->warm_ups;
    work();
  }
  std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work) override {
    ++counts_->captures;
    return std::make_unique<Graph>(work, counts_);
  }
  int64_t bytes() const override { return 1'000'000 * counts_->captures; }

 private:
  class Graph final : public DeviceGraph {
   public:
    Graph(std::function<void()> work, std::shared_ptr<RecordedCounts> counts)
        : work_(std::move(work)), captured_(WatchedWork(work_, true).accesses()), counts_(std::move(counts)) {}
    void replay() override {
      ++counts_->replays;
      const std::vector<WatchedWork::Access> found = WatchedWork(work_, false).accesses();
      if (found != captured_)
        throw std::logic_error("a graph was replayed whose work now has other addresses or operations");
    }

   private:
    std::function<void()> work_;
    std::vector<WatchedWork::Access> captured_;
    std::shared_ptr<RecordedCounts> counts_;
  };

  std::shared_ptr<RecordedCounts> counts_;
};

}  // namespace smartkv
