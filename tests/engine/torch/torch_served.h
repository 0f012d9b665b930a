// Loaders of the torch backend for tests.
#pragma once

#include <optional>

#include "engine/torch/torch_llama_backend.h"
#include "tests/engine/model/served_policy.h"

namespace smartkv {

inline ProductType product_of(kernels::KvType type) {
  return type == kernels::KvType::kF32 ? ProductType::kF32 : ProductType::kBf16;
}

// Returns a loader with products of the given type. Absent: the type of the activations.
inline BackendLoader torch_loader(std::optional<ProductType> products = {}) {
  return [products](const Weights& weights, kernels::KvType type) {
    return make_torch_backend(weights, products.value_or(product_of(type)), "cpu", 2);
  };
}

}  // namespace smartkv
