// Pages in the host's memory, of which a copy is brought to the device before attention reads them: those of the next layer while
// one computes, so that the bus and the kernels work side by side. Room for the pages of two layers, which grows and stays. What has
// no copy is read where it is, over the bus.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/device_buffer.h"

struct CUstream_st;  // cudaStream_t points to it
struct CUevent_st;   // cudaEvent_t

namespace smartkv::kernels::cuda {

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

  // Starts copies of these, which may repeat, as they are after what is on `stream`. What was brought by the call before the last
  // one goes. Where the device has no room for them there are none. Sorts `pages`.
  void fetch(std::vector<HostPage>& pages, CUstream_st* stream);
  // Pages have changed: any, or the one that holds `address`.
  void forget();
  void forget(const void* address);
  // Lets segments that have a copy point to it, and `stream` wait for it.
  void place(std::span<KvSegment> segments, CUstream_st* stream);

 private:
  struct Copy {
    HostPage page;
    const std::byte* at = nullptr;  // on the device; null: the page has changed
  };
  struct Layer {
    DeviceBuffer memory;
    std::vector<Copy> copies;  // by page
    CUevent_st* arrived = nullptr;
  };
  static Copy* find(Layer* layer, const void* address);
  void make_streams();

  std::array<Layer, 2> layers_;
  size_t next_ = 0;
  CUstream_st* bus_ = nullptr;  // the copies'
  CUevent_st* ready_ = nullptr;
};

}  // namespace smartkv::kernels::cuda
