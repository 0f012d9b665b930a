#include "kernels/cpu_level.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>

namespace smartkv::kernels {
namespace {

TEST(CpuLevelTest, AnyLevelUpToTheDetectedOneCanBeChosen) {
  const CpuLevel initial = cpu_level();
  for (CpuLevel level :
       {CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx512, CpuLevel::kAvx512Vnni, CpuLevel::kAmx}) {
    if (level <= detected_cpu_level()) {
      set_cpu_level(level);
      EXPECT_EQ(cpu_level(), level);
    } else {
      EXPECT_THROW(set_cpu_level(level), std::runtime_error) << name(level);
    }
  }
  set_cpu_level(initial);
}

TEST(CpuLevelTest, NamesAreThoseOfTheEnvironmentVariable) {
  EXPECT_EQ(name(CpuLevel::kScalar), "scalar");
  EXPECT_EQ(name(CpuLevel::kAvx2), "avx2");
  EXPECT_EQ(name(CpuLevel::kAvx512), "avx512");
  EXPECT_EQ(name(CpuLevel::kAvx512Vnni), "avx512_vnni");
  EXPECT_EQ(name(CpuLevel::kAmx), "amx");
}

// Each value needs a process of its own, because the variable is read once per process.
int exit_code_with(const char* value) {
  setenv("SMARTKV_CPU_LEVEL", value, 1);
  try {
    return cpu_level() == CpuLevel::kScalar ? 0 : 1;
  } catch (const std::runtime_error&) {
    return 2;
  }
}

TEST(CpuLevelDeathTest, EnvironmentVariableLowersTheLevelAndRefusesUnknownNames) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(exit_code_with("scalar")), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(exit_code_with("sse9")), ::testing::ExitedWithCode(2), "");
}

}  // namespace
}  // namespace smartkv::kernels
