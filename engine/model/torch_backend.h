// A LLaMA's products and norms by LibTorch, in a shared module beside the program (engine/torch/module).
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

// Who hears what becomes of a backend's CUDA graphs.
using GraphLog = std::function<void(LogLevel level, const std::string& message)>;

// What the module exports as kTorchBackendEntry: makes a backend of the weights, which it needs no more afterwards. device: where
// LibTorch computes. ranks: those that compute the model together, made by the module, of which `weights` are this one's part
// (engine/weights/sharded_weights.h); null: it computes alone. graphs: of small passes, on a GPU and without ranks only; null: it
// makes none. Throws ModelError.
using TorchBackendEntry = LlamaBackend*(const Weights& weights, ProductType type, const std::string& device, int threads,
                                        const std::function<void(double)>& progress, RankGroup* ranks, const GraphLog& graphs);
inline constexpr const char* kTorchBackendEntry = "smartkv_torch_backend";
// What it exports as kTorchRanksEntry: joins the ranks, whose sums are on `device`. Throws RankError, or ModelError where the module
// was built without c10d.
using TorchRanksEntry = RankGroup*(const RankPlace& place, const std::string& device);
inline constexpr const char* kTorchRanksEntry = "smartkv_torch_ranks";
// The hash of the headers that module and program were compiled with; they must agree.
using TorchBackendInterface = const char*();
inline constexpr const char* kTorchBackendInterface = "smartkv_torch_backend_interface";

// libsmartkv_torch_backend.so in the program's folder.
std::filesystem::path torch_backend_path();

// Both throw ModelError, also where the module is missing or was not built with this program. ranks: outlives the result.
std::unique_ptr<LlamaBackend> load_torch_backend(const std::filesystem::path& module, const Weights& weights,
                                                 ProductType type, const std::string& device, int threads,
                                                 const std::function<void(double)>& progress = nullptr, RankGroup* ranks = nullptr,
                                                 const GraphLog& graphs = nullptr);
std::unique_ptr<RankGroup> join_torch_ranks(const std::filesystem::path& module, const RankPlace& place, const std::string& device);

}  // namespace smartkv
