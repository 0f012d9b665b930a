#include "engine/torch/pass_graphs.h"

#include <cstdio>
#include <exception>

namespace smartkv {

PassGraphs::PassGraphs(std::unique_ptr<GraphRecorder> recorder, GraphLog log)
    : recorder_(std::move(recorder)), log_(std::move(log)) {}

int64_t PassGraphs::padded(int64_t rows) const {
  if (failed_ || rows > kMostRows) return 0;
  if (rows > 4) return (rows + 7) / 8 * 8;
  return rows == 3 ? 4 : rows;
}

void PassGraphs::run(int64_t rows, int64_t piece, const Places& places, const std::function<void()>& work) {
  if (failed_) return work();
  if (piece == 0 && told_ != captured_) tell();
  std::vector<Piece>& pieces = pieces_[rows];
  if (pieces.size() <= static_cast<size_t>(piece)) pieces.resize(static_cast<size_t>(piece) + 1);
  Piece& known = pieces[static_cast<size_t>(piece)];
  if (!known.warm) {
    recorder_->warm_up(work);
    known.warm = true;
    return;
  }
  if (known.graph == nullptr || known.places != places) {
    try {
      known.graph = recorder_->capture(work);
    } catch (const std::exception& error) {
      failed_ = true;
      pieces_.clear();
      log_(LogLevel::kWarning,
           "CUDA graphs: piece " + std::to_string(piece) + " of passes with " + std::to_string(rows) +
               " rows could not be captured; passes run without graphs from now on: " + error.what());
      return work();
    }
    known.places = places;
    ++captured_;
  }
  known.graph->replay();
}

void PassGraphs::tell() {
  told_ = captured_;
  int64_t graphs = 0;
  std::string sizes;
  for (const auto& [rows, pieces] : pieces_) {
    int64_t of_size = 0;
    for (const Piece& piece : pieces) of_size += piece.graph != nullptr ? 1 : 0;
    graphs += of_size;
    if (of_size > 0) sizes += (sizes.empty() ? "" : ", ") + std::to_string(rows);
  }
  char megabytes[32];
  std::snprintf(megabytes, sizeof megabytes, "%.1f", static_cast<double>(recorder_->bytes()) / 1e6);
  log_(LogLevel::kInfo, "CUDA graphs: " + std::to_string(graphs) + " for passes with " + sizes + " rows take " +
                            megabytes + " MB of device memory; " + std::to_string(captured_) + " captured so far");
}

}  // namespace smartkv
