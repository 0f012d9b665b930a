// Copies of host pages on the device, made before attention reads the pages. The pages of the next layer are copied
// while a layer computes, so that the bus and the kernels work side by side. There is room for the pages of two layers,
// which grows and never shrinks. Pages without a copy are read in host memory, over the bus.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/device_buffer.h"

struct CUstream_st;  // cudaStream_t points to it
struct CUevent_st;   // cudaEvent_t

namespace smartkv::kernels::cuda {

// The bytes [begin, end) of a page in host memory.
struct HostPage {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
};

class FetchedPages {
 public:
  FetchedPages() = default;
  FetchedPages(const FetchedPages&) = delete;
  FetchedPages& operator=(const FetchedPages&) = delete;
  ~FetchedPages();

  // Starts copies of these pages, which may repeat, after the work on `stream`. Drops the copies of the call before the
  // last one. Makes no copies if the device has no room for them. Sorts `pages`.
  void fetch(std::vector<HostPage>& pages, CUstream_st* stream);
  // Drops the copies of pages that have changed: all of them, or that of the page that holds `address`.
  void forget();
  void forget(const void* address);
  // Points segments that have a copy to it, and makes `stream` wait for the copies.
  void place(std::span<KvSegment> segments, CUstream_st* stream);

 private:
  struct Copy {
    HostPage page;
    const std::byte* at = nullptr;  // On the device. Null if the page has changed.
  };
  struct Layer {
    DeviceBuffer memory;
    std::vector<Copy> copies;  // Ordered by page.
    CUevent_st* arrived = nullptr;
  };
  static Copy* find(Layer* layer, const void* address);
  void make_streams();

  std::array<Layer, 2> layers_;
  size_t next_ = 0;
  CUstream_st* bus_ = nullptr;  // The stream of the copies.
  CUevent_st* ready_ = nullptr;
};

}  // namespace smartkv::kernels::cuda
