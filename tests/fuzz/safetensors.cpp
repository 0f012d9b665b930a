// safetensors files.
#include "engine/weights/safetensors.h"

#include <vector>

#include "engine/weights/weights.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace smartkv;
  try {
    const SafetensorsFile file = SafetensorsFile::parse(fuzz::bytes_of(data, size), "fuzz.safetensors");
    for (const auto& [name, tensor] : file.tensors()) {
      std::vector<float> values(static_cast<size_t>(tensor.elements()));  // no more than the file holds
      expand_rows(tensor, 0, tensor.rows(), values.data());
    }
  } catch (const ModelError&) {
  }
  return 0;
}
