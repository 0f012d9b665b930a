// GGUF files: the container, the model's configuration and tensors, the tokenizer.
#include "engine/weights/gguf.h"

#include <algorithm>
#include <vector>

#include "engine/text/tokenizer.h"
#include "engine/weights/weights.h"
#include "tests/fuzz/input.h"

namespace smartkv::fuzz {
namespace {

// Most elements to expand. A tensor's shape may claim more than its file holds.
constexpr int64_t kMostElements = 1 << 16;

void read_container(const uint8_t* data, size_t size) {
  const GgufFile file = GgufFile::parse(bytes_of(data, size), "fuzz.gguf");
  for (const auto& [name, tensor] : file.tensors()) {
    if (tensor.rows() == 0 || tensor.elements() / tensor.rows() > kMostElements) continue;
    std::vector<float> row(static_cast<size_t>(tensor.elements() / tensor.rows()));
    expand_rows(tensor, tensor.rows() - 1, 1, row.data());
  }
  try {
    const auto tokenizer = load_tokenizer_gguf(file);
    tokenizer->decode(tokenizer->encode("Hello, <s> w\xc3\xb6rld \xff"));
  } catch (const TokenizerError&) {
  }
}

void read_model(const uint8_t* data, size_t size) {
  const auto path = scratch_directory() / "fuzz.gguf";
  write_file(path, text_of(data, size));
  const auto weights = Weights::open(path);
  for (const std::string& name : weights->names()) {
    const TensorView tensor = *weights->find(name);
    if (tensor.elements() <= kMostElements) weights->read(name, tensor.shape);
  }
}

}  // namespace
}  // namespace smartkv::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    smartkv::fuzz::read_container(data, size);
    smartkv::fuzz::read_model(data, size);
  } catch (const smartkv::ModelError&) {
  }
  return 0;
}
