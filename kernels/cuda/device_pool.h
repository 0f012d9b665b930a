// Blocks of a CUDA device's memory, or of the host's that is pinned, out of stretches that are allocated once and kept: in steady
// state nothing is asked of the driver, nor of the host's heap. The smallest block that is large enough is taken, neighbours that
// are free become one. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace smartkv::kernels::cuda {

// Whose memory: kernels reach both by the same addresses (unified addressing), the host's over the bus.
enum class Place : uint8_t { kDevice, kHost };

class DevicePool {
 public:
  static constexpr size_t kAlignment = 256;

  // What waits to be done to a block, for whoever puts jobs on it in order.
  struct Access {
    uint64_t batch = 0;
    int32_t read = -1, written = -1;
  };

  DevicePool() = default;
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;
  ~DevicePool();

  // Of any contents, at a multiple of kAlignment; null where there is no room.
  std::byte* allocate(size_t bytes, Place place = Place::kDevice);
  void free(std::byte* block);  // that allocate() gave

  // A block that is in use; `access` stays as long as it is.
  struct Page {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    Access* access = nullptr;
    Place place = Place::kDevice;
    bool holds(const void* address) const { return address >= begin && address < end; }
  };
  Page page_at(const void* address);  // std::invalid_argument if there is none
  bool holds(const void* address) const { return find(address) != blocks_.end(); }  // in a block that is in use

  size_t bytes_in_use(Place place = Place::kDevice) const { return of(place).in_use; }
  size_t bytes_held(Place place = Place::kDevice) const { return of(place).held; }  // of the device, or the host

 private:
  struct Block {
    size_t bytes = 0;
    bool used = false, first = false;  // first: of its stretch
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
  Blocks::const_iterator find(const void* address) const;  // the block in use that holds it; end: none
  bool grow(size_t bytes, Place place);
  Blocks::iterator add_block(std::byte* at, const Block& block);
  void remove_block(Blocks::iterator block);
  void add_free(Free& free, std::byte* at, size_t bytes);
  void remove_free(Free& free, std::byte* at, size_t bytes);

  std::array<Memory, 2> memory_;  // by Place
  Blocks blocks_;                 // of both
  std::vector<Blocks::node_type> spare_blocks_;  // what trees gave back, so that the heap is left alone
  std::vector<Free::node_type> spare_free_;
};

}  // namespace smartkv::kernels::cuda
