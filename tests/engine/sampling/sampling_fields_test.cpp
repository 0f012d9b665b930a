#include "engine/sampling/sampling_fields.h"

#include <cmath>
#include <limits>
#include <set>

#include <gtest/gtest.h>

namespace smartkv {
namespace {

TEST(SamplingFields, DefaultsAreInRange) {
  std::set<std::string_view> names;
  for (const SamplingField& field : kSamplingFields) {
    EXPECT_TRUE(field.allows(field.of(SamplingParams()))) << field.name;
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_NE(field.help, "") << field.name;
  }
}

TEST(SamplingFields, RangesIncludeTheirEndsUnlessARowSaysOtherwise) {
  for (const SamplingField& field : kSamplingFields) {
    const auto least = static_cast<double>(field.min), most = static_cast<double>(field.max);
    EXPECT_EQ(field.allows(least), !field.above_min) << field.name;
    EXPECT_TRUE(field.allows(std::nextafter(least, most))) << field.name;
    EXPECT_TRUE(field.allows(most)) << field.name;
    EXPECT_FALSE(field.allows(std::nextafter(least, -1e30))) << field.name;
    EXPECT_FALSE(field.allows(std::nextafter(most, 1e30))) << field.name;
    EXPECT_FALSE(field.allows(std::numeric_limits<double>::quiet_NaN())) << field.name;
  }
}

TEST(SamplingFields, ARowSetsItsMemberOnly) {
  for (const SamplingField& field : kSamplingFields) {
    SamplingParams params;
    field.set(2, &params);
    for (const SamplingField& other : kSamplingFields) {
      EXPECT_EQ(other.of(params), other.name == field.name ? 2 : other.of(SamplingParams())) << field.name;
    }
  }
}

}  // namespace
}  // namespace smartkv
