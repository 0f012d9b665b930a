// CUDA graphs of the kernels that LibTorch launches. Compiled, but never run on a GPU.
#pragma once

#include <memory>
#include <string>

#include "engine/torch/pass_graphs.h"

namespace smartkv {

// Makes a recorder for a GPU, which `device` names as LibTorch does. Throws ModelError if LibTorch was built without
// CUDA, and std::runtime_error if there is no such device.
std::unique_ptr<GraphRecorder> make_cuda_graph_recorder(const std::string& device);

}  // namespace smartkv
