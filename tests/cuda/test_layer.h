// Pages for the tests of what is computed on them, on the CPU or on a device.
#pragma once

#include <cmath>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/kv_backend.h"
#include "tests/cuda/device_test.h"

namespace smartkv::kernels {

inline constexpr KvType kType = KvType::kBf16;

// Pages of one layer on one backend, filled by a seed.
class Layer {
 public:
  Layer(std::shared_ptr<KvBackend> of, int64_t n_heads, int64_t head_dim)
      : backend(std::move(of)), heads(n_heads), dim(head_dim), half(head_dim * kPageTokens * 2) {}

  void add_dense(int n, uint32_t seed) {
    for (int i = 0; i < n; ++i) {
      const std::vector<float> values = random_values(2 * heads * kPageTokens * dim, seed + static_cast<uint32_t>(i));
      const std::vector<TokenPlace> from = rows(heads * kPageTokens);
      backend->upload(values.data(), values.size() * sizeof(float), static_cast<std::byte*>(from[0].k));
      std::byte* const page = add(2 * heads * half);
      std::vector<TokenMove> moves;
      for (int64_t row = 0; row < heads * kPageTokens; ++row) {
        moves.push_back({from[static_cast<size_t>(row)], place(page, row / kPageTokens, row % kPageTokens)});
      }
      backend->move(kType, dim, moves);
      segments.push_back({KvSegment::Format::kDense, kPageTokens, page, page + half, 2 * half});
    }
  }
  // Adds a quantized page of page `from`. `order` is its order of channels, null for the natural one; it must outlive
  // the page. The last `dropped` channels of the order are represented by their means.
  void add_quantized(size_t from, int bits, const std::vector<uint8_t>* order, int64_t dropped = 0) {
    QuantizedLayout layout{uniform_runs(dim - dropped, bits), uniform_runs(kPageTokens, bits)};
    layout.k.dropped = static_cast<uint8_t>(dropped / 4);
    const int64_t bytes = quantized_offsets(layout, dim).total;
    std::byte* const page = add(heads * bytes);
    const std::vector<TokenPlace> places = places_of(from);
    const uint8_t* const channels = order == nullptr ? nullptr : order->data();
    const PageEncode job{{places}, heads, layout, channels, page, bytes};
    backend->encode(kType, dim, {&job, 1});
    KvSegment quantized{KvSegment::Format::kQuantized, kPageTokens, page, nullptr, bytes};
    quantized.quantized = layout;
    quantized.channel_order = channels;
    segments.push_back(quantized);
  }
  TokenPlace place_of(size_t page, int64_t head, int64_t slot) {
    return place(static_cast<std::byte*>(const_cast<void*>(segments[page].k)), head, slot);
  }
  std::vector<TokenPlace> places_of(size_t page) {
    std::vector<TokenPlace> places;
    for (int64_t row = 0; row < heads * kPageTokens; ++row)
      places.push_back(place_of(page, row / kPageTokens, row % kPageTokens));
    return places;
  }
  // Returns places of n rows, one after the other: K, then V of each.
  std::vector<TokenPlace> rows(int64_t n) {
    std::vector<TokenPlace> rows;
    for (auto* at = reinterpret_cast<float*>(add(n * 2 * dim * 4)); static_cast<int64_t>(rows.size()) < n;
         at += 2 * dim) {
      rows.push_back({at, at + dim, TokenPlace::kRow});
    }
    return rows;
  }
  // Returns the contents of rows, read through a page.
  std::vector<float> read(const std::vector<TokenPlace>& of) {
    std::byte* const page = add(2 * heads * half);
    std::vector<float> values(of.size() * static_cast<size_t>(2 * dim));
    for (size_t i = 0; i < of.size(); ++i) {
      const TokenPlace to = place(page, 0, static_cast<int64_t>(i) % kPageTokens);
      const TokenMove move{of[i], to};
      backend->move(kType, dim, {&move, 1});
      float* const row = &values[i * static_cast<size_t>(2 * dim)];
      const PageRead job = read_of(to, row, row + dim);
      backend->read(kType, dim, {&job, 1});
    }
    backend->finish();
    return values;
  }

  std::shared_ptr<KvBackend> backend;
  int64_t heads, dim, half;
  std::vector<KvSegment> segments;

 private:
  std::byte* add(int64_t bytes) {
    return memory_.emplace_back(std::make_unique<PageMemory>(backend, static_cast<size_t>(bytes)))->data();
  }
  TokenPlace place(std::byte* page, int64_t head, int64_t slot) const {
    std::byte* const k = page + head * 2 * half;
    return {k, k + half, static_cast<int32_t>(slot)};
  }

  std::vector<std::unique_ptr<PageMemory>> memory_;
};

inline void expect_near(const std::vector<float>& got, const std::vector<float>& expected, float relative,
                        float absolute) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], relative * std::abs(expected[i]) + absolute) << i;
}

// A test over the order of threads that compares with the CPU's results.
class DeviceComparison : public OrderTest {
 protected:
  void SetUp() override {
    SMARTKV_NEEDS_FUSED_PRODUCTS();
    OrderTest::SetUp();
  }
};

}  // namespace smartkv::kernels
