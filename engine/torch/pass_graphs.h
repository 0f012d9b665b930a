// Runs the pieces of a pass between attentions as graphs of a device. A graph is captured once for each number of rows
// and each piece, and is then replayed with one launch. Attention is not part of any graph, because its work depends on
// the lengths of the contexts (vLLM's "piecewise" graphs).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "engine/model/torch_backend.h"

namespace smartkv {

// Captured work, with the addresses that it used.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void replay() = 0;  // runs in the order of the device's legacy default stream
};

// Captures work of a device as graphs.
class GraphRecorder {
 public:
  virtual ~GraphRecorder() = default;
  // Runs the work in the stream where capture() records it, so that handles, workspaces and kernels exist before
  // capturing.
  virtual void warm_up(const std::function<void()>& work) = 0;
  // Records the work without running it. Throws std::runtime_error if that is not possible, and leaves the device
  // unchanged.
  virtual std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work) = 0;
  // Returns the bytes of device memory that the captured graphs take.
  virtual int64_t bytes() const = 0;
};

// The graphs of a model's passes. Not thread-safe.
class PassGraphs {
 public:
  static constexpr int64_t kMostRows = 64;  // most rows of a pass that runs as graphs

  // `log` is told how many graphs there are, at the first pass after their number changed. It is also told once if
  // graphs are given up, and why.
  PassGraphs(std::unique_ptr<GraphRecorder> recorder, GraphLog log);

  // Returns the number of rows with which a pass of `rows` rows is computed: 1, 2, 4 or a multiple of 8. Returns 0 if
  // the pass runs without graphs, because it has too many rows or because capturing has failed.
  int64_t padded(int64_t rows) const;

  // The addresses that a piece reads and writes and that can change between passes.
  using Places = std::array<const void*, 2>;
  // Runs piece `piece` (from 0) of a pass of `rows` = padded() rows. The first time it runs `work` itself, to warm up.
  // Afterwards it replays a graph of it, and captures the graph again if `places` differ. Throws what `work` throws.
  // REQUIRES: `work` depends only on rows, piece and places, otherwise uses fixed addresses, and does not use the host.
  void run(int64_t rows, int64_t piece, const Places& places, const std::function<void()>& work);

 private:
  struct Piece {
    bool warm = false;
    Places places{};
    std::unique_ptr<DeviceGraph> graph;  // null until captured
  };

  void tell();

  std::unique_ptr<GraphRecorder> recorder_;
  GraphLog log_;
  std::map<int64_t, std::vector<Piece>> pieces_;  // by rows
  bool failed_ = false;
  int64_t captured_ = 0, told_ = 0;  // captures so far, repeated ones included; the number at the last log line
};

}  // namespace smartkv
