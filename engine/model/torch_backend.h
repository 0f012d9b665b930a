// A LLaMA's products and norms by LibTorch, in a shared module beside the program (engine/torch/module).
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "engine/model/llama_backend.h"
#include "engine/weights/weights.h"
#include "kernels/attention.h"

namespace smartkv {

// What the module exports as kTorchBackendEntry: makes a backend of the weights, which it needs no more afterwards. type: of
// activations and matrices. device: where LibTorch computes. Throws ModelError.
using TorchBackendEntry = LlamaBackend*(const Weights& weights, kernels::KvType type, const std::string& device, int threads,
                                        const std::function<void(double)>& progress);
inline constexpr const char* kTorchBackendEntry = "smartkv_torch_backend";
// The hash of the headers that module and program were compiled with; they must agree.
using TorchBackendInterface = const char*();
inline constexpr const char* kTorchBackendInterface = "smartkv_torch_backend_interface";

// libsmartkv_torch_backend.so in the program's folder.
std::filesystem::path torch_backend_path();

// Throws ModelError, also where the module is missing or was not built with this program.
std::unique_ptr<LlamaBackend> load_torch_backend(const std::filesystem::path& module, const Weights& weights,
                                                 kernels::KvType type, const std::string& device, int threads,
                                                 const std::function<void(double)>& progress = nullptr);

}  // namespace smartkv
