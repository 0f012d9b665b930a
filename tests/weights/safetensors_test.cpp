#include "engine/weights/safetensors.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/weights/weight_files.h"

namespace smartkv {
namespace {

using testing::HasSubstr;

TEST(Safetensors, RoundTrips) {
  const Folder folder;
  const std::vector<float> values = {0.0f, -0.0f, 1.0f, -2.5f, 65504.0f, 1e-7f, 3.14159265f, 1e-5f};
  for (const auto& [type, error] :
       std::map<TensorType, double>{{TensorType::kF32, 0}, {TensorType::kF16, 6e-4}, {TensorType::kBf16, 4e-3}}) {
    write_safetensors(folder.path() / "x.safetensors", {{"a", {2, 4}, values}, {"b", {1}, {7.0f}}}, type, {{"k", "v"}});
    const SafetensorsFile file = SafetensorsFile::open(folder.path() / "x.safetensors");
    EXPECT_EQ(file.metadata().at("k"), "v");
    std::vector<float> found(8);
    expand_rows(file.tensors().at("a"), 0, 2, found.data());
    for (size_t i = 0; i < 8; ++i)
      EXPECT_NEAR(found[i], values[i], error * std::abs(values[i]) + (error > 0 ? 6e-8 : 0));
    EXPECT_EQ(file.tensors().at("b").shape, std::vector<int64_t>{1});
  }
}

std::string safetensors(const std::string& header, size_t data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data, '\0');
}

TEST(Safetensors, NamesWhatIsWrong) {
  const auto error = [](const std::string& bytes) {
    return error_of([&] { SafetensorsFile::parse(bytes_of(bytes), "m"); });
  };
  const auto entry = [&](const std::string& e) { return error(safetensors("{\"t\":" + e + "}", 16)); };
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})"), "no error");
  EXPECT_THAT(error("abc"), HasSubstr("truncated"));
  EXPECT_THAT(error(safetensors("{}", 0).substr(0, 9)), HasSubstr("does not fit"));
  EXPECT_THAT(error(safetensors("{nope", 0)), HasSubstr("not JSON"));
  EXPECT_THAT(error(safetensors("[]", 0)), HasSubstr("expected the header to be an object"));
  EXPECT_THAT(entry("3"), HasSubstr("tensor \"t\": expected dtype, shape and data_offsets"));
  EXPECT_THAT(entry(R"({"dtype":"I8","shape":[4],"data_offsets":[0,16]})"),
              HasSubstr("dtype: expected F32, F16, BF16, F8_E4M3, F8_E5M2, I32 or U8, found \"I8\""));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[5],"data_offsets":[0,16]})"),
              HasSubstr("expected 20 bytes for its shape, found 16"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[4],"data_offsets":[4,20]})"), HasSubstr("expected a range in [0, 16]"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})"), HasSubstr("shape"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[1099511627776,1099511627776],"data_offsets":[0,16]})"),
              HasSubstr("out of range"));
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})",
                    b = R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]})";
  EXPECT_THAT(error(safetensors("{" + a + "," + b + "}", 16)), HasSubstr("tensor \"b\" overlaps tensor \"a\""));
  EXPECT_THAT(error(safetensors("{" + a + "," + a + "}", 16)), HasSubstr("\"a\" appears twice"));
  EXPECT_THAT(error(safetensors(R"({"__metadata__":{"k":1}})", 0)), HasSubstr("__metadata__.k"));
  EXPECT_THAT(error(safetensors(R"({"__metadata__":[1]})", 0)), HasSubstr("__metadata__"));
}

}  // namespace
}  // namespace smartkv
