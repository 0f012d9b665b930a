#include "kernels/cuda/device_pool.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "kernels/cuda/platform.h"

namespace smartkv::kernels::cuda {
namespace {

// A stretch is as large as all before it together, within these.
constexpr size_t kLeastStretch = size_t{1} << 20, kMostStretch = size_t{256} << 20;

}  // namespace

DevicePool::~DevicePool() {
  for (std::byte* const stretch : stretches_) cudaFree(stretch);
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

void DevicePool::add_free(std::byte* at, size_t bytes) {
  if (spare_free_.empty()) {
    free_.emplace(bytes, at);
    return;
  }
  Free::node_type node = std::move(spare_free_.back());
  spare_free_.pop_back();
  node.value() = {bytes, at};
  free_.insert(std::move(node));
}

void DevicePool::remove_free(std::byte* at, size_t bytes) { spare_free_.push_back(free_.extract({bytes, at})); }

bool DevicePool::grow(size_t bytes) {
  size_t wanted = std::max(bytes, std::clamp(held_, kLeastStretch, kMostStretch));
  void* memory = nullptr;
  if (cudaMalloc(&memory, wanted) != cudaSuccess) {
    cudaGetLastError();  // it is dealt with
    wanted = bytes;
    if (cudaMalloc(&memory, wanted) != cudaSuccess) {
      cudaGetLastError();
      return false;
    }
  }
  stretches_.push_back(static_cast<std::byte*>(memory));
  held_ += wanted;
  add_block(stretches_.back(), {wanted, false, true, {}});
  add_free(stretches_.back(), wanted);
  return true;
}

std::byte* DevicePool::allocate(size_t bytes) {
  bytes = (std::max<size_t>(1, bytes) + kAlignment - 1) / kAlignment * kAlignment;
  auto found = free_.lower_bound({bytes, nullptr});
  if (found == free_.end()) {
    if (!grow(bytes)) return nullptr;
    found = free_.lower_bound({bytes, nullptr});
  }
  const auto [all, at] = *found;
  remove_free(at, all);
  Block& block = blocks_.find(at)->second;
  block.used = true;
  block.access = {};
  if (all > bytes) {
    block.bytes = bytes;
    add_block(at + bytes, {all - bytes, false, false, {}});
    add_free(at + bytes, all - bytes);
  }
  in_use_ += bytes;
  return at;
}

void DevicePool::free(std::byte* at) {
  auto block = blocks_.find(at);
  block->second.used = false;
  in_use_ -= block->second.bytes;
  const auto join = [&](Blocks::iterator first, Blocks::iterator second) {
    first->second.bytes += second->second.bytes;
    remove_block(second);
  };
  if (const auto next = std::next(block); next != blocks_.end() && !next->second.used && !next->second.first) {
    remove_free(next->first, next->second.bytes);
    join(block, next);
  }
  if (!block->second.first && !std::prev(block)->second.used) {
    const auto previous = std::prev(block);
    remove_free(previous->first, previous->second.bytes);
    join(previous, block);
    block = previous;
  }
  add_free(block->first, block->second.bytes);
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
    throw std::invalid_argument("KV cache on a CUDA device: a job on memory that is none of its pages");
  }
  return {block->first, block->first + block->second.bytes, &blocks_.find(block->first)->second.access};
}

}  // namespace smartkv::kernels::cuda
