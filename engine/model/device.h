// Devices by name: "cpu", "cuda:0", "cuda:1", and so on. "cuda" is the first GPU.
#pragma once

#include <memory>
#include <string>

#include "kernels/kv_backend.h"
#include "kernels/thread_pool.h"

namespace smartkv {

// Throws ModelError if `name` is not the name of a device, or if this program was built without support for it
// (SMARTKV_CUDA).
void check_device(const std::string& name);

// Returns the backend that holds the KV caches of a model on this device. The CPU's runs on `pool`, which must outlive
// it. Throws ModelError as check_device() does, and if the machine has no such device.
std::shared_ptr<kernels::KvBackend> device_kv_backend(const std::string& name, ThreadPool& pool);

}  // namespace smartkv
