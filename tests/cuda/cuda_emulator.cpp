#include "cuda_emulator.h"

#include <sys/mman.h>

#include <array>
#include <cstdio>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/half.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the callee-saved registers and the stack pointer in *save, and resumes the fiber with the stack pointer `to`.
// System V x86-64. swapcontext would ask the kernel for the signal mask each time, which takes 0.2 us, and a matrix
// product of a warp takes 32 switches.
extern "C" void smartkv_switch_stack(void** save, void* to);
asm(R"(
.text
.type smartkv_switch_stack, @function
smartkv_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size smartkv_switch_stack, . - smartkv_switch_stack
)");

namespace smartkv::cuda_emulator {
namespace {

constexpr size_t kStackBytes = 128 * 1024;
constexpr int kWarp = 32;
constexpr size_t kMostThreads = 1024;  // threads of a block

struct Copy {
  void* to;
  const void* from;
};

struct Fiber : Thread {
  std::unique_ptr<std::byte[]> stack{new std::byte[kStackBytes]};
  void* stack_pointer = nullptr;
  int place = 0;  // index in the block
  bool done = false;
  const char* waits_for = nullptr;
  std::vector<Copy> copies;   // pending: copies of all groups, then copies that are not committed yet
  std::deque<size_t> groups;  // copies in each group
  size_t in_groups = 0;       // copies in all groups
};

// The lanes of a warp that have arrived and wait for the others.
struct Gathering {
  WarpOperation operation = nullptr;
  std::source_location at;
  std::array<void*, kWarp> lanes{};
  int arrived = 0;
};

// A first-in, first-out queue. Each fiber of a block is in it at most once.
class Ready {
 public:
  bool empty() const { return first_ == end_; }
  void push(Fiber* fiber) { fibers_[end_++ % kMostThreads] = fiber; }
  Fiber* pop() { return fibers_[first_++ % kMostThreads]; }
  void clear() { first_ = end_; }

 private:
  std::array<Fiber*, kMostThreads> fibers_;
  uint32_t first_ = 0, end_ = 0;
};

struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;  // as many as the largest block so far
  size_t n = 0;                                // threads of the current block
  Ready ready;
  std::vector<Gathering> warps;
  size_t at_barrier = 0;
  const std::function<void()>* kernel = nullptr;
  void* host_stack_pointer = nullptr;
  std::exception_ptr error;
  size_t shared_bytes = 0;
} block;

Order order = Order::kForward;

Fiber& self() { return *static_cast<Fiber*>(running); }

#if defined(__SANITIZE_ADDRESS__)
const void* host_stack_bottom = nullptr;
size_t host_stack_size = 0;
#endif

// Switches to a fiber, or to the host if `to` is null.
void switch_to(void** save, Fiber* to, [[maybe_unused]] bool leaves_for_good) {
  running = to;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(leaves_for_good ? nullptr : &fake_stack,
                                 to == nullptr ? host_stack_bottom : to->stack.get(),
                                 to == nullptr ? host_stack_size : kStackBytes);
#endif
  smartkv_switch_stack(save, to == nullptr ? block.host_stack_pointer : to->stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

// Resumes the next fiber that can run, or the host if there is none.
void leave(bool for_good = false) {
  Fiber& me = self();
  Fiber* next = nullptr;
  if (!block.ready.empty() && block.error == nullptr) next = block.ready.pop();
  if (next != &me) switch_to(&me.stack_pointer, next, for_good);
}

void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (host_stack_bottom == nullptr) {  // the first fiber comes from the host
    host_stack_bottom = bottom;
    host_stack_size = size;
  }
#endif
  try {
    (*block.kernel)();
    if (self().in_groups > 0) throw std::logic_error("a thread returned without waiting for its asynchronous copies");
    if (!self().copies.empty()) throw std::logic_error("a thread returned without committing its asynchronous copies");
  } catch (...) {
    block.error = std::current_exception();
  }
  self().done = true;
  leave(true);
  std::abort();  // a fiber that is done is never resumed
}

void start(Fiber& fiber) {
  fiber.done = false;
  fiber.waits_for = nullptr;
  fiber.copies.clear();
  fiber.groups.clear();
  fiber.in_groups = 0;
#if defined(__SANITIZE_ADDRESS__)
  // The previous block's frames were abandoned, not returned from.
  ASAN_UNPOISON_MEMORY_REGION(fiber.stack.get(), kStackBytes);
#endif
  auto* const top =
      reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(fiber.stack.get() + kStackBytes) & ~uintptr_t{15});
  // Six registers, the return address, and the stack as a called function finds it.
  auto** const frame = reinterpret_cast<void**>(top - 64);
  std::fill_n(frame, 8, nullptr);
  frame[6] = reinterpret_cast<void*>(&fiber_main);
  fiber.stack_pointer = frame;
}

// Makes n fibers ready to run, beginning with `first`.
void release(size_t first, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    Fiber& fiber = *block.fibers[first + (order == Order::kForward ? i : n - 1 - i)];
    fiber.waits_for = nullptr;
    block.ready.push(&fiber);
  }
}

