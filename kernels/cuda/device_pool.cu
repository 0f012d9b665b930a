#include "kernels/cuda/device_pool.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "kernels/cuda/platform.h"

namespace smartkv::kernels::cuda {
namespace {

// A new slab is as large as all slabs before it together, within these limits.
constexpr size_t kLeastStretch = size_t{1} << 20, kMostStretch = size_t{256} << 20;

// Returns null if there is no room.
std::byte* new_stretch(size_t bytes, Place place) {
  void* memory = nullptr;
  const cudaError_t error = place == Place::kDevice ? cudaMalloc(&memory, bytes) : cudaMallocHost(&memory, bytes);
  if (error == cudaSuccess) return static_cast<std::byte*>(memory);
  cudaGetLastError();  // The error is handled here.
  return nullptr;
}

}  // namespace

DevicePool::~DevicePool() {
  for (std::byte* const stretch : of(Place::kDevice).stretches) cudaFree(stretch);
  for (std::byte* const stretch : of(Place::kHost).stretches) cudaFreeHost(stretch);
}

DevicePool::Blocks::iterator DevicePool::add_block(std::byte* at, const Block& block) {
  if (spare_blocks_.empty()) return blocks_.emplace(at, block).first;
  Blocks::node_type node = std::move(spare_blocks_.back());
  spare_blocks_.pop_back();
  node.key() = at;
  node.mapped() = block;
  return blocks_.insert(std::move(node)).position;
}

void DevicePool::remove_block(Blocks::iterator block) { spare_blocks_.push_back(blocks_.extract(block)); }

void DevicePool::add_free(Free& free, std::byte* at, size_t bytes) {
  if (spare_free_.empty()) {
    free.emplace(bytes, at);
    return;
  }
  Free::node_type node = std::move(spare_free_.back());
  spare_free_.pop_back();
  node.value() = {bytes, at};
  free.insert(std::move(node));
}

void DevicePool::remove_free(Free& free, std::byte* at, size_t bytes) {
  spare_free_.push_back(free.extract({bytes, at}));
}

bool DevicePool::grow(size_t bytes, Place place) {
  Memory& memory = of(place);
  size_t taken = std::max(bytes, std::clamp(memory.held, kLeastStretch, kMostStretch));
  std::byte* stretch = new_stretch(taken, place);
  if (stretch == nullptr) stretch = new_stretch(taken = bytes, place);
  if (stretch == nullptr) return false;
  memory.stretches.push_back(stretch);
  memory.held += taken;
  add_block(stretch, {taken, false, true, place, {}});
  add_free(memory.free, stretch, taken);
  return true;
}

std::byte* DevicePool::allocate(size_t bytes, Place place) {
  Memory& memory = of(place);
  bytes = (std::max<size_t>(1, bytes) + kAlignment - 1) / kAlignment * kAlignment;
  auto found = memory.free.lower_bound({bytes, nullptr});
  if (found == memory.free.end()) {
    if (!grow(bytes, place)) return nullptr;
    found = memory.free.lower_bound({bytes, nullptr});
  }
  const auto [all, at] = *found;
  remove_free(memory.free, at, all);
  Block& block = blocks_.find(at)->second;
  block.used = true;
  block.access = {};
  if (all > bytes) {
    block.bytes = bytes;
    add_block(at + bytes, {all - bytes, false, false, place, {}});
    add_free(memory.free, at + bytes, all - bytes);
  }
  memory.in_use += bytes;
  return at;
}

void DevicePool::free(std::byte* at) {
  auto block = blocks_.find(at);
  Memory& memory = of(block->second.place);
  block->second.used = false;
  memory.in_use -= block->second.bytes;
  const auto join = [&](Blocks::iterator first, Blocks::iterator second) {
    first->second.bytes += second->second.bytes;
    remove_block(second);
  };
  if (const auto next = std::next(block); next != blocks_.end() && !next->second.used && !next->second.first) {
    remove_free(memory.free, next->first, next->second.bytes);
    join(block, next);
  }
  if (!block->second.first && !std::prev(block)->second.used) {
    const auto previous = std::prev(block);
    remove_free(memory.free, previous->first, previous->second.bytes);
    join(previous, block);
    block = previous;
  }
  add_free(memory.free, block->first, block->second.bytes);
}

DevicePool::Blocks::const_iterator DevicePool::find(const void* address) const {
  const auto next = blocks_.upper_bound(const_cast<std::byte*>(static_cast<const std::byte*>(address)));
  if (next == blocks_.begin()) return blocks_.end();
  const auto block = std::prev(next);
  return block->second.used && address < block->first + block->second.bytes ? block : blocks_.end();
}

DevicePool::Page DevicePool::page_at(const void* address) {
  const auto block = find(address);
  if (block == blocks_.end()) {
    throw std::invalid_argument("KV cache on a CUDA device: expected the address of one of its pages");
  }
  return {block->first, block->first + block->second.bytes, &blocks_.find(block->first)->second.access,
          block->second.place};
}

}  // namespace smartkv::kernels::cuda
