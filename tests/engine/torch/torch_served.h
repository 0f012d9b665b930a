// Models on the torch backend, as tests make them.
#pragma once

#include "engine/torch/torch_llama_backend.h"
#include "tests/engine/model/served_llama.h"

namespace smartkv {

// `weights` outlives the loader.
inline BackendLoader torch_loader(const Weights& weights) {
  return [&weights](kernels::KvType type) { return make_torch_backend(weights, type, 2); };
}

}  // namespace smartkv
