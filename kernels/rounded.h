// Arithmetic for code that must give the same bits on the host and on a device. Each operation is rounded by itself;
// without these functions nvcc would fuse a product with a sum.
#pragma once

#ifdef __CUDACC__
#define SMARTKV_HOST_DEVICE __host__ __device__
#else
#define SMARTKV_HOST_DEVICE
#endif

namespace smartkv::rounded {

#ifdef __CUDA_ARCH__
SMARTKV_HOST_DEVICE inline float add(float a, float b) { return __fadd_rn(a, b); }
SMARTKV_HOST_DEVICE inline float subtract(float a, float b) { return __fsub_rn(a, b); }
SMARTKV_HOST_DEVICE inline float multiply(float a, float b) { return __fmul_rn(a, b); }
SMARTKV_HOST_DEVICE inline float divide(float a, float b) { return __fdiv_rn(a, b); }
SMARTKV_HOST_DEVICE inline double add(double a, double b) { return __dadd_rn(a, b); }
SMARTKV_HOST_DEVICE inline double subtract(double a, double b) { return __dsub_rn(a, b); }
SMARTKV_HOST_DEVICE inline double multiply(double a, double b) { return __dmul_rn(a, b); }
SMARTKV_HOST_DEVICE inline double divide(double a, double b) { return __ddiv_rn(a, b); }
#else
template <typename T>
SMARTKV_HOST_DEVICE constexpr T add(T a, T b) {
  return a + b;
}
template <typename T>
SMARTKV_HOST_DEVICE constexpr T subtract(T a, T b) {
  return a - b;
}
template <typename T>
SMARTKV_HOST_DEVICE constexpr T multiply(T a, T b) {
  return a * b;
}
template <typename T>
SMARTKV_HOST_DEVICE constexpr T divide(T a, T b) {
  return a / b;
}
#endif

}  // namespace smartkv::rounded
