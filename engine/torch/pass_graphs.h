// What a pass computes between attentions as graphs of a device: recorded once for each number of rows and piece, replayed by one
// launch afterwards. Attention, whose work follows the contexts' lengths, stays between them (vLLM's "piecewise" graphs).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "engine/model/torch_backend.h"

namespace smartkv {

// Recorded work, with the addresses that it had.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void replay() = 0;  // in the order of the device's legacy default stream
};

class GraphRecorder {
 public:
  virtual ~GraphRecorder() = default;
  // Does the work where capture() records it, so that what only the first time makes (handles, workspaces, kernels) is there.
  virtual void warm_up(const std::function<void()>& work) = 0;
  // Records the work without doing it. Throws std::runtime_error where that is not possible, and leaves the device as it was.
  virtual std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work) = 0;
  // Of the device's memory, taken by what was captured.
  virtual int64_t bytes() const = 0;
};

// Not thread-safe.
class PassGraphs {
 public:
  static constexpr int64_t kMostRows = 64;

  // log: hears how many there are, at the pass after their number changed; and, once, why there are none any more.
  PassGraphs(std::unique_ptr<GraphRecorder> recorder, GraphLog log);

  // The rows with which a pass of `rows` is computed: 1, 2, 4 or a multiple of 8. 0: without graphs, because there are too many, or
  // because one could not be captured.
  int64_t padded(int64_t rows) const;

  // Where a piece of a pass reads and writes that is not always the same.
  using Places = std::array<const void*, 2>;
  // Does the work of a piece of a pass, 0 its first, of padded() rows: the first time as it is, to warm up, then by its graph. One
  // that was captured with other places is captured anew. work: depends on nothing but rows, piece and places, reads and writes
  // fixed addresses besides, and needs nothing of the host. Throws what it throws.
  void run(int64_t rows, int64_t piece, const Places& places, const std::function<void()>& work);

 private:
  struct Piece {
    bool warm = false;
    Places places{};
    std::unique_ptr<DeviceGraph> graph;  // null: not captured yet
  };

  void tell();

  std::unique_ptr<GraphRecorder> recorder_;
  GraphLog log_;
  std::map<int64_t, std::vector<Piece>> pieces_;  // by rows
  bool failed_ = false;
  int64_t captured_ = 0, told_ = 0;  // captures, those that were captured anew included
};

}  // namespace smartkv
