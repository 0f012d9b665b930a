// Functions of sixteen floats, the same at every level. Include after one vec16_*.h.
#pragma once

namespace smartkv::kernels {
namespace {

// Returns 2^x for x of at most 127, with a relative error below 2e-7. x below -126 gives 0.
inline Vec16 exp2(Vec16 x) {
  const Vec16 n = Vec16::round(x);
  const Vec16 f = x - n;  // [-0.5, 0.5]
  // Minimax polynomial of 2^f on that interval, degree 5, exact at 0.
  Vec16 p = Vec16::set1(1.3264727197419357e-3f);
  p = Vec16::fma(p, f, Vec16::set1(9.671512639654236e-3f));
  p = Vec16::fma(p, f, Vec16::set1(5.550733743251374e-2f));
  p = Vec16::fma(p, f, Vec16::set1(2.402224208537501e-1f));
  p = Vec16::fma(p, f, Vec16::set1(6.931469775991638e-1f));
  p = Vec16::fma(p, f, Vec16::set1(1.0f));
  return Vec16::ldexp(p, n);
}

// Returns tanh(x) with an absolute error below 3e-7.
inline Vec16 tanh(Vec16 x) {
  const Vec16 one = Vec16::set1(1.0f), two = Vec16::set1(2.0f);
  const Vec16 exponent = Vec16::max(Vec16::min(x * Vec16::set1(2.88539008f), Vec16::set1(60.0f)), Vec16::set1(-60.0f));
  return one - two / (exp2(exponent) + one);  // exp(2 x) = 2^(2 log2(e) x)
}

}  // namespace
}  // namespace smartkv::kernels
