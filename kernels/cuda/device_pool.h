// Blocks of CUDA device memory, or of pinned host memory. They are cut from slabs (`stretches`) that are allocated once
// and kept. In steady state nothing is requested from the driver or from the host's heap. An allocation takes the
// smallest block that is large enough, and free neighbors are joined. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace smartkv::kernels::cuda {

// Where memory lies. Kernels reach both by the same addresses (unified addressing), host memory over the bus.
enum class Place : uint8_t { kDevice, kHost };

class DevicePool {
 public:
  static constexpr size_t kAlignment = 256;

  // The last waves that read and write a block, in jobs that wait in queue number `batch`. For PageQueue, which orders
  // jobs.
  struct Access {
    uint64_t batch = 0;
    int32_t read = -1, written = -1;
  };

  DevicePool() = default;
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;
  ~DevicePool();

  // Returns a block with any contents, at a multiple of kAlignment. Returns null if there is no room.
  std::byte* allocate(size_t bytes, Place place = Place::kDevice);
  void free(std::byte* block);  // REQUIRES: allocate() returned the block.

  // A block in use. `access` is valid while the block is in use.
  struct Page {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    Access* access = nullptr;
    Place place = Place::kDevice;
    bool holds(const void* address) const { return address >= begin && address < end; }
  };
  Page page_at(const void* address);  // Throws std::invalid_argument if there is none.
  bool holds(const void* address) const { return find(address) != blocks_.end(); }  // Whether a block in use holds it.

  size_t bytes_in_use(Place place = Place::kDevice) const { return of(place).in_use; }
  size_t bytes_held(Place place = Place::kDevice) const { return of(place).held; }  // Bytes of all slabs.

 private:
  struct Block {
    size_t bytes = 0;
    bool used = false, first = false;  // first: the first block of its slab
    Place place = Place::kDevice;
    Access access;
  };
  using Blocks = std::map<std::byte*, Block>;
  using Free = std::set<std::pair<size_t, std::byte*>>;
  struct Memory {
    std::vector<std::byte*> stretches;
    Free free;
    size_t in_use = 0, held = 0;
  };

  Memory& of(Place place) { return memory_[static_cast<size_t>(place)]; }
  const Memory& of(Place place) const { return memory_[static_cast<size_t>(place)]; }
  Blocks::const_iterator find(const void* address) const;  // Returns the block in use that holds it, or end.
  bool grow(size_t bytes, Place place);
  Blocks::iterator add_block(std::byte* at, const Block& block);
  void remove_block(Blocks::iterator block);
  void add_free(Free& free, std::byte* at, size_t bytes);
  void remove_free(Free& free, std::byte* at, size_t bytes);

  std::array<Memory, 2> memory_;  // Indexed by Place.
  Blocks blocks_;                 // Blocks of both places.
  // Nodes that left the trees. They are reused, so that the heap is left alone.
  std::vector<Blocks::node_type> spare_blocks_;
  std::vector<Free::node_type> spare_free_;
};

}  // namespace smartkv::kernels::cuda
