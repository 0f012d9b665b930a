// The matrix products, written once over a set of vector operations.
//
// Each linear_<level>.cpp defines its operations as a struct in an anonymous namespace and instantiates Products<Ops>.
// The instances have internal linkage, so that code for one instruction set never stands in for another's. For the same
// reason nothing here calls an inline function of another header.
//
// Ops has F (the level's Vec16), BfWeights (16 pairs of bf16), Bytes ([16][4] u8), Int (16 int32) and the functions on
// them. kAccumulators and kIntAccumulators say how many F the registers hold beside the weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/linear_format.h"
#include "kernels/linear_kernels.h"

namespace smartkv::kernels {

// Calls f.operator()<quad>() for quads [kFirst, kFirst + kCount) of a group. Quads that share lines follow each other.
template <int kFirst, int kCount, class F, int... kIndex>
[[gnu::always_inline]] inline void each_quad(const F& f, std::integer_sequence<int, kIndex...>) {
  (f.template operator()<kFirst + (kCount == 8 ? kIndex % 2 * 4 + kIndex / 2 : kIndex)>(), ...);
}
template <int kFirst, int kCount, class F>
[[gnu::always_inline]] inline void each_quad(const F& f) {
  each_quad<kFirst, kCount>(f, std::make_integer_sequence<int, kCount>());
}

// Loads the levels of quad kQuad of a group: [16][4] u8.
template <class Ops, WeightType kType, int kQuad>
[[gnu::always_inline]] inline typename Ops::Bytes load_levels(const uint8_t* base) {
  constexpr Levels kLevels = levels_of(kType);
  constexpr PlanePlace kLow = plane_place(kLevels.low, kQuad);
  typename Ops::Bytes levels = Ops::load_bytes(base + 64 * kLow.line);
  if constexpr (kLevels.low < 8) levels = Ops::template pick<kLow.shift, (1 << kLevels.low) - 1>(levels);
  if constexpr (kLevels.high > 0) {
    constexpr PlanePlace kHigh = plane_place(kLevels.high, kQuad);
    const typename Ops::Bytes line = Ops::load_bytes(base + 64 * (kLevels.low + kHigh.line));
    constexpr int kMask = ((1 << kLevels.high) - 1) << kLevels.low;
    levels = Ops::either(levels, Ops::template pick<kHigh.shift - kLevels.low, kMask>(line));
  }
  if constexpr (kLevels.table != nullptr) levels = Ops::look_up(kLevels.table, levels);
  return levels;
}

template <class Ops>
struct Products {
  using F = typename Ops::F;

  // Memory to prefetch while a block computes. Each chunk of inputs requests bytes_per_chunk bytes of each lane group
  // of a panel.
  struct Prefetch {
    const std::byte* next = nullptr;
    int64_t bytes_per_chunk = 0;  // Bytes of each lane group. 0: nothing is requested.
    int64_t stride = 0;
    int64_t chunks = 0;                 // Chunks until the requests continue at `beyond`.
    const std::byte* beyond = nullptr;  // Null: the requests end.

    template <int kGroups>
    void chunk() {
      for (int64_t i = 0; i < bytes_per_chunk; i += 64) {
#pragma GCC unroll 4
        for (int g = 0; g < kGroups; ++g) F::prefetch_l2(next + g * stride + i);
      }
      next += bytes_per_chunk;
      if (--chunks == 0) {
        next = beyond;
        if (next == nullptr) bytes_per_chunk = 0;
      }
    }
  };

