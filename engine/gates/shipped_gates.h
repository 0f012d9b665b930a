// The gate files that are part of the program: cache/policies/gated_eviction/gates/*.safetensors.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace smartkv {

struct ShippedGate {
  std::string_view file;  // "smollm2-135m-instruct.safetensors"
  std::span<const std::byte> bytes;
};

std::vector<ShippedGate> shipped_gates();

}  // namespace smartkv
