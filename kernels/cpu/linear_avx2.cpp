// AVX2 with FMA and F16C: 16 lanes are two registers.
#include <immintrin.h>

#include "kernels/cpu/linear_tile.h"
#include "kernels/cpu/vec16_avx2.h"

namespace smartkv::kernels {
namespace {

struct Ops {
  using F = Vec16;
  struct BfWeights {
    F even, odd;
  };
  struct Int {
    __m256i a, b;
  };
  using Bytes = Int;
  static constexpr int kAccumulators = 8;
  static constexpr int kIntAccumulators = 12;

  static F load_half(const void* p) {
    const auto* halves = static_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
  }
  static int load_word(const void* p) {
    int word;
    __builtin_memcpy(&word, p, sizeof(word));
    return word;
  }
  static __m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

  // A pair as two floats: the bits of a bf16 are the upper half of its f32.
  static __m256 even(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
  static __m256 odd(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static BfWeights split(__m256i a, __m256i b) { return {{even(a), even(b)}, {odd(a), odd(b)}}; }
  static BfWeights load_bf16(const uint16_t* p) { return split(load_256(p), load_256(p + 16)); }
  static BfWeights broadcast_bf16(const uint16_t* p) {
    const __m256i pair = _mm256_set1_epi32(load_word(p));
    return split(pair, pair);
  }
  static F dot_bf16(F acc, BfWeights w, BfWeights x) { return F::fma(w.even, x.even, F::fma(w.odd, x.odd, acc)); }

  static Int zero_int() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static F to_float(Int x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  static Bytes load_bytes(const uint8_t* p) { return {load_256(p), load_256(p + 32)}; }
  // Shifts to the right, or to the left if kRight is negative, and keeps the bits of kMask.
  template <int kRight, int kMask>
  static __m256i pick(__m256i bytes) {
    const __m256i shifted = kRight < 0 ? _mm256_slli_epi16(bytes, kRight < 0 ? -kRight : 0)
                                       : _mm256_srli_epi16(bytes, kRight < 0 ? 0 : kRight);
    return _mm256_and_si256(shifted, _mm256_set1_epi8(kMask));
  }
  template <int kRight, int kMask>
  static Bytes pick(Bytes bytes) {
    return {pick<kRight, kMask>(bytes.a), pick<kRight, kMask>(bytes.b)};
  }
  static Bytes either(Bytes x, Bytes y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
  static Bytes look_up(const uint8_t* table, Bytes bytes) {
    const __m256i entries = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm256_shuffle_epi8(entries, bytes.a), _mm256_shuffle_epi8(entries, bytes.b)};
  }
  static F floats(__m128i low, __m128i high) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(low)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(high))};
  }
  static void load_code_pairs(const uint8_t* p, F& low, F& high) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), mask = _mm_set1_epi8(15);
    const __m128i lower = _mm_and_si128(codes, mask), upper = _mm_and_si128(_mm_srli_epi16(codes, 4), mask);
    low = floats(lower, _mm_srli_si128(lower, 8));
    high = floats(upper, _mm_srli_si128(upper, 8));
  }
  // Halves of floats of 4 exponent and 3 mantissa bits. As the upper bits of an f16 these stand for 2^-8 of their
  // values.
  static F load_e4m3(const uint8_t* p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i words = _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 7);
    const F scaled = {_mm256_cvtph_ps(_mm256_castsi256_si128(words)),
                      _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1))};
    return scaled * F::set1(128.0f);
  }
  static F load_codes(const uint8_t* p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)))};
  }
  static __m256i broadcast(const int8_t* x) { return _mm256_set1_epi32(load_word(x)); }
  // Pointers to the rows of x. The asm keeps GCC from computing them again for each value.
  template <int kRows>
  struct RowPointers {
    const int8_t* of[kRows];
    RowPointers(const int8_t* x, int64_t stride) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        of[r] = x + r * stride;
        asm("" : "+r"(of[r]));
      }
    }
  };
  static __m256i dwords(__m256i words, short factor) { return _mm256_madd_epi16(words, _mm256_set1_epi16(factor)); }

  // Computes sum + words in this order. GCC would rather add in pairs, and spill the values that wait.
  static void add_words(__m256i& sum, __m256i words) {
    sum = _mm256_add_epi16(sum, words);
    asm("" : "+x"(sum));
  }

  // maddubs adds pairs in 16 bits. Returns how many quads of levels up to `highest` can be added there:
  // quads * 2 * highest * 127 < 2^15.
  static constexpr int quads_together(int highest, int count) {
    int quads = 1;
    while (2 * quads <= count && 2 * quads * 2 * highest * 127 < 1 << 15) quads *= 2;
    return quads;
  }

  // Adds the products of quads [kFirst, kFirst + kCount) of the levels that `load` returns, in 16 bits.
  template <int kFirst, int kCount, int kRows, class Load>
  [[gnu::always_inline]] static inline void add_half_products(__m256i (&words)[kRows], const RowPointers<kRows>& rows,
                                                              const Load& load) {
    each_quad<kFirst, kCount>([&]<int kQuad>() __attribute__((always_inline)) {
      const __m256i levels = load.template operator()<kQuad>();
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m256i products = _mm256_maddubs_epi16(levels, broadcast(rows.of[r] + 4 * kQuad));
        if (kQuad == kFirst) {
          words[r] = products;
        } else {
          add_words(words[r], products);
        }
      }
    });
  }

  // Sets sums[r] to the products of quads [kFirst, kFirst + kCount) of a group with row r of x.
  template <WeightType kType, int kFirst, int kCount, int kRows>
  static void multiply(Int (&sums)[kRows], const uint8_t* base, const int8_t* x, int64_t x_stride) {
    const RowPointers<kRows> rows(x, x_stride);
    constexpr int kTogether = quads_together(levels_of(kType).highest, kCount);
    if constexpr (levels_of(kType).highest > 127) {
      // Levels of 8 bits are multiplied as two of 4 bits.
      const __m256i mask = _mm256_set1_epi8(15);
      const auto half = [&](__m256i Int::*to) {
        __m256i low[kRows], high[kRows];
        each_quad<kFirst, kCount>([&]<int kQuad>() __attribute__((always_inline)) {
          const __m256i both = load_levels<Ops, kType, kQuad>(base).*to;
          const __m256i l = _mm256_and_si256(both, mask), h = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const __m256i value = broadcast(rows.of[r] + 4 * kQuad);
            const __m256i a = _mm256_maddubs_epi16(l, value), b = _mm256_maddubs_epi16(h, value);
            if (kQuad == kFirst) {
              low[r] = a;
              high[r] = b;
            } else {
              add_words(low[r], a);
              add_words(high[r], b);
            }
          }
        });
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) sums[r].*to = _mm256_add_epi32(dwords(low[r], 1), dwords(high[r], 16));
      };
      half(&Int::a);
      asm volatile("" ::: "memory");
      half(&Int::b);
    } else if constexpr (kTogether == kCount) {
      Int words[kRows];
      each_quad<kFirst, kCount>([&]<int kQuad>() __attribute__((always_inline)) {
        const Bytes levels = load_levels<Ops, kType, kQuad>(base);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const __m256i value = broadcast(rows.of[r] + 4 * kQuad);
          const __m256i a = _mm256_maddubs_epi16(levels.a, value), b = _mm256_maddubs_epi16(levels.b, value);
          if (kQuad == kFirst) {
            words[r] = {a, b};
          } else {
            add_words(words[r].a, a);
            add_words(words[r].b, b);
          }
        }
      });
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sums[r] = {dwords(words[r].a, 1), dwords(words[r].b, 1)};
    } else {
      // One half of the lanes after the other, so that sums in 16 and in 32 bits fit the registers.
      const auto half = [&](__m256i Int::*to) {
        const auto load = [&]<int kQuad>() __attribute__((always_inline)) {
          return load_levels<Ops, kType, kQuad>(base).*to;
        };
        const auto part = [&]<int kBegin>() __attribute__((always_inline)) {
          __m256i words[kRows];
          add_half_products<kBegin, kTogether>(words, rows, load);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const __m256i sum = dwords(words[r], 1);
            sums[r].*to = kBegin == kFirst ? sum : _mm256_add_epi32(sums[r].*to, sum);
          }
        };
        static_assert(kCount / kTogether == 2);
        part.template operator()<kFirst>();
        part.template operator()<kFirst + kTogether>();
      };
      half(&Int::a);
      asm volatile("" ::: "memory");
      half(&Int::b);
    }
  }

  static __m256 widen(const uint16_t* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static void quantize(const uint16_t* x, int64_t k, int8_t* q, float* scale, float* sum) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (int64_t begin = 0; begin < k; begin += kGroupSize) {
      __m256 values[4];
      F magnitude = F::zero();
      for (int i = 0; i < 4; ++i) {
        values[i] = widen(x + begin + 8 * i);
        magnitude.a = _mm256_max_ps(magnitude.a, _mm256_andnot_ps(sign, values[i]));
      }
      const float largest = magnitude.reduce_max();
      const float step = largest / 127.0f;
      const __m256 inverse = _mm256_set1_ps(largest > kSmallestMax ? 127.0f / largest : 0.0f);
      int32_t total = 0;
      for (int i = 0; i < 4; ++i) {
        alignas(32) int32_t integers[8];
        _mm256_store_si256(reinterpret_cast<__m256i*>(integers), _mm256_cvtps_epi32(_mm256_mul_ps(values[i], inverse)));
        for (int j = 0; j < 8; ++j) {
          q[begin + 8 * i + j] = static_cast<int8_t>(integers[j]);
          total += integers[j];
        }
      }
      scale[begin / kGroupSize] = step;
      sum[begin / kGroupSize] = step * static_cast<float>(total);
    }
  }
};

