// What the machine and the control groups of this process let it have. Linux.
#pragma once

#include <cstdint>

namespace smartkv {

// Returns how many threads can compute at once: the cores of this process's affinity mask, at most the CPU quota of its control
// groups, rounded up. At least 1.
int available_cores();
int64_t resident_bytes();  // memory of this process
// Returns how many bytes this process can allocate without swapping: the least that the kernel and its control groups leave.
// Throws std::runtime_error without /proc/meminfo.
int64_t available_bytes();

}  // namespace smartkv