  // The prefetches of the blocks of rows of one panel, `groups` lane groups from `group` on.
  //  - A single block waits for the memory of its panel. It requests what it reads kChunksAhead chunks later, then the
  //    beginning of the next panel. So as many lines are in flight as the core allows.
  //  - Several blocks share the requests for the next panel.
  class PanelPrefetch {
   public:
    // chunks: chunks of a block.
    PanelPrefetch(const LinearCall& call, const LinearTile& tile, int64_t group, int64_t groups, int64_t blocks,
                  int64_t chunks)
        : chunks_(chunks) {
      const std::byte* const panel = call.weights + group * call.lane_group_bytes;
      const std::byte* const next = group + groups < tile.group_end ? panel + groups * call.lane_group_bytes : nullptr;
      first_.stride = call.lane_group_bytes;
      if (blocks == 1) {
        const int64_t ahead = chunks > kChunksAhead ? kChunksAhead : chunks - 1;
        first_.bytes_per_chunk = call.lane_group_bytes / chunks;
        first_.next = panel + ahead * first_.bytes_per_chunk;
        first_.chunks = chunks - ahead;
        first_.beyond = next;
      } else if (next != nullptr && groups * call.lane_group_bytes <= kMaxPrefetch) {
        first_.bytes_per_chunk = (call.lane_group_bytes / (blocks * chunks) + 63) / 64 * 64;
        first_.next = next;
        first_.chunks = call.lane_group_bytes / first_.bytes_per_chunk;
      }
    }
    Prefetch of_block(int64_t block) const {
      Prefetch prefetch = first_;
      prefetch.next += block * chunks_ * prefetch.bytes_per_chunk;
      prefetch.chunks -= block * chunks_;
      if (prefetch.chunks <= 0) prefetch.bytes_per_chunk = 0;
      return prefetch;
    }

   private:
    static constexpr int64_t kChunksAhead = 6;
    // A larger panel would push itself out of the second-level cache.
    static constexpr int64_t kMaxPrefetch = 256 << 10;
    Prefetch first_;
    int64_t chunks_;
  };

  // The weight types. block() accumulates kRows rows by kGroups lane groups over all of K, in the order of k whatever
  // the size of the block. It writes the sums to tile [kRows][kGroups][16].
  struct F32 {
    static constexpr int kAccumulators = Ops::kAccumulators;
    static constexpr int64_t kChunk = 16;
    static int64_t chunks(const LinearCall& call) { return (call.k + kChunk - 1) / kChunk; }

    template <int kRows, int kGroups>
    static void block(const LinearCall& call, int64_t row, int64_t group, Prefetch prefetch, float* tile) {
      const auto* w = reinterpret_cast<const float*>(call.weights + group * call.lane_group_bytes);
      const int64_t w_stride = call.k * kLanes;
      const int64_t x_stride = call.input.x_stride;
      const float* x = static_cast<const float*>(call.input.x) + row * x_stride;
      F acc[kRows][kGroups];
      clear<kRows, kGroups>(acc);
      for (int64_t begin = 0; begin < call.k; begin += kChunk) {
        prefetch.template chunk<kGroups>();
        const int64_t end = begin + kChunk < call.k ? begin + kChunk : call.k;
        for (int64_t k = begin; k < end; ++k) {
          F weights[kGroups];
#pragma GCC unroll 4
          for (int g = 0; g < kGroups; ++g) weights[g] = F::load(w + g * w_stride + k * kLanes);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            const F value = F::set1(x[r * x_stride + k]);
#pragma GCC unroll 4
            for (int g = 0; g < kGroups; ++g) acc[r][g] = F::fma(weights[g], value, acc[r][g]);
          }
        }
      }
      store<kRows, kGroups>(acc, tile);
    }
  };

  struct Bf16 {
    static constexpr int kAccumulators = Ops::kAccumulators;
    static constexpr int64_t kChunk = 8;  // Pairs of inputs.
    static int64_t chunks(const LinearCall& call) { return (call.k / 2 + kChunk - 1) / kChunk; }

