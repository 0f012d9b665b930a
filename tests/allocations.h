// Replaces every operator new of a tests' program, so that allocations can be counted and made to fail.
#pragma once

#include <atomic>

namespace smartkv {

// Asked about each allocation of the program, in its thread: whether it fails. Allocates nothing itself. Null: all succeed.
extern std::atomic<bool (*)()> allocation_fails;

}  // namespace smartkv
