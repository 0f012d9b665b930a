// The KvBackend of a CUDA device: pages are managed memory, which host and device both reach; what policies do with pages at
// boundaries the host does. What it is given beside pages is copied to the device and back in each call.
//
// It is not batch-invariant: a query's bits depend on its own segments and on the number of queries in its task.
#pragma once

#include <memory>

#include "kernels/kv_backend.h"

namespace smartkv::kernels::cuda {

// device: its number, from 0 on. Calls of attention() and attention_mass() come one at a time. Here and there
// std::runtime_error for an error of CUDA.
std::shared_ptr<KvBackend> make_cuda_kv_backend(int device);

}  // namespace smartkv::kernels::cuda
