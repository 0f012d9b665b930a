// Blocks of a CUDA device's memory, out of stretches that are allocated once and kept: in steady state nothing is asked of the
// driver, nor of the host's heap. The smallest block that is large enough is taken, neighbours that are free become one. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace smartkv::kernels::cuda {

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

  // Of any contents, at a multiple of kAlignment; null where the device has no room.
  std::byte* allocate(size_t bytes);
  void free(std::byte* block);  // that allocate() gave

  // A block that is in use; `access` stays as long as it is.
  struct Page {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    Access* access = nullptr;
    bool holds(const void* address) const { return address >= begin && address < end; }
  };
  Page page_at(const void* address);  // std::invalid_argument if there is none
  bool holds(const void* address) const { return find(address) != blocks_.end(); }  // in a block that is in use

  size_t bytes_in_use() const { return in_use_; }
  size_t bytes_held() const { return held_; }  // of the device

 private:
  struct Block {
    size_t bytes = 0;
    bool used = false, first = false;  // first: of its stretch
    Access access;
  };
  using Blocks = std::map<std::byte*, Block>;
  using Free = std::set<std::pair<size_t, std::byte*>>;

  Blocks::const_iterator find(const void* address) const;  // the block in use that holds it; end: none
  bool grow(size_t bytes);
  Blocks::iterator add_block(std::byte* at, const Block& block);
  void remove_block(Blocks::iterator block);
  void add_free(std::byte* at, size_t bytes);
  void remove_free(std::byte* at, size_t bytes);

  std::vector<std::byte*> stretches_;
  Blocks blocks_;
  Free free_;
  std::vector<Blocks::node_type> spare_blocks_;  // what trees gave back, so that the heap is left alone
  std::vector<Free::node_type> spare_free_;
  size_t in_use_ = 0, held_ = 0;
};

}  // namespace smartkv::kernels::cuda
