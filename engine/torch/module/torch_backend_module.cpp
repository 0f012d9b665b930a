// libsmartkv_torch_backend.so, the module with the torch backend. engine/model/torch_backend.h loads it.
#include "engine/model/torch_backend.h"

#include "engine/torch/cuda_graphs.h"
#include "engine/torch/torch_llama_backend.h"
#include "engine/torch/torch_rank_group.h"

extern "C" __attribute__((visibility("default"))) const char* smartkv_torch_backend_interface() {
  return SMARTKV_BACKEND_INTERFACE;
}

extern "C" __attribute__((visibility("default"))) smartkv::LlamaBackend* smartkv_torch_backend(
    const smartkv::Weights& weights, smartkv::ProductType type, const std::string& device, int threads,
    const std::function<void(double)>& progress, smartkv::RankGroup* ranks, const smartkv::GraphLog& graph_log) {
  std::unique_ptr<smartkv::PassGraphs> graphs;
  if (graph_log) graphs = std::make_unique<smartkv::PassGraphs>(smartkv::make_cuda_graph_recorder(device), graph_log);
  return smartkv::make_torch_backend(weights, type, device, threads, progress,
                                     static_cast<smartkv::TorchRankGroup*>(ranks), std::move(graphs))
      .release();
}

extern "C" __attribute__((visibility("default"))) smartkv::RankGroup* smartkv_torch_ranks(
    const smartkv::RankPlace& place, const std::string& device) {
  return smartkv::make_torch_rank_group(place, device).release();
}
