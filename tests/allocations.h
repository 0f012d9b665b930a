// Replaces every operator new of a test program, so that allocations can be counted and made to fail.
#pragma once

#include <atomic>

namespace smartkv {

// Called for each allocation of the program, on the allocating thread. Returns whether the allocation fails. Must not
// allocate. If null, every allocation succeeds.
extern std::atomic<bool (*)()> allocation_fails;

}  // namespace smartkv