    template <int kRows, int kGroups>
    static void block(const LinearCall& call, int64_t row, int64_t group, Prefetch prefetch, float* tile) {
      const auto* w = reinterpret_cast<const uint16_t*>(call.weights + group * call.lane_group_bytes);
      const int64_t pairs = call.k / 2;
      const int64_t w_stride = call.k * kLanes;
      const int64_t x_stride = call.input.x_stride;
      const uint16_t* x = static_cast<const uint16_t*>(call.input.x) + row * x_stride;
      F acc[kRows][kGroups];
      clear<kRows, kGroups>(acc);
      for (int64_t begin = 0; begin < pairs; begin += kChunk) {
        prefetch.template chunk<kGroups>();
        const int64_t end = begin + kChunk < pairs ? begin + kChunk : pairs;
        for (int64_t k = begin; k < end; ++k) {
          typename Ops::BfWeights weights[kGroups];
#pragma GCC unroll 4
          for (int g = 0; g < kGroups; ++g) weights[g] = Ops::load_bf16(w + g * w_stride + k * 2 * kLanes);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            const auto pair = Ops::broadcast_bf16(x + r * x_stride + k * 2);
#pragma GCC unroll 4
            for (int g = 0; g < kGroups; ++g) acc[r][g] = Ops::dot_bf16(acc[r][g], weights[g], pair);
          }
        }
      }
      store<kRows, kGroups>(acc, tile);
    }
  };

  // y = sum over groups of x_scale * scale * (q_w . q_x) + minimum * x_sum. For weights without minimums, scale * x_sum
  // replaces the last term. The integer dot product is exact.
  template <WeightType kType, Minimums kMinimums>
  struct Integer {
    static constexpr int kAccumulators = Ops::kIntAccumulators;
    static constexpr Scales kScales = scales_of(kType, kMinimums);
    static constexpr int64_t kBytes = integer_bytes(levels_of(kType).bits());
    static constexpr int64_t kAtOnce = kMinimums == Minimums::kStored ? 1 : kPairGroups;  // See group_offsets().
    static constexpr int64_t kScalesApart = kMinimums == Minimums::kShared ? 0 : kScaleBytes;
    static int64_t chunks(const LinearCall& call) { return call.k / kGroupSize; }

    // Where a group's integers and its scales or codes lie, and where its block of coded groups begins.
    struct Place {
      int64_t integers, scales, block;
    };
    static Place place(int64_t group, int64_t n_groups) {
      if constexpr (kMinimums == Minimums::kCoded) {
        const int64_t block = group / kBlockGroups * block_bytes(kType), at = group % kBlockGroups;
        return {block + block_head_bytes(kType) + at * kBytes, block + kLineBytes + at * code_bytes(kType), block};
      } else {
        const int64_t first = group / kAtOnce * kAtOnce, begin = first / kAtOnce * (kAtOnce * kBytes + kLineBytes);
        const int64_t together = first + kAtOnce <= n_groups ? kAtOnce : 1;
        return {begin + (group - first) * kBytes, begin + together * kBytes + (group - first) * kScalesApart, 0};
      }
    }

    // Loads the scale and the minimum of a group or of its half. A weight without a minimum gets its scale.
    template <int kHalf>
    static void load_line(const uint8_t* scales, const uint8_t* block, F& scale, F& minimum) {
      if constexpr (kScales == Scales::kCodedPairs) {
        Ops::load_code_pairs(scales + kHalf * kLanes, scale, minimum);
        scale = scale * Ops::load_half(block);
        minimum = minimum * Ops::load_half(block + kScaleBytes);
        return;
      }
      if constexpr (kScales == Scales::kPowers) {
        scale = F::load_bf16(reinterpret_cast<const uint16_t*>(scales));
      } else if constexpr (kScales == Scales::kHalves) {
        scale = Ops::load_e4m3(scales + kHalf * kLanes);
      } else if constexpr (kMinimums == Minimums::kCoded) {
        scale = Ops::load_codes(scales + kHalf * kLanes) * Ops::load_half(block + kHalf * kScaleBytes);
      } else {
        scale = Ops::load_half(scales);
      }
      if constexpr (kScales == Scales::kStored) {
        minimum = Ops::load_half(scales + kScaleBytes);
      } else if constexpr (kScales == Scales::kShared) {
        minimum = Ops::load_half(scales + kScaleBytes) * scale;
      } else if constexpr (kScales == Scales::kCodedLines) {
        minimum = Ops::load_codes(scales + kLanes) * Ops::load_half(block + kScaleBytes);
      } else {
        minimum = scale;
      }
    }

    template <int kRows, int kGroups>
    static void block(const LinearCall& call, int64_t row, int64_t group, Prefetch prefetch, float* tile) {
      const auto* w = reinterpret_cast<const uint8_t*>(call.weights + group * call.lane_group_bytes);
      constexpr int64_t kSums = scales_halves(kScales) ? 2 : 1;
      const int64_t n_groups = call.k / kGroupSize, sums_stride = kSums * n_groups;
      const int8_t* x = call.x_int8 + row * call.k;
      const float* x_scale = call.x_scale + row * n_groups;
      const float* x_sum = call.x_sum + row * sums_stride;
      F acc[kRows][kGroups];
      clear<kRows, kGroups>(acc);
      for (int64_t k = 0; k < n_groups; ++k) {
        prefetch.template chunk<kGroups>();
        const Place at = place(k, n_groups);
#pragma GCC unroll 4
        for (int g = 0; g < kGroups; ++g) {
          const uint8_t* const of_group = w + g * call.lane_group_bytes;
          const uint8_t* const base = of_group + at.integers;
          const int8_t* const values = x + k * kGroupSize;
          F scale, minimum;
          // Without this, GCC keeps the broadcasts of x for the next lane group and spills them to the stack. As
          // operands in memory they cost nothing.
          asm volatile("" ::: "memory");
          // Rows are the inner loop: their sums are independent chains, which hide the latency of the dot product.
          typename Ops::Int sums[kRows];
          const auto add = [&](int64_t half) __attribute__((always_inline)) {
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) {
              const F dot = Ops::to_float(sums[r]) * F::set1(x_scale[r * n_groups + k]);
              const F x_total = F::set1(x_sum[r * sums_stride + kSums * k + half]);
              if constexpr (kSums == 2 && !has_minimums(kScales)) {
                acc[r][g] = F::fma(dot + x_total, scale, acc[r][g]);
              } else {
                acc[r][g] = F::fma(dot, scale, acc[r][g]);
                acc[r][g] = F::fma(minimum, x_total, acc[r][g]);
              }
            }
          };
          if constexpr (kSums == 1) {
            multiply<kType, 0, 8, kRows>(sums, base, values, call.k);
            load_line<0>(of_group + at.scales, of_group + at.block, scale, minimum);
            add(0);
          } else {
            multiply<kType, 0, 4, kRows>(sums, base, values, call.k);
            load_line<0>(of_group + at.scales, of_group + at.block, scale, minimum);
            add(0);
            multiply<kType, 4, 4, kRows>(sums, base, values, call.k);
            load_line<1>(of_group + at.scales, of_group + at.block, scale, minimum);
            add(1);
          }
        }
      }
      store<kRows, kGroups>(acc, tile);
    }
  };

  // Applies factors, bias and epilogue to a row's sums y [kGroups][16] and writes the results.
  template <int kGroups>
  static void finish_row(const LinearCall& call, int64_t row, int64_t group, float* y) {
    constexpr int64_t kWidth = kGroups * kLanes;
    const int64_t lanes_left = call.n - group * kLanes;
    const int64_t lanes = kWidth < lanes_left ? kWidth : lanes_left;
    if (call.row_factors != nullptr) {
      for (int64_t i = 0; i < lanes; ++i) y[i] *= call.row_factors[group * kLanes + i];
    }
    if (call.output.bias != nullptr) {
      for (int64_t i = 0; i < lanes; ++i) y[i] += call.output.bias[group * kLanes + i];
    }
    if constexpr (kGroups > 1) {
      if (is_gated(call.output.epilogue)) return gated<kGroups>(call, row, group, y);
    }
    float* out = static_cast<float*>(call.output.out) + row * call.output.stride + group * kLanes;
    if (lanes < kWidth) {
      for (int64_t i = 0; i < lanes; ++i) out[i] = call.output.epilogue == Epilogue::kAdd ? out[i] + y[i] : y[i];
      return;
    }
    for (int64_t i = 0; i < kWidth; i += kLanes) {
      F value = F::load(y + i);
      if (call.output.epilogue == Epilogue::kAdd) value = F::load(out + i) + value;
      value.store(out + i);
    }
  }

  // Computes a whole tile. The outer loop runs over panels of lane groups, so that each panel is read from memory once
  // and then stays in the cache while the rows pass over it.
  template <class Type>
  static void product(const LinearCall& call, const LinearTile& tile) {
    const int64_t rows = tile.row_end - tile.row_begin;
    int64_t blocks = (rows + kMaxRows<Type> - 1) / kMaxRows<Type>;
    // Two blocks of wide panels, where one requests the next panel while the other computes, beat a single block that
    // waits for memory. There must be enough rows to make up for reading the panel twice.
    if (blocks == 1 && rows * 3 > Type::kAccumulators) blocks = 2;
    const int64_t widest = panel_groups<Type>((rows + blocks - 1) / blocks);
    int64_t group = tile.group_begin;
    while (group < tile.group_end) {
      int64_t groups = widest;
      while (groups > tile.group_end - group) groups /= 2;
      const PanelPrefetch panel(call, tile, group, groups, blocks, Type::chunks(call));
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t begin = tile.row_begin + rows * b / blocks;
        const int64_t end = tile.row_begin + rows * (b + 1) / blocks;
        rows_block<Type, kMaxRows<Type>>(call, begin, static_cast<int>(end - begin), group, static_cast<int>(groups),
                                         panel.of_block(b));
      }
      group += groups;
    }
  }

 private:
  // At least two lane groups, so that SwiGLU finds gate and up in one block.
  template <class Type>
  static constexpr int kMaxRows = Type::kAccumulators / 2;

  template <class Type>
  static constexpr int panel_groups(int64_t rows) {
    return rows * 4 <= Type::kAccumulators ? 4 : 2;
  }

  template <int kRows, int kGroups>
  static void clear(F (&acc)[kRows][kGroups]) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) acc[r][g] = F::zero();
    }
  }

  template <int kRows>
  static void clear_integers(typename Ops::Int (&sums)[kRows]) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sums[r] = Ops::zero_int();
  }

  // Sets sums to the products of quads [kFirst, kFirst + kCount) of a group with kRows rows of x, in the level's own
  // way if it has one. x: the first row at the group's first input.
  template <WeightType kType, int kFirst, int kCount, int kRows>
  static void multiply(typename Ops::Int (&sums)[kRows], const uint8_t* base, const int8_t* x, int64_t x_stride) {
    if constexpr (requires { Ops::template multiply<kType, kFirst, kCount>(sums, base, x, x_stride); }) {
      Ops::template multiply<kType, kFirst, kCount>(sums, base, x, x_stride);
    } else {
      constexpr bool kNarrow = levels_of(kType).highest < 128;
      clear_integers<kRows>(sums);
      each_quad<kFirst, kCount>([&]<int kQuad>() __attribute__((always_inline)) {
        const typename Ops::Bytes weights = load_levels<Ops, kType, kQuad>(base);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          sums[r] = Ops::template dot_int8<kNarrow>(sums[r], weights, x + r * x_stride + 4 * kQuad);
        }
      });
    }
  }

  template <int kRows, int kGroups>
  static void store(const F (&acc)[kRows][kGroups], float* tile) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) acc[r][g].store(tile + (r * kGroups + g) * kLanes);
    }
  }

  template <class Type, int kRows>
  static void rows_block(const LinearCall& call, int64_t row, int rows, int64_t group, int groups, Prefetch prefetch) {
    if (rows < kRows) {
      if constexpr (kRows > 1) rows_block<Type, kRows - 1>(call, row, rows, group, groups, prefetch);
      return;
    }
    // A tile that ends early leaves fewer groups than fit.
    constexpr int kMax = panel_groups<Type>(kRows);
    if constexpr (kMax >= 4) {
      if (groups == 4) return finish_block<Type, kRows, 4>(call, row, group, prefetch);
    }
    if (groups == 2) return finish_block<Type, kRows, 2>(call, row, group, prefetch);
    finish_block<Type, kRows, 1>(call, row, group, prefetch);
  }

  template <class Type, int kRows, int kGroups>
  [[gnu::noinline]] static void finish_block(const LinearCall& call, int64_t row, int64_t group, Prefetch prefetch) {
    alignas(64) float tile[kRows * kGroups * kLanes];
    Type::template block<kRows, kGroups>(call, row, group, prefetch, tile);
    for (int r = 0; r < kRows; ++r) finish_row<kGroups>(call, row + r, group, tile + r * kGroups * kLanes);
  }

  template <int kGroups>
  static void gated(const LinearCall& call, int64_t row, int64_t group, const float* y) {
    const bool gelu = call.output.epilogue == Epilogue::kGeGlu,
               clamped = call.output.epilogue == Epilogue::kClampedSwiGlu;
    const F limit = F::set1(kClampedSwiGluLimit), factor = F::set1(clamped ? -kClampedSwiGluAlpha : -1.0f);
    for (int g = 0; g < kGroups; g += 2) {
      F gate = F::load(y + g * kLanes);
      F up = F::load(y + (g + 1) * kLanes);
      if (clamped) {
        gate = F::min(gate, limit);
        up = F::max(F::min(up, limit), F::set1(-kClampedSwiGluLimit)) + F::set1(1.0f);
      }
      // silu(x) = x / (1 + exp(-x)), and gelu(x) = x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3))).
      const F exponent =
          gelu ? gate * F::fma(gate * gate, F::set1(-0.0713548162726f), F::set1(-1.59576912161f)) : gate * factor;
      const F value = gate / (F::set1(1.0f) + exp(exponent)) * up;
      const int64_t at = row * call.output.stride + (group + g) / 2 * kLanes;
      if (call.gated_bf16) {
        value.store_bf16(static_cast<uint16_t*>(call.output.out) + at);
      } else {
        value.store(static_cast<float*>(call.output.out) + at);
      }
    }
  }

  // Returns exp(x) = 2^n exp(r), |r| <= ln(2)/2, by Taylor's series up to r^7 / 7!. Its remainder is below 1e-8.
  static F exp(F x) {
    x = F::max(F::min(x, F::set1(88.0f)), F::set1(-87.0f));
    const F n = F::round(x * F::set1(1.44269504f));
    F r = F::fma(n, F::set1(-0.693359375f), x);  // ln(2) in two parts: the first is exact times n
    r = F::fma(n, F::set1(2.12194440e-4f), r);
    F p = F::set1(1.0f / 5040);
    p = F::fma(p, r, F::set1(1.0f / 720));
    p = F::fma(p, r, F::set1(1.0f / 120));
    p = F::fma(p, r, F::set1(1.0f / 24));
    p = F::fma(p, r, F::set1(1.0f / 6));
    p = F::fma(p, r, F::set1(0.5f));
    p = F::fma(p, r, F::set1(1.0f));
    p = F::fma(p, r, F::set1(1.0f));
    return F::ldexp(p, n);
  }
};

