// Measures the limits of the machine with this project's own threads and kernels.
#pragma once

#include "engine/benchmark/benchmark.h"
#include "kernels/thread_pool.h"

namespace smartkv {

MachineLimits measure_limits(ThreadPool& pool);

}  // namespace smartkv
