// What the machine, and the control group that this process runs in, has to give. Linux.
#pragma once

#include <cstdint>

namespace smartkv {

int available_cores();      // in this process's affinity mask; at least 1
int64_t resident_bytes();   // memory of this process
int64_t available_bytes();  // of memory, without swapping: the least that the kernel and the control group allow

}  // namespace smartkv
