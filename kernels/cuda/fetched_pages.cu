#include "kernels/cuda/fetched_pages.h"

#include <algorithm>

#include "kernels/cuda/platform.h"

namespace smartkv::kernels::cuda {

FetchedPages::~FetchedPages() {
  if (bus_ == nullptr) return;
  cudaStreamSynchronize(bus_);
  for (const Layer& layer : layers_) cudaEventDestroy(layer.arrived);
  cudaEventDestroy(ready_);
  cudaStreamDestroy(bus_);
}

// Makes the events, and a stream that, unlike others, does not wait for the legacy default stream.
void FetchedPages::make_streams() {
  if (bus_ != nullptr) return;
  for (Layer& layer : layers_)
    check(cudaEventCreateWithFlags(&layer.arrived, cudaEventDisableTiming), "cudaEventCreate");
  check(cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming), "cudaEventCreate");
  check(cudaStreamCreateWithFlags(&bus_, cudaStreamNonBlocking), "cudaStreamCreate");
}

void FetchedPages::fetch(std::vector<HostPage>& pages, cudaStream_t stream) {
  const auto before = [](const HostPage& a, const HostPage& b) { return a.begin < b.begin; };
  std::sort(pages.begin(), pages.end(), before);
  const auto same = [](const HostPage& a, const HostPage& b) { return a.begin == b.begin; };
  pages.erase(std::unique(pages.begin(), pages.end(), same), pages.end());
  Layer& layer = layers_[next_];
  next_ = 1 - next_;
  layer.copies.clear();
  if (pages.empty()) return;
  make_streams();
  size_t bytes = 0;
  for (const HostPage& page : pages) bytes += static_cast<size_t>(page.end - page.begin);
  std::byte* to = layer.memory.try_reserve(bytes);
  if (to == nullptr) return;
  check(cudaEventRecord(ready_, stream), "cudaEventRecord");
  check(cudaStreamWaitEvent(bus_, ready_, 0), "cudaStreamWaitEvent");
  for (size_t i = 0; i < pages.size();) {
    const std::byte* const begin = pages[i].begin;
    const std::byte* end = begin;
    std::byte* const at = to;
    for (; i < pages.size() && pages[i].begin == end; ++i) {  // Neighbors are copied in one piece.
      layer.copies.push_back({pages[i], to});
      to += pages[i].end - pages[i].begin;
      end = pages[i].end;
    }
    check(cudaMemcpyAsync(at, begin, static_cast<size_t>(end - begin), cudaMemcpyHostToDevice, bus_),
          "copying pages to the device");
  }
  check(cudaEventRecord(layer.arrived, bus_), "cudaEventRecord");
}

void FetchedPages::forget() {
  for (Layer& layer : layers_) layer.copies.clear();
}

void FetchedPages::forget(const void* address) {
  for (Layer& layer : layers_) {
    if (Copy* const copy = find(&layer, address)) copy->at = nullptr;
  }
}

FetchedPages::Copy* FetchedPages::find(Layer* layer, const void* address) {
  const auto above = [](const void* a, const Copy& copy) { return a < copy.page.begin; };
  const auto next = std::upper_bound(layer->copies.begin(), layer->copies.end(), address, above);
  if (next == layer->copies.begin()) return nullptr;
  Copy& copy = *std::prev(next);
  return address < copy.page.end ? &copy : nullptr;
}

void FetchedPages::place(std::span<KvSegment> segments, cudaStream_t stream) {
  for (Layer& layer : layers_) {
    if (layer.copies.empty()) continue;
    bool waits = false;
    for (KvSegment& segment : segments) {
      const Copy* const copy = find(&layer, segment.k);
      if (copy == nullptr || copy->at == nullptr) continue;
      const auto moved = [&](const void* address) {
        return address == nullptr ? nullptr : copy->at + (static_cast<const std::byte*>(address) - copy->page.begin);
      };
      segment.k = moved(segment.k);
      segment.v = moved(segment.v);
      waits = true;
    }
    if (waits) check(cudaStreamWaitEvent(stream, layer.arrived, 0), "cudaStreamWaitEvent");
  }
}

}  // namespace smartkv::kernels::cuda
