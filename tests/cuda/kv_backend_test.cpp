// The KvBackend of a device. Its jobs on pages must do what the CPU's do, in whatever waves they run.
#include "kernels/cuda/kv_backend.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cuda/device_test.h"

namespace smartkv::kernels {
namespace {

constexpr int64_t kPageHeads = 2, kPageDim = 64, kHalf = kPageDim * kPageTokens * 2, kBytes = 2 * kPageHeads * kHalf;
constexpr KvType kType = KvType::kBf16;
const QuantizedLayout kWide{uniform_runs(kPageDim, 8), uniform_runs(kPageTokens, 8)};
const QuantizedLayout kNarrow{uniform_runs(kPageDim, 4), uniform_runs(kPageTokens, 3)};

// A set of pages on one backend.
class Pages {
 public:
  explicit Pages(std::shared_ptr<KvBackend> of) : backend(std::move(of)) {}

  std::byte* add(size_t bytes) { return pages_.emplace_back(std::make_unique<PageMemory>(backend, bytes))->data(); }
  std::byte* page(size_t i) { return pages_[i]->data(); }
  void drop(size_t i) { pages_[i] = nullptr; }
  TokenPlace place(size_t i, int64_t head, int64_t slot) {
    std::byte* const k = page(i) + head * 2 * kHalf;
    return {k, k + kHalf, static_cast<int32_t>(slot)};
  }
  KvSegment segment(size_t i) {
    KvSegment segment;
    segment.tokens = kPageTokens;
    segment.k = page(i);
    segment.v = page(i) + kHalf;
    segment.head_stride = 2 * kHalf;
    return segment;
  }
  KvSegment coded_segment(size_t i, const QuantizedLayout& layout) {
    KvSegment codes;
    codes.format = KvSegment::Format::kQuantized;
    codes.tokens = kPageTokens;
    codes.k = page(i);
    codes.head_stride = quantized_offsets(layout, kPageDim).total;
    codes.quantized = layout;
    return codes;
  }
  // Writes one token. rows: K, then V of its KV heads. REQUIRES: they stay valid until they are written.
  void write(size_t i, int64_t slot, const std::vector<float>& rows) {
    constexpr int64_t kWidth = kPageHeads * kPageDim;
    backend->write(kType, kPageHeads, kPageDim,
                   {rows.data(), rows.data() + kWidth, 2 * kWidth, slot, 1, page(i), page(i) + kHalf, 2 * kHalf});
  }
  // Uploads random rows for fill(), unless they are there. Waits for the backend, which fill() with such rows does not.
  void add_rows(uint32_t seed) {
    if (rows_.contains(seed)) return;
    const std::vector<float> values = random_values(2 * kPageHeads * kPageTokens * kPageDim, seed);
    const size_t bytes = values.size() * sizeof(float);
    rows_[seed] = std::make_unique<PageMemory>(backend, bytes);
    backend->upload(values.data(), bytes, rows_[seed]->data());
  }
  void drop_rows() { rows_.clear(); }
  void fill(size_t i, uint32_t seed) {
    add_rows(seed);
    auto* k = reinterpret_cast<float*>(rows_.find(seed)->second->data());
    std::vector<TokenMove> moves;
    for (int64_t row = 0; row < kPageHeads * kPageTokens; ++row, k += 2 * kPageDim) {
      moves.push_back({{k, k + kPageDim, TokenPlace::kRow}, place(i, row / kPageTokens, row % kPageTokens)});
    }
    backend->move(kType, kPageDim, moves);
  }
  // Encodes page `from`, with its tokens in the order of slots.
  void encode(size_t from, size_t to, const QuantizedLayout& layout) {
    std::vector<TokenPlace> places;
    for (int64_t row = 0; row < kPageHeads * kPageTokens; ++row)
      places.push_back(place(from, row / kPageTokens, row % kPageTokens));
    encode({places}, to, layout);
  }
  void encode(const PageSource& source, size_t to, const QuantizedLayout& layout) {
    const PageEncode job{source, kPageHeads, layout, nullptr, page(to), quantized_offsets(layout, kPageDim).total};
    backend->encode(kType, kPageDim, {&job, 1});
  }
  std::string bytes(size_t i) {
    std::string all(pages_[i]->size(), '\0');
    backend->download(page(i), all.size(), all.data());
    return all;
  }

