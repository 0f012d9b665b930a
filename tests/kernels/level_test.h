// Tests that run at each CPU level and over pages of each type. Used as INSTANTIATE_TEST_SUITE_P(Levels, NAME, kLevels,
// name_of_level).
#pragma once

#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "kernels/attention.h"
#include "kernels/cpu_level.h"

namespace smartkv::kernels {

class LevelTest : public testing::TestWithParam<std::tuple<CpuLevel, KvType>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) > detected_cpu_level()) GTEST_SKIP() << "this CPU lacks the level";
    set_cpu_level(std::get<0>(GetParam()));
  }
  void TearDown() override { set_cpu_level(detected_cpu_level()); }
  KvType type() const { return std::get<1>(GetParam()); }
};
inline const auto kLevels = testing::Combine(
    testing::Values(CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx512, CpuLevel::kAvx512Vnni, CpuLevel::kAmx),
    testing::Values(KvType::kBf16, KvType::kF32));
inline std::string name_of_level(const testing::TestParamInfo<std::tuple<CpuLevel, KvType>>& row) {
  return std::string(name(std::get<0>(row.param))) + (std::get<1>(row.param) == KvType::kBf16 ? "_bf16" : "_f32");
}

}  // namespace smartkv::kernels
