#include "engine/model/device.h"

#include <charconv>
#include <stdexcept>

#include "engine/weights/weights.h"
#ifdef SMARTKV_CUDA
#include "cache/cuda/kv_backend.h"
#endif

namespace smartkv {
namespace {

constexpr int kCpu = -1;

int parse(const std::string& name) {
  if (name == "cpu") return kCpu;
  if (name == "cuda") return 0;
  int index = 0;
  const char* const end = name.data() + name.size();
  if (name.starts_with("cuda:")) {
    const auto [stop, error] = std::from_chars(name.data() + 5, end, index);
    if (error == std::errc() && stop == end && index >= 0) return index;
  }
  throw ModelError("device: expected cpu or cuda:N, found \"" + name + "\"");
}

// Returns the number of a GPU, or kCpu. Throws ModelError as check_device() does.
int device_of(const std::string& name) {
  const int device = parse(name);
#ifndef SMARTKV_CUDA
  if (device != kCpu) {
    throw ModelError(
        "device: expected cpu, found \"" + name +
        "\": this program was built without CUDA; configure it with -DSMARTKV_CUDA=ON (docs/internals/cuda.md)");
  }
#endif
  return device;
}

}  // namespace

void check_device(const std::string& name) { device_of(name); }

std::shared_ptr<kernels::KvBackend> device_kv_backend(const std::string& name, ThreadPool& pool) {
  [[maybe_unused]] const int device = device_of(name);
#ifdef SMARTKV_CUDA
  if (device != kCpu) {
    try {
      return make_cuda_cache_backend(device);
    } catch (const std::runtime_error& error) {
      throw ModelError("device: " + name + ": " + error.what());
    }
  }
#endif
  return kernels::make_cpu_kv_backend(&pool);
}

}  // namespace smartkv
