// The gate files that are built into the program: assets/*/gates.safetensors.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace smartkv {

struct ShippedGate {
  std::string_view file;             // path below assets/, such as "smollm2-135m-instruct/gates.safetensors"
  std::span<const std::byte> bytes;  // of the file; valid as long as the program runs
};

// Returns all of them.
std::vector<ShippedGate> shipped_gates();

}  // namespace smartkv
