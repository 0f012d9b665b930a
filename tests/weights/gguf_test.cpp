#include "engine/weights/gguf.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/weights/weight_files.h"

namespace smartkv {
namespace {

using testing::HasSubstr;

// Writes GGUF files by hand.
class GgufBytes {
 public:
  GgufBytes(uint32_t version, uint64_t tensors, uint64_t keys) { number(uint32_t{0x46554747}).number(version).number(tensors).number(keys); }
  template <typename T>
  GgufBytes& number(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  GgufBytes& string(const std::string& text) {
    number(uint64_t{text.size()});
    bytes += text;
    return *this;
  }
  GgufBytes& tensor(const std::string& name, uint64_t extent, uint32_t type, uint64_t offset) {
    return string(name).number(uint32_t{1}).number(extent).number(type).number(offset);
  }
  GgufBytes& data(size_t size) {
    bytes.resize((bytes.size() + 31) / 32 * 32 + size);
    return *this;
  }
  std::string error() const {
    return error_of([&] { GgufFile::parse(bytes_of(bytes), "m.gguf"); });
  }
  std::string bytes;
};

TEST(Gguf, NamesWhatIsWrong) {
  EXPECT_EQ(GgufBytes(3, 1, 0).tensor("t", 8, 0, 0).data(32).error(), "no error");
  EXPECT_THAT(error_of([] { GgufFile::parse(bytes_of(std::string("GGML....")), "m"); }), HasSubstr("not a GGUF file"));
  EXPECT_THAT(GgufBytes(1, 0, 0).error(), HasSubstr("expected GGUF version 2 or 3, found 1"));
  EXPECT_THAT(GgufBytes(3, 0, 5).error(), HasSubstr("truncated"));
  EXPECT_THAT(GgufBytes(3, ~uint64_t{0}, 0).error(), HasSubstr("truncated"));
  EXPECT_THAT(GgufBytes(3, 0, 1).string("k").number(uint32_t{99}).error(), HasSubstr("key \"k\": unknown value type 99"));
  EXPECT_THAT(GgufBytes(3, 0, 1).string("k").number(uint32_t{9}).number(uint32_t{4}).number(uint64_t{1} << 60).error(), HasSubstr("do not fit"));
  EXPECT_THAT(GgufBytes(3, 0, 1).string("k").number(uint32_t{10}).number(~uint64_t{0}).error(), HasSubstr("expected an integer below 2^63"));
  EXPECT_THAT(GgufBytes(3, 0, 2).string("k").number(uint32_t{0}).number('a').string("k").number(uint32_t{0}).number('a').error(), HasSubstr("\"k\" stands twice"));
  EXPECT_THAT(GgufBytes(3, 0, 1).string("general.alignment").number(uint32_t{4}).number(uint32_t{24}).error(), HasSubstr("a power of two"));
  EXPECT_THAT(GgufBytes(3, 1, 0).tensor("t", 8, 0, 4).data(64).error(), HasSubstr("tensor \"t\": expected an offset that is a multiple of 32, found 4"));
  EXPECT_THAT(GgufBytes(3, 1, 0).tensor("t", 8, 0, 64).data(32).error(), HasSubstr("tensor \"t\" needs bytes [64, 96) of the data, found 32"));
  EXPECT_THAT(GgufBytes(3, 2, 0).tensor("a", 16, 0, 0).tensor("b", 8, 0, 32).data(64).error(), HasSubstr("tensor \"b\" overlaps tensor \"a\""));
  EXPECT_THAT(GgufBytes(3, 2, 0).tensor("a", 8, 0, 0).tensor("a", 8, 0, 32).data(64).error(), HasSubstr("\"a\" stands twice"));
  EXPECT_THAT(GgufBytes(3, 1, 0).tensor("t", 8, 77, 0).data(32).error(), HasSubstr("tensor \"t\": unsupported type 77; supported: F32"));
  EXPECT_THAT(GgufBytes(3, 1, 0).tensor("t", 8, 2, 0).data(32).error(), HasSubstr("do not hold whole blocks of Q4_0"));
  EXPECT_THAT(GgufBytes(3, 1, 0).tensor("t", uint64_t{1} << 50, 0, 0).data(32).error(), HasSubstr("out of range"));
}

TEST(Gguf, ReadsTypedMetadata) {
  const GgufFile file = GgufFile::open(kFixtures / "tiny.gguf");
  EXPECT_EQ(file.get_int("llama.block_count"), 2);
  EXPECT_EQ(*file.get_string("general.architecture"), "llama");
  EXPECT_EQ(file.get_float("llama.rope.freq_base"), 5000.0);
  EXPECT_EQ(file.get_int("absent"), std::nullopt);
  EXPECT_THAT(error_of([&] { file.get_int("general.architecture"); }), HasSubstr("key \"general.architecture\": expected an integer"));
}

}  // namespace
}  // namespace smartkv
