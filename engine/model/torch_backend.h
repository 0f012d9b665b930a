// The LibTorch LlamaBackend, which computes matrix products and norms. It is in a shared module that lies beside the
// program (engine/torch/module).
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "engine/log.h"
#include "engine/model/llama_backend.h"
#include "engine/parallel/rank_group.h"
#include "engine/weights/weights.h"

namespace smartkv {

// Receives log lines about the CUDA graphs of a backend.
using GraphLog = std::function<void(LogLevel level, const std::string& message)>;

// The function that the module exports as kTorchBackendEntry. Returns a backend, which the caller owns.
//  - weights: not needed afterwards.
//  - device: the device on which LibTorch computes.
//  - ranks: the group of tensor-parallel ranks that compute the model together, made by this module. `weights` are then
//    the part of this process (engine/weights/sharded_weights.h). Null if the backend computes the model alone.
//  - graphs: receives log lines about the CUDA graphs of small passes. The backend makes no graphs if
//    it is null. REQUIRES: it is null, or the device is a GPU and `ranks` is null.
// Throws ModelError.
using TorchBackendEntry = LlamaBackend*(const Weights& weights, ProductType type, const std::string& device,
                                        int threads, const std::function<void(double)>& progress, RankGroup* ranks,
                                        const GraphLog& graphs);
inline constexpr const char* kTorchBackendEntry = "smartkv_torch_backend";
// The function that the module exports as kTorchRanksEntry. Joins the tensor-parallel ranks, which add up their results
// on `device`. Throws RankError, or ModelError if the module was built without c10d.
using TorchRanksEntry = RankGroup*(const RankPlace& place, const std::string& device);
inline constexpr const char* kTorchRanksEntry = "smartkv_torch_ranks";
// Returns the hash of the headers that the module was compiled with. It must equal the program's.
using TorchBackendInterface = const char*();
inline constexpr const char* kTorchBackendInterface = "smartkv_torch_backend_interface";

// Returns the path of libsmartkv_torch_backend.so in the folder of the program.
std::filesystem::path torch_backend_path();

// Load the module and call the function above. Both throw ModelError, also if the module is missing or was not built
// with this program. `ranks` must outlive the backend.
std::unique_ptr<LlamaBackend> load_torch_backend(const std::filesystem::path& module, const Weights& weights,
                                                 ProductType type, const std::string& device, int threads,
                                                 const std::function<void(double)>& progress = nullptr,
                                                 RankGroup* ranks = nullptr, const GraphLog& graphs = nullptr);
std::unique_ptr<RankGroup> join_torch_ranks(const std::filesystem::path& module, const RankPlace& place,
                                            const std::string& device);

}  // namespace smartkv
