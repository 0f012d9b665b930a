// Models on the torch backend, as tests make them.
#pragma once

#include "engine/torch/torch_llama_backend.h"
#include "tests/engine/model/served_policy.h"

namespace smartkv {

inline BackendLoader torch_loader() {
  return [](const Weights& weights, kernels::KvType type) { return make_torch_backend(weights, type, "cpu", 2); };
}

}  // namespace smartkv