using Blocks = Products<Ops>;

// Products in f32 of f32 or bf16 weights. x is f32 for both, so that a broadcast is a load. Sixteen registers hold the
// sums of six rows by one lane group, beside its weights. A block of rows goes through the lane groups of a panel one
// after another. All blocks go through a part of kPart inputs before the next part begins. A part is 64 KB of the
// panel, which stay in the second-level cache meanwhile.
template <class Weight>
struct Floats {
  static constexpr int64_t kStep = sizeof(float) / sizeof(Weight);  // Inputs of a lane that lie together.
  static constexpr int64_t kChunk = 32;                             // Inputs of a chunk.
  static constexpr int64_t kPart = 2048 / sizeof(Weight);
  static constexpr int64_t kAheadBytes = 6 * kChunk * kLanes * sizeof(Weight);
  static constexpr int kMaxRows = 6;
  static constexpr int64_t kMaxSums = 512;  // Most rows that have sums in a panel.

  // Inputs [begin, end) of a panel, and the memory to prefetch meanwhile: `bytes` bytes from `next` on with every
  // chunk.
  struct Part {
    int64_t begin, end;
    const std::byte* next;
    int64_t bytes;
  };

  // Computes sums [kRows][sums_stride] (+)= the products of kRows rows with kGroups adjacent lane groups, 16 kGroups
  // sums a row.
  template <int kRows, int kGroups>
  [[gnu::noinline]] static void add(const LinearCall& call, int64_t row, int64_t group, const Part& part, float* sums,
                                    int64_t sums_stride) {
    constexpr int kHalves = 2 * kGroups;  // Halves of lane groups, eight lanes each.
    const auto* w = reinterpret_cast<const Weight*>(call.weights + group * call.lane_group_bytes);
    const int64_t w_stride = call.lane_group_bytes / static_cast<int64_t>(sizeof(Weight));
    __m256 acc[kRows][kHalves];
    const float* x[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      x[r] = call.x_f32 + (row + r) * call.x_f32_stride;
      asm("" : "+r"(x[r]));  // Keeps GCC from computing it again for each value.
#pragma GCC unroll 8
      for (int h = 0; h < kHalves; ++h) {
        acc[r][h] = part.begin == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(sums + r * sums_stride + h * 8);
      }
    }
    const auto multiply = [&](const __m256(&weights)[kHalves], int64_t at) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m256 value = _mm256_broadcast_ss(x[r] + at);
#pragma GCC unroll 8
        for (int h = 0; h < kHalves; ++h) acc[r][h] = _mm256_fmadd_ps(weights[h], value, acc[r][h]);
      }
    };
    const std::byte* next = part.next;
    for (int64_t begin = part.begin; begin < part.end; begin += kChunk) {
      for (int64_t i = 0; i < part.bytes; i += 64) {
#pragma GCC unroll 4
        for (int g = 0; g < kGroups; ++g) Vec16::prefetch_l2(next + g * call.lane_group_bytes + i);
      }
      next += part.bytes;
      const int64_t end = begin + kChunk < part.end ? begin + kChunk : part.end;
      for (int64_t k = begin; k < end; k += kStep) {
        const Weight* const at = w + k * kLanes;
        __m256 weights[kHalves];
        if constexpr (kStep == 1) {
#pragma GCC unroll 8
          for (int h = 0; h < kHalves; ++h) weights[h] = _mm256_loadu_ps(at + h / 2 * w_stride + h % 2 * 8);
          multiply(weights, k);
        } else {
#pragma GCC unroll 8
          for (int h = 0; h < kHalves; ++h) weights[h] = Ops::odd(Ops::load_256(at + h / 2 * w_stride + h % 2 * 16));
          multiply(weights, k + 1);
#pragma GCC unroll 8
          for (int h = 0; h < kHalves; ++h) weights[h] = Ops::even(Ops::load_256(at + h / 2 * w_stride + h % 2 * 16));
          multiply(weights, k);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int h = 0; h < kHalves; ++h) _mm256_storeu_ps(sums + r * sums_stride + h * 8, acc[r][h]);
    }
  }

  template <int kRows, int kGroups>
  static void rows_block(int rows, const LinearCall& call, int64_t row, int64_t group, const Part& part, float* sums,
                         int64_t sums_stride) {
    if (rows == kRows) return add<kRows, kGroups>(call, row, group, part, sums, sums_stride);
    if constexpr (kRows > 1) rows_block<kRows - 1, kGroups>(rows, call, row, group, part, sums, sums_stride);
  }

  // Computes kGroups lane groups, kSideBySide at a time. This is 1 except for one or two rows, because the sums of so
  // few rows are too few chains of additions to keep the core busy. A single block waits for the memory of its panel
  // and prefetches what it reads kAheadBytes later. Several blocks share the prefetch of the next part.
  template <int kGroups, int kSideBySide>
  static void panel(const LinearCall& call, const LinearTile& tile, int64_t group) {
    constexpr int kBlockRows = kSideBySide == 1 ? kMaxRows : 4 / kSideBySide;
    constexpr int64_t kStride = kGroups * kLanes, kInputBytes = kLanes * sizeof(Weight);
    const int64_t rows = tile.row_end - tile.row_begin, blocks = (rows + kMaxRows - 1) / kMaxRows;
    const int64_t part_inputs = blocks == 1 ? call.k : kPart;
    alignas(64) float sums[kMaxSums * kStride];
    for (int64_t begin = 0; begin < call.k; begin += part_inputs) {
      const int64_t end = begin + part_inputs < call.k ? begin + part_inputs : call.k;
      const int64_t chunks = (end - begin + kChunk - 1) / kChunk;
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t first = rows * b / blocks, n = rows * (b + 1) / blocks - first;
        for (int g = 0; g < kGroups; g += kSideBySide) {
          const std::byte* const weights = call.weights + (group + g) * call.lane_group_bytes;
          Part part{begin, end, nullptr, 0};
          if (blocks == 1) {
            part.bytes = kChunk * kInputBytes;
            part.next = weights + kAheadBytes;
          } else if (const bool last = end == call.k; !last || group + g + kGroups < tile.group_end) {
            const int64_t share = (part_inputs * kInputBytes / (blocks * chunks) + 63) / 64 * 64,
                          done = b * chunks * share;
            part.bytes = done < part_inputs * kInputBytes ? share : 0;
            part.next = weights + (last ? kGroups * call.lane_group_bytes : end * kInputBytes) + done;
          }
          rows_block<kBlockRows, kSideBySide>(static_cast<int>(n), call, tile.row_begin + first, group + g, part,
                                              sums + first * kStride + g * kLanes, kStride);
        }
      }
    }
    for (int64_t r = 0; r < rows; ++r) Blocks::finish_row<kGroups>(call, tile.row_begin + r, group, sums + r * kStride);
  }

  static void product(const LinearCall& call, const LinearTile& tile) {
    for (int64_t begin = tile.row_begin; begin < tile.row_end; begin += kMaxSums) {
      const int64_t end = begin + kMaxSums < tile.row_end ? begin + kMaxSums : tile.row_end;
      const LinearTile of{begin, end, tile.group_begin, tile.group_end};
      for (int64_t group = tile.group_begin; group < tile.group_end;) {
        const int64_t left = tile.group_end - group;
        if (end - begin == 1 && left >= 4) {
          panel<4, 4>(call, of, group);
          group += 4;
        } else if (left >= 2) {
          end - begin <= 2 ? panel<2, 2>(call, of, group) : panel<2, 1>(call, of, group);
          group += 2;
        } else {
          panel<1, 1>(call, of, group);
          group += 1;
        }
      }
    }
  }
};

void widen(const uint16_t* x, int64_t k, float* out) {
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) _mm256_storeu_ps(out + i, Ops::widen(x + i));
  for (; i < k; ++i) {
    const uint32_t bits = static_cast<uint32_t>(x[i]) << 16;
    __builtin_memcpy(out + i, &bits, sizeof bits);
  }
}

constexpr LinearKernels with_floats(LinearKernels kernels) {
  kernels.f32 = &Floats<float>::product;
  kernels.bf16 = &Floats<uint16_t>::product;
  kernels.widen = &widen;
  return kernels;
}

}  // namespace

constinit const LinearKernels kLinearAvx2 = with_floats(make_linear_kernels<Ops>());

}  // namespace smartkv::kernels
