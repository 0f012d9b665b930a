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
  GgufBytes(uint32_t version, uint64_t tensors, uint64_t keys) {
    number(uint32_t{0x46554747}).number(version).number(tensors).number(keys);
  }
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
  EXPECT_THAT(GgufBytes(3, 0, 1).string("k").number(uint32_t{99}).error(),
              HasSubstr("key \"k\": unknown value type 99"));
  EXPECT_THAT(GgufBytes(3, 0, 1).string("k").number(uint32_t{9}).number(uint32_t{4}).number(uint64_t{1} << 60).error(),
              HasSubstr("do not fit"));
  EXPECT_THAT(GgufBytes(3, 0, 1).string("k").number(uint32_t{10}).number(~uint64_t{0}).error(),
              HasSubstr("expected an integer below 2^63"));
  EXPECT_THAT(GgufBytes(3, 0, 2)
                  .string("k")
                  .number(uint32_t{0})
                  .number('a')
                  .string("k")
                  .number(uint32_t{0})
                  .number('a')
                  .error(),
              HasSubstr("\"k\" appears twice"));
  EXPECT_THAT(GgufBytes(3, 0, 1).string("general.alignment").number(uint32_t{4}).number(uint32_t{24}).error(),
              HasSubstr("a power of two"));
  EXPECT_THAT(GgufBytes(3, 1, 0).tensor("t", 8, 0, 4).data(64).error(),
              HasSubstr("tensor \"t\": expected an offset that is a multiple of 32, found 4"));
  EXPECT_THAT(GgufBytes(3, 1, 0).tensor("t", 8, 0, 64).data(32).error(),
              HasSubstr("tensor \"t\" needs bytes [64, 96) of the data, found 32"));
  EXPECT_THAT(GgufBytes(3, 2, 0).tensor("a", 16, 0, 0).tensor("b", 8, 0, 32).data(64).error(),
              HasSubstr("tensor \"b\" overlaps tensor \"a\""));
  EXPECT_THAT(GgufBytes(3, 2, 0).tensor("a", 8, 0, 0).tensor("a", 8, 0, 32).data(64).error(),
              HasSubstr("\"a\" appears twice"));
  EXPECT_THAT(GgufBytes(3, 1, 0).tensor("t", 8, 77, 0).data(32).error(),
              testing::AllOf(HasSubstr("tensor \"t\": expected one of the types F32, F16"),
                             HasSubstr("found the unknown type 77")));
  EXPECT_THAT(GgufBytes(3, 1, 0).tensor("t", 8, 15, 0).data(32).error(), HasSubstr("found Q8_K"));
  EXPECT_THAT(GgufBytes(3, 1, 0).tensor("t", 8, 2, 0).data(32).error(), HasSubstr("are not whole blocks of Q4_0"));
  EXPECT_THAT(GgufBytes(3, 1, 0).tensor("t", uint64_t{1} << 50, 0, 0).data(32).error(), HasSubstr("out of range"));
}

// Writes the two parts of a split file, with one tensor each.
void write_parts(const Folder& folder, int64_t second_no, uint64_t second_count, const std::string& second_tensor) {
  const auto part = [](uint64_t no, uint64_t count, const std::string& tensor) {
    return GgufBytes(3, 1, 3)
        .string("split.no")
        .number(uint32_t{10})
        .number(no)
        .string("split.count")
        .number(uint32_t{10})
        .number(count)
        .string("split.tensors.count")
        .number(uint32_t{10})
        .number(uint64_t{2})
        .tensor(tensor, 8, 0, 0)
        .data(32)
        .bytes;
  };
  folder.write("m.Q4_0-00001-of-00002.gguf", part(0, 2, "a"));
  folder.write("m.Q4_0-00002-of-00002.gguf", part(static_cast<uint64_t>(second_no), second_count, second_tensor));
}

TEST(Gguf, PartsOfASplitFileAreReadTogether) {
  const Folder folder;
  const std::filesystem::path first = folder.path() / "m.Q4_0-00001-of-00002.gguf";
  const auto error = [&] { return error_of([&] { GgufFile::open(first); }); };
  write_parts(folder, 1, 2, "b");
  const GgufFile file = GgufFile::open(first);
  EXPECT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors().at("b").elements(), 8);
  EXPECT_THAT(error_of([&] { GgufFile::open(folder.path() / "m.Q4_0-00002-of-00002.gguf"); }),
              HasSubstr("expected the first of 2 parts"));
  write_parts(folder, 1, 3, "b");
  EXPECT_THAT(error(),
              HasSubstr("m.Q4_0-00002-of-00002.gguf: keys \"split.no\" and \"split.count\": expected 1 and 2"));
  write_parts(folder, 1, 2, "a");
  EXPECT_THAT(error(), HasSubstr("tensor \"a\" is also in another part"));
  std::filesystem::remove(folder.path() / "m.Q4_0-00002-of-00002.gguf");
  EXPECT_THAT(error(), HasSubstr("m.Q4_0-00002-of-00002.gguf"));
}

TEST(Gguf, ReadsTypedMetadata) {
  const GgufFile file = GgufFile::open(kFixtures / "tiny.gguf");
  EXPECT_EQ(file.get_int("llama.block_count"), 2);
  EXPECT_EQ(*file.get_string("general.architecture"), "llama");
  EXPECT_EQ(file.get_float("llama.rope.freq_base"), 5000.0);
  EXPECT_EQ(file.get_int("absent"), std::nullopt);
  EXPECT_THAT(error_of([&] { file.get_int("general.architecture"); }),
              HasSubstr("key \"general.architecture\": expected an integer"));
}

}  // namespace
}  // namespace smartkv