void run_block(std::byte* shared) {
  std::memset(shared, 0xff, block.shared_bytes);
  block.warps.assign(block.n / kWarp, {});
  block.at_barrier = 0;
  block.ready.clear();
  for (size_t i = 0; i < block.n; ++i) start(*block.fibers[i]);
  release(0, block.n);
  switch_to(&block.host_stack_pointer, block.ready.pop(), false);
  if (block.error != nullptr) std::rethrow_exception(std::exchange(block.error, nullptr));
  for (size_t i = 0; i < block.n; ++i) {
    const Fiber& fiber = *block.fibers[i];
    if (fiber.done) continue;
    throw std::logic_error("divergent: thread " + std::to_string(i) + " of block " + std::to_string(block_index.x) +
                           " waits forever for " + fiber.waits_for);
  }
}

// to_float converts an element.
template <float (*to_float)(uint16_t)>
void multiply(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
  struct Lane {
    float* c;
    const uint32_t* a;
    uint32_t b[2];
  } lane{c, a, {b0, b1}};
  const auto operation = [](void* const* lanes) {
    using Row = float __attribute__((vector_size(32)));
    float rows[16][16];
    Row columns[16], sums[16];
    for (int i = 0; i < kWarp; ++i) {
      const auto& from = *static_cast<const Lane*>(lanes[i]);
      const int group = i / 4, pair = 2 * (i % 4);
      // Rows and rows + 8 of columns k, then of columns k + 8.
      for (int part = 0; part < 4; ++part) {
        float* const to = &rows[group + 8 * (part % 2)][pair + 8 * (part / 2)];
        to[0] = to_float(static_cast<uint16_t>(from.a[part]));
        to[1] = to_float(static_cast<uint16_t>(from.a[part] >> 16));
      }
      for (int part = 0; part < 2; ++part) {
        columns[pair + 8 * part][group] = to_float(static_cast<uint16_t>(from.b[part]));
        columns[pair + 8 * part + 1][group] = to_float(static_cast<uint16_t>(from.b[part] >> 16));
      }
    }
    for (int row = 0; row < 16; ++row) {
      Row sum = {};
      for (int k = 0; k < 16; ++k) sum += rows[row][k] * columns[k];
      sums[row] = sum;
    }
    for (int i = 0; i < kWarp; ++i) {
      float* const out = static_cast<Lane*>(lanes[i])->c;
      for (int part = 0; part < 4; ++part) out[part] += sums[i / 4 + 8 * (part / 2)][2 * (i % 4) + part % 2];
    }
  };
  warp_collective(operation, &lane, std::source_location::current());
}

}  // namespace

Thread* running = nullptr;
dim3 block_index, block_size, grid_size;
std::byte* shared_memory = nullptr;

void set_order(Order wanted) { order = wanted; }

