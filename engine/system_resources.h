// The CPU cores and the memory that this process may use, on Linux.
#pragma once

#include <cstdint>

namespace smartkv {

// Returns how many threads can compute at once, at least 1. It is the number of cores in this process's affinity mask,
// or the CPU quota of its control groups, rounded up, if that is smaller.
int available_cores();
// Returns the bytes of memory that this process occupies (its resident set).
int64_t resident_bytes();
// Returns how many bytes this process can allocate without swapping. It is the smallest number that the kernel
// (MemAvailable) and the control groups give. Throws std::runtime_error if /proc/meminfo has no such line.
int64_t available_bytes();

}  // namespace smartkv
