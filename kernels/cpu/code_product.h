// Products of weights and codes on register tiles. Included by attention_codes.h.
#pragma once

namespace smartkv::kernels {
namespace {

// Computes C [Rows][16 Groups] (+)= offset + step * sum, for the rows of bytes from 16 First on.
template <int Rows, int First, int Groups>
void code_tile(const CodeRows& x, int64_t row, const CodePart& part, int64_t extent, float* c, int64_t ldc,
               bool accumulate) {
  Sums sums[Rows][Groups];
  for (int r = 0; r < Rows; ++r) {
    for (int g = 0; g < Groups; ++g) sums[r][g] = Sums::zero();
  }
  const uint8_t* weights = x.weights + row * 2 * x.n;
  for (int64_t s = 0; s < part.quads; ++s) {
    Codes codes[Groups];
    for (int g = 0; g < Groups; ++g) codes[g] = Codes::load(part.bytes + s * 4 * extent + 64 * (First + g));
    for (int r = 0; r < Rows; ++r) {
      const Weights quad = Weights::load(weights + r * 2 * x.n, x.n, 4 * s);
      for (int g = 0; g < Groups; ++g) sums[r][g].add(codes[g], quad);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    const Vec16 step = Vec16::set1(x.steps[row + r]), offset = Vec16::set1(x.offsets[row + r]);
    for (int g = 0; g < Groups; ++g) {
      float* to = c + (row + r) * ldc + 16 * (First + g);
      Vec16::fma(sums[r][g].value(), step, accumulate ? Vec16::load(to) + offset : offset).store(to);
    }
  }
}

// Computes C [rows][extent] = (or +=) offsets + x codes.
inline void code_product(const CodeRows& x, const CodePart& part, int64_t extent, float* c, int64_t ldc,
                         bool accumulate) {
  for (int64_t block = 0; block < extent / 64; ++block) {
    const CodePart from{part.bytes + 256 * block, part.quads, part.columns};  // The present block of 64 rows.
    for (int64_t row = 0; row < x.rows;) {
      const auto tile = [&]<int Rows>(std::integral_constant<int, Rows>) {
        unrolled<4 / kCodeGroups>([&](auto g) {
          code_tile<Rows, g * kCodeGroups, kCodeGroups>(x, row, from, extent, c + 64 * block, ldc, accumulate);
        });
        row += Rows;
      };
      const int64_t left = x.rows - row;
      if (left >= kCodeRows) {
        tile(std::integral_constant<int, kCodeRows>{});
      } else if (left >= 3) {
        tile(std::integral_constant < int, kCodeRows<3 ? kCodeRows : 3>{});
      } else if (left == 2) {
        tile(std::integral_constant < int, kCodeRows<2 ? kCodeRows : 2>{});
      } else {
        tile(std::integral_constant<int, 1>{});
      }
    }
  }
}

}  // namespace
}  // namespace smartkv::kernels
