#include "engine/prefix_identity.h"

#include <fstream>
#include <memory>
#include <new>
#include <vector>

#include <nlohmann/json.hpp>
#include <xxhash.h>

#include "engine/model/torch_backend.h"
#include "engine/weights/packed_integers.h"
#include "kernels/cpu_level.h"

namespace smartkv {
namespace {

class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) {
    if (state_ == nullptr) throw std::bad_alloc();
    XXH3_64bits_reset(state_.get());
  }
  void add(const void* data, size_t n) { XXH3_64bits_update(state_.get(), data, n); }
  void add(const std::string& text) { add(text.c_str(), text.size() + 1); }
  template <typename T>
  void add(const std::vector<T>& values) {
    add(values.data(), values.size() * sizeof(T));
  }
  void add_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> block(1 << 16);
    while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
      add(block.data(), static_cast<size_t>(file.gcount()));
    }
    if (!file.eof()) throw CacheError("prefix_cache_dir: expected to read " + path.string() + ", which the states depend on");
  }
  uint64_t digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

uint64_t hash_of(const Weights& weights) {
  Hash hash;
  for (const std::string& name : weights.names()) {
    const std::optional<TensorView> tensor = weights.find(name);
    if (!tensor) continue;
    hash.add(name);
    hash.add(tensor->data.data(), tensor->data.size());
    if (tensor->scales != nullptr) hash.add(tensor->scales->values);
    if (const PackedIntegers* integers = tensor->integers.get()) {
      hash.add(integers->zeros.data(), integers->zeros.size());
      hash.add(integers->scales);
      hash.add(integers->group_of);
    }
  }
  return hash.digest();
}

}  // namespace

std::string prefix_identity(const Weights& weights, const EngineOptions& options, const CacheShape& shape) {
  Hash program, gates;
  program.add_file("/proc/self/exe");
  if (options.backend == "torch") program.add_file(torch_backend_path());
  for (const auto& [name, path] : options.gates) {
    gates.add(name);
    gates.add_file(path);
  }
  const nlohmann::ordered_json identity = {{"model", weights.config().name},
                                           {"weights", hash_of(weights)},
                                           {"program", program.digest()},
                                           {"gates", gates.digest()},
                                           {"dtype", options.dtype},
                                           {"stored_as", options.weights},
                                           {"backend", options.backend},
                                           {"device", options.device},
                                           {"context_length", options.context_length},
                                           {"cpu_level", kernels::name(kernels::cpu_level())},
                                           {"shape", {shape.n_layers, shape.n_kv_heads, shape.head_dim}}};
  return identity.dump();
}

}  // namespace smartkv