namespace {

constexpr size_t kPageBytes = 4096, kDeviceAlignment = 256;

size_t up_to(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// A mapping ends with a guard page that is never accessible.
struct Mapping {
  std::byte* begin;
  size_t bytes;  // without the guard page
};

struct DeviceMemory {
  std::mutex mutex;
  std::map<void*, Mapping> mappings;  // by the address that cudaMalloc() returned
};
// Lives until the process ends, because tests hold backends in static memory.
DeviceMemory& device_memory() {
  static auto* const memory = new DeviceMemory;
  return *memory;
}

struct Streams {
  std::mutex mutex;
  std::set<CUstream_st*> all;
};
Streams& streams() {
  static auto* const all = new Streams;
  return *all;
}

// Returns the memory protection key of the device's memory, with which a thread changes access in one instruction.
// Returns -1 if this CPU has no such keys. Pages are then protected one by one, which takes a third of the suites'
// time.
int protection_key() {
  static const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  return key;
}

void protect(const Mapping& mapping, int access) {
  // Without a key, pkey_mprotect() is mprotect().
  if (pkey_mprotect(mapping.begin, mapping.bytes, access, protection_key()) == 0) return;
  std::perror("protecting the emulated device's memory");
  std::abort();
}

// While it exists, this thread can access the device's memory.
class DeviceRuns {
 public:
  DeviceRuns() : lock_(device_memory().mutex) { let(true); }
  DeviceRuns(const DeviceRuns&) = delete;
  DeviceRuns& operator=(const DeviceRuns&) = delete;
  ~DeviceRuns() { let(false); }

  static void let(bool reach) {
    if (protection_key() >= 0) {
      pkey_set(protection_key(), reach ? 0 : PKEY_DISABLE_ACCESS);
      return;
    }
    for (const auto& [memory, mapping] : device_memory().mappings)
      protect(mapping, reach ? PROT_READ | PROT_WRITE : PROT_NONE);
  }

 private:
  std::lock_guard<std::mutex> lock_;
};

}  // namespace

void* allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  const size_t size = up_to(bytes, kDeviceAlignment), mapped = up_to(size, kPageBytes);
  void* const begin = mmap(nullptr, mapped + kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) return nullptr;
  const Mapping mapping{static_cast<std::byte*>(begin), mapped};
  void* const memory = mapping.begin + mapped - size;
  protect(mapping, PROT_READ | PROT_WRITE);
  const DeviceRuns runs;
  device_memory().mappings.emplace(memory, mapping);
  std::memset(begin, 0xff, mapped);
  return memory;
}

void free(void* memory) {
  if (memory == nullptr) return;
  const std::lock_guard lock(device_memory().mutex);
  const auto found = device_memory().mappings.find(memory);
  if (found == device_memory().mappings.end()) throw std::logic_error("cudaFree: expected what cudaMalloc gave");
  munmap(found->second.begin, found->second.bytes + kPageBytes);
  device_memory().mappings.erase(found);
}

void copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const DeviceRuns runs;
  std::memcpy(to, from, bytes);
}

void fill(void* to, int byte, size_t bytes) {
  if (bytes == 0) return;
  const DeviceRuns runs;
  std::memset(to, byte, bytes);
}

CUstream_st* new_stream() {
  const std::lock_guard lock(streams().mutex);
  return *streams().all.insert(new CUstream_st).first;
}

void delete_stream(CUstream_st* stream) {
  const std::lock_guard lock(streams().mutex);
  streams().all.erase(stream);
  delete stream;
}

void synchronize() {
  const std::lock_guard lock(streams().mutex);
  for (CUstream_st* const stream : streams().all) stream->run();
}

void launch(dim3 grid, dim3 size, size_t shared_bytes, const std::function<void()>& kernel) {
  const DeviceRuns runs;
  block.n = size_t{size.x} * size.y * size.z;
  if (block.n == 0 || block.n % kWarp != 0 || block.n > kMostThreads) {
    throw std::logic_error("launch: expected whole warps, at most " + std::to_string(kMostThreads) +
                           " threads, found " + std::to_string(block.n));
  }
  while (block.fibers.size() < block.n) {
    block.fibers.push_back(std::make_unique<Fiber>());
    block.fibers.back()->place = static_cast<int>(block.fibers.size()) - 1;
  }
  for (size_t i = 0; i < block.n; ++i) {
    const auto place = static_cast<unsigned>(i);
    block.fibers[i]->index = {place % size.x, place / size.x % size.y, place / size.x / size.y};
  }
  constexpr std::align_val_t kAlignment{128};
  const auto free = [&](std::byte* memory) { ::operator delete[](memory, kAlignment); };
  const std::unique_ptr<std::byte[], decltype(free)> shared(new (kAlignment) std::byte[shared_bytes], free);
  block.shared_bytes = shared_bytes;
  block.kernel = &kernel;
  shared_memory = shared.get();
  block_size = size;
  grid_size = grid;
  for (block_index.z = 0; block_index.z < grid.z; ++block_index.z) {
    for (block_index.y = 0; block_index.y < grid.y; ++block_index.y) {
      for (block_index.x = 0; block_index.x < grid.x; ++block_index.x) run_block(shared.get());
    }
  }
  shared_memory = nullptr;
}

