// Every allocation of the tests' program is counted, and may be made to fail.
#pragma once

#include <atomic>
#include <cstdint>

namespace smartkv {

extern std::atomic<int64_t> n_allocations;

// The allocations that succeed in this thread before one fails, after which all succeed again. Negative: none fails.
extern thread_local int64_t allocations_to_failure;

}  // namespace smartkv