template <class F>
void measure_int4(const float* w, const float* scale, const float* minimum, const float* inverse, Int4Fit& fit) {
  F error = F::zero(), sum_q = F::zero(), sum_qq = F::zero(), sum_qw = F::zero();
  for (int64_t k = 0; k < kGroupSize; ++k) {
    const F weight = F::load(w + k * kLanes);
    const F level = (weight - F::load(minimum)) * F::load(inverse);
    const F q = F::round(F::min(F::max(level, F::zero()), F::set1(15.0f)));
    const F difference = F::fma(F::load(scale), q, F::load(minimum)) - weight;
    error = F::fma(difference, difference, error);
    sum_q = sum_q + q;
    sum_qq = F::fma(q, q, sum_qq);
    sum_qw = F::fma(q, weight, sum_qw);
  }
  error.store(fit.error);
  sum_q.store(fit.sum_q);
  sum_qq.store(fit.sum_qq);
  sum_qw.store(fit.sum_qw);
}

template <class Ops>
constexpr LinearKernels make_linear_kernels() {
  using P = Products<Ops>;
  LinearKernels kernels{};
  kernels.f32 = &P::template product<typename P::F32>;
  kernels.bf16 = &P::template product<typename P::Bf16>;
  const auto add = [&]<WeightType kType, Minimums... kMinimums>() {
    ((kernels.integers[static_cast<int>(kType)][static_cast<int>(kMinimums)] =
          &P::template product<typename P::template Integer<kType, kMinimums>>),
     ...);
  };
  constexpr Minimums kStored = Minimums::kStored, kCentred = Minimums::kCentred, kCoded = Minimums::kCoded,
                     kShared = Minimums::kShared;
  add.template operator()<WeightType::kInt8, kStored, kCentred>();
  add.template operator()<WeightType::kInt6, kCoded>();
  add.template operator()<WeightType::kInt5, kStored, kCentred, kCoded>();
  add.template operator()<WeightType::kInt4, kStored, kCentred, kCoded, kShared>();
  add.template operator()<WeightType::kInt3, kCoded>();
  add.template operator()<WeightType::kInt2, kCoded>();
  add.template operator()<WeightType::kIq4, kCentred, kCoded>();
  add.template operator()<WeightType::kMxfp4, kCentred>();
  add.template operator()<WeightType::kNvfp4, kCentred>();
  kernels.quantize = &Ops::quantize;
  kernels.measure_int4 = &measure_int4<typename Ops::F>;
  return kernels;
}

}  // namespace smartkv::kernels
