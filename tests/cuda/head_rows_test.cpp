// qk-norm and rotary embedding on the device, compared with the CPU's functions.
#include "kernels/cuda/head_rows.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cuda/device_test.h"

namespace smartkv::kernels {
namespace {

enum class Norm : uint8_t { kNone, kHead, kTogether };

class CudaHeadRows : public OrderTest {};

TEST_P(CudaHeadRows, AreNormedScaledAndRotatedAsOnTheCpu) {
  constexpr int64_t kRows = 3;
  for (const int64_t dim : {16, 80, 128}) {
    const AttentionShape shape{6, 2, dim, 1.0f, KvType::kBf16};
    const int64_t q = shape.n_heads * dim, k = shape.n_kv_heads * dim, width = q + 2 * k;
    for (const Norm norm : {Norm::kNone, Norm::kHead, Norm::kTogether}) {
      for (const bool rotate : {false, true}) {
        for (const float factor : {1.0f, 0.75f}) {
          const int64_t step_q = norm == Norm::kTogether ? q : dim, step_k = norm == Norm::kTogether ? k : dim;
          const std::vector<float> q_norm = random_values(step_q, 5), k_norm = random_values(step_k, 6);
          std::vector<float> angles = random_values(kRows * dim, 7), found = random_values(kRows * width, 8),
                             expected = found;
          for (float& angle : angles) angle = std::cos(angle);
          HeadRows job;
          job.qkv = expected.data();
          job.rows = kRows;
          if (norm != Norm::kNone) {
            job.q_norm = q_norm.data();
            job.k_norm = k_norm.data();
          }
          job.norm_heads_together = norm == Norm::kTogether;
          job.norm_eps = 1e-5f;
          job.query_factor = factor;
          job.angles = rotate ? angles.data() : nullptr;
          qk_norm_rope(shape, job);
          job.qkv = found.data();
          cuda::qk_norm_rope(shape, job, nullptr);
          finish();
          for (size_t i = 0; i < found.size(); ++i) {
            ASSERT_NEAR(found[i], expected[i], 1e-5f * (1 + std::abs(expected[i])))
                << "head_dim " << dim << " element " << i;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, CudaHeadRows, kOrders, name_of_order);

}  // namespace
}  // namespace smartkv::kernels
