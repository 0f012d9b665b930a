// The backend of a CUDA device for caches.
#pragma once

#include <memory>

#include "kernels/cuda/kv_backend.h"

namespace smartkv {

// Returns kernels::cuda::make_cuda_kv_backend(device) with the CUDA kernels of all policies that have some.
std::shared_ptr<kernels::cuda::DeviceKvBackend> make_cuda_cache_backend(int device);

}  // namespace smartkv