void block_barrier() {
  self().waits_for = "the block's barrier";
  if (++block.at_barrier == block.n) {
    block.at_barrier = 0;
    release(0, block.n);
  }
  leave();
}

void warp_collective(WarpOperation operation, void* mine, const std::source_location& at) {
  Fiber& me = self();
  const auto warp = static_cast<size_t>(me.place / kWarp);
  Gathering& gathering = block.warps[warp];
  if (gathering.arrived == 0) {
    gathering.operation = operation;
    gathering.at = at;
  } else if (gathering.operation != operation || gathering.at.line() != at.line()) {
    throw std::logic_error("divergent warp: lanes at " + std::string(gathering.at.file_name()) + ":" +
                           std::to_string(gathering.at.line()) + " and at " + at.file_name() + ":" +
                           std::to_string(at.line()));
  }
  gathering.lanes[static_cast<size_t>(me.place % kWarp)] = mine;
  me.waits_for = "the other lanes of its warp";
  if (++gathering.arrived == kWarp) {
    operation(gathering.lanes.data());
    gathering.arrived = 0;
    release(warp * kWarp, kWarp);
  }
  leave();
}

void copy_async_16(void* to, const void* from) {
  const auto* const bytes = static_cast<std::byte*>(to);
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    throw std::logic_error("cp.async: expected addresses that are multiples of 16");
  }
  if (bytes < shared_memory || bytes + 16 > shared_memory + block.shared_bytes) {
    throw std::logic_error("cp.async: expected an address in shared memory");
  }
  self().copies.push_back({to, from});
}

void copy_async_commit() {
  Fiber& me = self();
  me.groups.push_back(me.copies.size() - me.in_groups);
  me.in_groups = me.copies.size();
}

void copy_async_wait(int groups_in_flight) {
  Fiber& me = self();
  size_t n = 0;
  for (; static_cast<int>(me.groups.size()) > groups_in_flight; me.groups.pop_front()) n += me.groups.front();
  for (size_t i = 0; i < n; ++i) std::memcpy(me.copies[i].to, me.copies[i].from, 16);
  me.copies.erase(me.copies.begin(), me.copies.begin() + static_cast<ptrdiff_t>(n));
  me.in_groups -= n;
}

void mma_m16n8k16_bf16(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) { multiply<from_bf16>(c, a, b0, b1); }
void mma_m16n8k16_f16(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
  multiply<kernels::half_to_float>(c, a, b0, b1);
}

void load_matrix_x4(uint32_t* out, const void* row) {
  struct Lane {
    uint32_t* out;
    const void* row;
  } lane{out, row};
  const auto operation = [](void* const* lanes) {
    for (int i = 0; i < kWarp; ++i) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        const auto& source = *static_cast<const Lane*>(lanes[8 * matrix + i / 4]);
        if (reinterpret_cast<uintptr_t>(source.row) % 16 != 0) {
          throw std::logic_error("ldmatrix: expected rows at multiples of 16");
        }
        std::memcpy(static_cast<Lane*>(lanes[i])->out + matrix, static_cast<const uint32_t*>(source.row) + i % 4, 4);
      }
    }
  };
  warp_collective(operation, &lane, std::source_location::current());
}

}  // namespace smartkv::cuda_emulator

void CUstream_st::run() {
  for (const auto& call : waiting) call();
  waiting.clear();
}
