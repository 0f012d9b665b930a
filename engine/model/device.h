// Devices by name: "cpu", "cuda:0", "cuda:1", ... ("cuda": the first).
#pragma once

#include <memory>
#include <string>

#include "kernels/kv_backend.h"
#include "kernels/thread_pool.h"

namespace smartkv {

// Throws ModelError for a name that is none, or a device that this program was not built for (SMARTKV_CUDA).
void check_device(const std::string& name);

// Where caches live that a model on this device reads and writes. Throws ModelError, also where there is no such device.
std::shared_ptr<kernels::KvBackend> device_kv_backend(const std::string& name, ThreadPool& pool);

}  // namespace smartkv
