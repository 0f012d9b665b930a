// Functions of sixteen floats, the same at every level. Include after one vec16_*.h.
#pragma once

namespace smartkv::kernels {
namespace {

// 2^x, relative error below 2e-7; x below -126 gives 0, x above 127 saturates.
inline Vec16 exp2(Vec16 x) {
  x = Vec16::min(Vec16::max(x, Vec16::set1(-127.0f)), Vec16::set1(127.0f));
  const Vec16 n = Vec16::round(x);
  const Vec16 f = x - n;  // [-0.5, 0.5]
  // Minimax polynomial of 2^f on that interval, degree 6.
  Vec16 p = Vec16::set1(1.535336188319500e-4f);
  p = Vec16::fma(p, f, Vec16::set1(1.339887440266574e-3f));
  p = Vec16::fma(p, f, Vec16::set1(9.618437357674640e-3f));
  p = Vec16::fma(p, f, Vec16::set1(5.550332471162809e-2f));
  p = Vec16::fma(p, f, Vec16::set1(2.402264791363012e-1f));
  p = Vec16::fma(p, f, Vec16::set1(6.931472028550421e-1f));
  p = Vec16::fma(p, f, Vec16::set1(1.0f));
  return Vec16::ldexp(p, n);
}

}  // namespace
}  // namespace smartkv::kernels
