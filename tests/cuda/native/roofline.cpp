// Measures how close attention comes to a GPU's peak memory bandwidth, by format of the pages. Decodes one token of
// many sequences of 32,768 tokens, in one layer, and prints a table. Usage: cuda_roofline [SEQUENCES]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/device_pool.h"
#include "kernels/cuda/kv_backend.h"
#include "tests/kernels/width_tables.h"

namespace smartkv::kernels {
namespace {

constexpr int64_t kHeads = 32, kKvHeads = 8, kDim = 128, kContext = 32768;
// Bytes to write before a run. They keep the GPU busy while the host plans, and evict the pages from its cache.
constexpr size_t kFlush = size_t{2} << 30;
constexpr int kRuns = 15;

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

std::byte* allocate(cuda::DevicePool& pool, size_t bytes) {
  std::byte* const memory = pool.allocate(bytes);
  if (memory == nullptr) throw std::runtime_error("no room on the device: ask for fewer sequences");
  check(cudaMemset(memory, 0, bytes), "cudaMemset");
  return memory;
}

double peak_bytes_per_s() {
  int khz = 0, bits = 0;
  check(cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, 0), "the memory's clock");
  check(cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, 0), "the memory's width");
  return 2.0 * khz * 1e3 * bits / 8;
}

struct Result {
  double bytes, seconds;
};

constexpr int kCalibrated = 0;  // in place of bits: a calibrated page of 4.1 bits, with most widths

// bits = 16 means dense pages.
Result measure(int bits, int64_t sequences) {
  const AttentionShape shape{kHeads, kKvHeads, kDim, 0.088f, KvType::kBf16};
  cuda::DevicePool pool;
  KvSegment page;
  page.tokens = kPageTokens;
  const auto backend = cuda::make_cuda_kv_backend(0);
  const WidthTable table =
      width_table(kDim, kKvHeads, {{6, 4}, {5, 6}, {4, 12}, {3, 6}, {2, 4}}, {{5, 8}, {4, 16}, {3, 8}}, 1, backend);
  if (bits == kCalibrated) {
    page.format = KvSegment::Format::kCalibrated;
    page.table = &table;
    page.middle = table.rotations->middle(0);
  } else if (bits < 16) {
    page.format = KvSegment::Format::kQuantized;
    page.quantized = {uniform_runs(kDim, bits), uniform_runs(kPageTokens, bits)};
    page.head_stride = quantized_offsets(page.quantized, kDim).total;
  } else {
    page.head_stride = 4 * kDim * kPageTokens;
  }
  const int64_t page_bytes = segment_bytes(shape, page), pages = kContext / kPageTokens;
  auto* const q = reinterpret_cast<float*>(allocate(pool, kHeads * kDim * sizeof(float)));
  std::vector<std::vector<KvSegment>> segments(static_cast<size_t>(sequences));
  std::vector<AttentionTask> tasks;
  for (auto& of : segments) {
    std::byte* const memory = allocate(pool, static_cast<size_t>(pages * page_bytes));
    for (int64_t i = 0; i < pages; ++i) {
      page.k = memory + i * page_bytes;
      if (bits == kCalibrated) page.middle = table.rotations->middle(i);
      page.v = bits < 16 ? nullptr : memory + i * page_bytes + 2 * kDim * kPageTokens;
      of.push_back(page);
    }
    tasks.push_back({q, kHeads * kDim, 1, of, allocate(pool, kHeads * kDim * 2)});
  }
  std::byte* const flush = allocate(pool, kFlush);
  cuda::AttentionWorkspace workspace;
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<double> seconds;
  for (int run = 0; run < kRuns; ++run) {
    for (int i = 0; i < 4; ++i) check(cudaMemsetAsync(flush, run, kFlush, nullptr), "cudaMemsetAsync");
    check(cudaEventRecord(begin, nullptr), "cudaEventRecord");
    cuda::attention(shape, tasks, workspace, nullptr);
    check(cudaEventRecord(end, nullptr), "cudaEventRecord");
    check(cudaDeviceSynchronize(), "attention");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    seconds.push_back(ms / 1e3);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(seconds.begin(), seconds.begin() + kRuns / 2, seconds.end());
  // Partial results are written and read once.
  const double partial =
      2.0 * static_cast<double>(workspace.plan.partial_rows * (kDim + cuda::kPartialPadding)) * sizeof(float);
  return {static_cast<double>(sequences * pages * page_bytes) + partial, seconds[kRuns / 2]};
}

void print(int64_t sequences) {
  char name[64] = "";
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::snprintf(name, sizeof name, "%s", properties.name);
  const double peak = peak_bytes_per_s();
  std::printf(
      "%s, %.2f TB/s: attention of %lld sequences of %lld tokens, %lld heads, %lld KV heads, head_dim %lld; medians of "
      "%d\n\n",
      name, peak / 1e12, static_cast<long long>(sequences), static_cast<long long>(kContext),
      static_cast<long long>(kHeads), static_cast<long long>(kKvHeads), static_cast<long long>(kDim), kRuns);
  std::printf(
      "| format | MB | microseconds | TB/s | of peak | target | against bf16 |\n|---|---|---|---|---|---|---|\n");
  struct Row {
    const char* format;
    int bits;
    const char* target;
  };
  double dense = 0;
  for (const Row& row : {Row{"dense bf16", 16, "80 %"},
                         {"8 bits", 8, "75 %"},
                         {"4 bits", 4, "60 %"},
                         {"3 bits", 3, ""},
                         {"2 bits", 2, ""},
                         {"calibrated, 4.1 bits", kCalibrated, "60 %"}}) {
    const Result result = measure(row.bits, sequences);
    if (row.bits == 16) dense = result.seconds;
    const double rate = result.bytes / result.seconds;
    std::printf("| %s | %.1f | %.1f | %.2f | %.0f %% | %s | %.2f |\n", row.format, result.bytes / 1e6,
                result.seconds * 1e6, rate / 1e12, 100 * rate / peak, row.target, dense / result.seconds);
  }
}

}  // namespace
}  // namespace smartkv::kernels

int main(int argc, char** argv) {
  try {
    const long long sequences = argc > 1 ? std::atoll(argv[1]) : 16;
    if (sequences < 1) throw std::runtime_error("expected a number of sequences, found " + std::string(argv[1]));
    smartkv::kernels::print(sequences);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
