// CUDA graphs of what LibTorch launches. Compiled, never run on a GPU.
#pragma once

#include <memory>
#include <string>

#include "engine/torch/pass_graphs.h"

namespace smartkv {

// On a GPU, as LibTorch names it. Throws ModelError where LibTorch has no CUDA, std::runtime_error where there is no such device.
std::unique_ptr<GraphRecorder> make_cuda_graph_recorder(const std::string& device);

}  // namespace smartkv
