#include "hub/model_reference.h"

#include <gtest/gtest.h>

#include "hub/hub_error.h"

namespace smartkv {
namespace {

TEST(ModelReference, HasARepositoryAndMayHaveMore) {
  const auto plain = parse_model_reference("Org/Name-1.5B");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->repo, "Org/Name-1.5B");
  EXPECT_EQ(plain->revision, "main");
  const auto quantized = parse_model_reference("org/name@v1.0:Q4_K_M");
  ASSERT_TRUE(quantized);
  EXPECT_EQ(quantized->repo, "org/name");
  EXPECT_EQ(quantized->revision, "v1.0");
  EXPECT_EQ(quantized->quantization, "Q4_K_M");
  const auto file = parse_model_reference("hf://org/name@dev/sub/file.gguf");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->repo, "org/name");
  EXPECT_EQ(file->revision, "dev");
  EXPECT_EQ(file->file, "sub/file.gguf");
  for (const char* text : {"org/name", "org/name@v1.0:Q4_K_M", "hf://org/name@dev/sub/file.gguf"}) {
    EXPECT_EQ(parse_model_reference(text)->text(), text);
  }
}

TEST(ModelReference, IsNoPath) {
  for (const char* text :
       {"model.gguf", "/a/b", "./a/b", "../a", "a/b/c", "a/..", "a//b", "a/b:", "a/b@", "a b/c", ""}) {
    EXPECT_FALSE(parse_model_reference(text)) << text;
  }
  EXPECT_FALSE(model_reference(std::filesystem::path(SMARTKV_SOURCE) / "hub"));
}

TEST(ModelReference, ASchemeMustBeFollowedByOne) {
  for (const char* text : {"hf://", "hf://a", "hf://a/b/../c", "hf://a/b/", "hf://a/b:Q4/c.gguf"}) {
    EXPECT_THROW(parse_model_reference(text), HubError) << text;
  }
}

}  // namespace
}  // namespace smartkv
