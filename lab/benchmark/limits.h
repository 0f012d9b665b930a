// Measures the limits of the machine with this project's own threads and kernels.
#pragma once

#include "kernels/thread_pool.h"
#include "lab/benchmark/benchmark.h"

namespace smartkv {

MachineLimits measure_limits(ThreadPool& pool);

}  // namespace smartkv