  std::shared_ptr<KvBackend> backend;

 private:
  std::vector<std::unique_ptr<PageMemory>> pages_;
  std::map<uint32_t, std::unique_ptr<PageMemory>>
      rows_;  // By seed: f32 [kPageHeads, kPageTokens, 2, kPageDim], K and V.
};

size_t encoded_bytes(const QuantizedLayout& layout) {
  return static_cast<size_t>(kPageHeads * quantized_offsets(layout, kPageDim).total);
}

class DeviceJobs : public OrderTest {
 protected:
  void SetUp() override {
    SMARTKV_NEEDS_FUSED_PRODUCTS();
    OrderTest::SetUp();
  }

  // Runs `function` on the CPU and on the device, and expects all pages to be equal afterwards.
  template <typename Function>
  void compare(size_t n_pages, const Function& function) {
    Pages cpu(make_cpu_kv_backend(nullptr)), device(cuda::make_cuda_kv_backend(0));
    for (Pages* pages : {&cpu, &device}) function(*pages);
    for (size_t i = 0; i < n_pages; ++i) EXPECT_TRUE(cpu.bytes(i) == device.bytes(i)) << "page " << i;
  }
};

TEST_P(DeviceJobs, MemoryIsZeroAtFirstAndWhenItIsGivenAgain) {
  Pages pages(cuda::make_cuda_kv_backend(0));
  pages.add(kBytes);
  EXPECT_EQ(pages.bytes(0), std::string(kBytes, '\0'));
  pages.fill(0, 1);
  EXPECT_NE(pages.bytes(0), std::string(kBytes, '\0'));
  const std::byte* const at = pages.page(0);
  pages.drop(0);
  pages.backend->finish();
  EXPECT_EQ(pages.add(kBytes), at);
  EXPECT_EQ(pages.bytes(1), std::string(kBytes, '\0'));
}

// Pages in host memory may stand among the device's own. They may have been prefetched or are read where they are.
TEST_P(DeviceJobs, AttentionIsTheSameOverPagesOfTheHost) {
  const auto device = cuda::make_cuda_kv_backend(0);
  const auto host = device->with_host_pages();
  EXPECT_FALSE(device->prefetches());
  Pages own(device), away(host);
  for (Pages* const pages : {&own, &away}) {
    for (size_t i = 0; i < 3; ++i) {
      pages->add(kBytes);
      pages->fill(i, static_cast<uint32_t>(i));
    }
    pages->add(encoded_bytes(kWide));
    pages->encode(1, 3, kWide);
  }
  EXPECT_TRUE(device->prefetches());
  EXPECT_EQ(own.bytes(3), away.bytes(3));
  const auto segments_of = [](Pages& pages) {
    const KvSegment codes = pages.coded_segment(3, kWide);
    return std::vector<KvSegment>{pages.segment(0), codes, pages.segment(2)};
  };
  const AttentionShape shape{2 * kPageHeads, kPageHeads, kPageDim, 0.125f, kType};
  const std::vector<float> q = random_values(2 * kPageHeads * kPageDim, 9);
  const auto attend = [&](std::span<const KvSegment> segments) {
    std::vector<uint16_t> out(q.size());
    const AttentionTask task{q.data(), 2 * kPageHeads * kPageDim, 1, segments, out.data()};
    device->attention(shape, {&task, 1});
    return out;
  };
  const std::vector<KvSegment> near = segments_of(own), far = segments_of(away), mixed = {far[0], near[1], far[2]};
  const std::vector<uint16_t> expected = attend(near);
  EXPECT_EQ(attend(far), expected);
  device->prefetch(far);
  EXPECT_EQ(attend(far), expected);
  EXPECT_EQ(attend(far), expected);
  device->prefetch(mixed);
  device->prefetch(near);
  EXPECT_EQ(attend(mixed), expected);
  // Pages may change after they were prefetched: by a job, or by rows that attention writes first.
  for (Pages* const pages : {&own, &away}) pages->add_rows(77);
  device->prefetch(far);
  for (Pages* const pages : {&own, &away}) pages->fill(2, 77);
  const std::vector<uint16_t> filled = attend(near);
  EXPECT_NE(filled, expected);
  EXPECT_EQ(attend(far), filled);
  device->prefetch(far);
  const std::vector<float> rows = random_values(2 * kPageHeads * kPageDim, 10);
  for (Pages* const pages : {&own, &away}) pages->write(0, 5, rows);
  const std::vector<uint16_t> written = attend(far);
  EXPECT_NE(written, filled);
  EXPECT_EQ(attend(near), written);
  away.drop(0);
  away.drop_rows();
  device->finish();
  for (size_t i = 1; i < 4; ++i) away.drop(i);
  device->finish();
  EXPECT_FALSE(device->prefetches());
}

TEST_P(DeviceJobs, SeeRowsThatWereAppliedBefore) {
  const std::vector<float> rows = random_values(2 * kPageHeads * kPageDim, 4);
  compare(2, [&](Pages& pages) {
    pages.add(kBytes);
    pages.add(kBytes);
    pages.write(0, 7, rows);
    pages.backend->apply_writes();
    const PageCopy copy{pages.page(0), pages.page(1), kBytes};
    pages.backend->copy({&copy, 1});
  });
}

// Consecutive calls on the same pages: copies of written rows, moves out of copies, quantized pages of moved tokens,
// quantized pages of quantized pages, and reads of contents that are overwritten later.
TEST_P(DeviceJobs, TakeEffectInTheirOrder) {
  std::vector<std::vector<float>> read;
  compare(5, [&](Pages& pages) {
    for (int i = 0; i < 3; ++i) pages.add(kBytes);
    pages.add(encoded_bytes(kWide));
    pages.add(encoded_bytes(kNarrow));
    for (const uint32_t seed : {1, 2, 3}) pages.add_rows(seed);
    pages.fill(0, 1);
    const PageCopy copy{pages.page(0), pages.page(1), kBytes};
    pages.backend->copy({&copy, 1});
    std::vector<float>& values = read.emplace_back(static_cast<size_t>(3 * kPageTokens * kPageDim));
    constexpr int64_t kHead = kPageTokens * kPageDim;
    const PageRead reads[] = {{pages.segment(0), 1, 1, 3, 1, values.data(), nullptr, 0},
                              {pages.segment(1), 0, 2, 0, kPageTokens, nullptr, values.data() + kHead, kHead}};
    pages.backend->read(kType, kPageDim, reads);
    pages.fill(0, 2);
    const TokenMove moves[] = {{pages.place(1, 0, 5), pages.place(0, 1, 63)},
                               {pages.place(1, 1, 6), pages.place(0, 0, 2)}};
    pages.backend->move(kType, kPageDim, moves);
    pages.encode(0, 3, kWide);
    pages.fill(0, 3);
    const KvSegment codes = pages.coded_segment(3, kWide);
    pages.encode({{}, &codes}, 4, kNarrow);
    pages.backend->finish();
  });
  EXPECT_EQ(read[0], read[1]);
}

TEST_P(DeviceJobs, APageMayBeReleasedBeforeItsJobsRun) {
  compare(0, [&](Pages& pages) {
    pages.add(kBytes);
    pages.add_rows(2);
    pages.fill(0, 1);
    const std::string expected = pages.bytes(0);
    pages.add(kBytes);
    const PageCopy copy{pages.page(0), pages.page(1), kBytes};
    pages.backend->copy({&copy, 1});
    pages.drop(0);
    pages.add(kBytes);  // must not disturb the pending copy of the first one
    pages.fill(2, 2);
    EXPECT_TRUE(pages.bytes(1) == expected);
  });
}

TEST_P(DeviceJobs, BytesGoUpAndDown) {
  Pages pages(cuda::make_cuda_kv_backend(0));
  pages.add(kBytes);
  pages.add_rows(1);
  pages.fill(0, 1);  // still pending
  std::string some(kBytes, '\0');
  for (size_t i = 0; i < some.size(); ++i) some[i] = static_cast<char>(i % 251);
  pages.backend->upload(some.data(), some.size(), pages.page(0));
  EXPECT_TRUE(pages.bytes(0) == some);
}

TEST_P(DeviceJobs, CallsOfManyThreadsAreAllDone) {
  compare(8, [&](Pages& pages) {
    for (uint32_t i = 0; i < 8; ++i) {
      pages.add(kBytes);
      pages.add_rows(i);
    }
    const auto work = [&](size_t first) {
      for (size_t i = first; i < 8; i += 2) {
        pages.fill(i, static_cast<uint32_t>(i));
        float k[kPageDim];
        const PageRead read = read_of(pages.place(i, 1, 7), k, nullptr);
        pages.backend->read(kType, kPageDim, {&read, 1});
        pages.backend->finish();
        PageMemory row(pages.backend, sizeof k);
        pages.backend->upload(k, sizeof k, row.data());
        const TokenMove again{{row.data(), row.data(), TokenPlace::kRow}, pages.place(i, 0, 8)};
        pages.backend->move(kType, kPageDim, {&again, 1});
      }
    };
    std::thread other(work, 1);
    work(0);
    other.join();
  });
}

// Repeating the same work must not take more memory, neither of the device nor for tables.
TEST_P(DeviceJobs, NothingIsAllocatedInSteadyState) {
  const auto device = cuda::make_cuda_kv_backend(0);
  Pages pages(device);
  pages.add(kBytes);
  size_t held = 0;
  for (size_t i = 1; i < 100; ++i) {
    if (i == 10) held = device->bytes_held();
    pages.add(encoded_bytes(i % 2 == 0 ? kWide : kNarrow));
    pages.fill(0, static_cast<uint32_t>(i % 3));
    pages.encode(0, i, i % 2 == 0 ? kWide : kNarrow);
    device->finish();
    if (i > 3) pages.drop(i - 3);
  }
  EXPECT_EQ(device->bytes_held(), held);
}

INSTANTIATE_TEST_SUITE_P(Orders, DeviceJobs, kOrders, name_of_order);

TEST(DeviceJobsChecks, RefuseWhatIsNoPageOfTheDevice) {
  const auto device = cuda::make_cuda_kv_backend(0);
  Pages pages(device);
  pages.add(kBytes);
  std::vector<std::byte> host(kBytes);
  const PageCopy copy{host.data(), pages.page(0), kBytes};
  EXPECT_THROW(device->copy({&copy, 1}), std::invalid_argument);
  const TokenMove move{pages.place(0, 0, 1), {host.data(), host.data(), 2}};
  EXPECT_THROW(device->move(kType, kPageDim, {&move, 1}), std::invalid_argument);
  EXPECT_THROW(device->move(KvType::kF32, kPageDim, {&move, 1}), std::invalid_argument);
  device->finish();  // none of these jobs was queued
  const TokenMove other_dim{pages.place(0, 0, 1), pages.place(0, 0, 2)};
  device->move(kType, 32, {&other_dim, 1});
  device->move(kType, kPageDim, {&other_dim, 1});
  device->finish();
}

}  // namespace
}  // namespace smartkv::kernels
