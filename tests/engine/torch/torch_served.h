// Models on the torch backend, as tests make them.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "engine/torch/torch_llama_backend.h"
#include "tests/engine/model/served_llama.h"

namespace smartkv {

inline BackendLoader torch_loader() {
  return [](const Weights& weights, kernels::KvType type) { return make_torch_backend(weights, type, "cpu", 2); };
}

inline double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  double error = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    size += std::pow(expected[i], 2);
  }
  return std::sqrt(error / size);
}

}  // namespace smartkv
