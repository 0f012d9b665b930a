// Texts by name within a limit of bytes, in memory and in a folder.
#include "server/openai/text_store.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace smartkv::openai {
namespace {

namespace fs = std::filesystem;

class TextStoreTest : public ::testing::TestWithParam<bool> {
 protected:
  TextStoreTest() { fs::remove_all(folder_); }
  ~TextStoreTest() override { fs::remove_all(folder_); }

  std::unique_ptr<TextStore> store(int64_t bytes) const {
    return GetParam() ? texts_in_folder(bytes, folder_) : texts_in_memory(bytes);
  }

  const fs::path folder_ = fs::temp_directory_path() / ("text_store_test_" + std::to_string(::getpid()));
};

TEST_P(TextStoreTest, KeepsTextsUntilTheyAreErased) {
  const auto texts = store(1 << 20);
  EXPECT_EQ(texts->get("a"), std::nullopt);
  EXPECT_TRUE(texts->put("a", "one\ntwo"));
  EXPECT_TRUE(texts->put("b", ""));
  EXPECT_EQ(texts->get("a"), "one\ntwo");
  EXPECT_EQ(texts->get("b"), "");
  EXPECT_TRUE(texts->erase("a"));
  EXPECT_FALSE(texts->erase("a"));
  EXPECT_EQ(texts->get("a"), std::nullopt);
}

TEST_P(TextStoreTest, DeletesTheLeastRecentlyUsed) {
  const std::string text(1000, 'x');
  const auto texts = store(4000);  // three texts and their entries
  for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(texts->put(name, text));
  EXPECT_TRUE(texts->get("a"));
  for (const char* name : {"d", "e"}) EXPECT_TRUE(texts->put(name, text));
  EXPECT_TRUE(texts->get("a"));
  EXPECT_FALSE(texts->get("b"));
  EXPECT_TRUE(texts->get("e"));
}

TEST_P(TextStoreTest, RefusesATextBeyondTheLimit) {
  const auto texts = store(2000);
  EXPECT_TRUE(texts->put("a", "text"));
  EXPECT_FALSE(texts->put("b", std::string(2001, 'x')));
  EXPECT_EQ(texts->get("a"), "text");
  EXPECT_EQ(texts->get("b"), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(Everywhere, TextStoreTest, ::testing::Bool(),
                         [](const auto& place) { return place.param ? "Folder" : "Memory"; });

class FolderTest : public TextStoreTest {};

TEST_P(FolderTest, FilesOutliveTheStoreAndAreTheOwnersAlone) {
  ASSERT_TRUE(texts_in_folder(1000, folder_)->put("a", "text"));
  struct stat status = {};
  ASSERT_EQ(::stat((folder_ / "a.response").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  ASSERT_EQ(::stat(folder_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
  EXPECT_EQ(texts_in_folder(1000, folder_)->get("a"), "text");
}

TEST_P(FolderTest, ALowerLimitHoldsAtOnce) {
  {
    const auto texts = texts_in_folder(4000, folder_);
    for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(texts->put(name, std::string(1000, 'x')));
  }
  const auto texts = texts_in_folder(1500, folder_);
  EXPECT_FALSE(texts->get("a"));
  EXPECT_FALSE(texts->get("b"));
  EXPECT_TRUE(texts->get("c"));
}

TEST_P(FolderTest, SeesTheFilesOfOthers) {
  const auto one = texts_in_folder(2500, folder_), other = texts_in_folder(2500, folder_);
  EXPECT_TRUE(one->put("a", std::string(1000, 'x')));
  EXPECT_TRUE(other->get("a"));
  EXPECT_TRUE(other->put("b", std::string(1000, 'x')));
  EXPECT_TRUE(other->put("c", std::string(1000, 'x')));
  EXPECT_TRUE(other->put("d", std::string(1000, 'x')));
  EXPECT_FALSE(one->get("a"));
  EXPECT_TRUE(one->erase("d"));
}

TEST_P(FolderTest, DeletesItsOwnUnfinishedFilesAlone) {
  fs::create_directories(folder_);
  for (const char* name : {"old.response.1.part", "new.response.1.part", "other.1.part", "config.json"})
    std::ofstream(folder_ / name) << "x";
  for (const char* name : {"old.response.1.part", "other.1.part", "config.json"})
    fs::last_write_time(folder_ / name, fs::file_time_type::clock::now() - std::chrono::hours(2));
  fs::resize_file(folder_ / "config.json", 5000);
  texts_in_folder(1000, folder_)->put("a", std::string(1000, 'x'));
  EXPECT_FALSE(fs::exists(folder_ / "old.response.1.part"));
  for (const char* name : {"new.response.1.part", "other.1.part", "config.json", "a.response"})
    EXPECT_TRUE(fs::exists(folder_ / name)) << name;
}

TEST_P(FolderTest, AFolderThatCannotBeUsedIsNamed) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "file") << "x";
  try {
    texts_in_folder(1000, folder_ / "file");
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), ::testing::StartsWith((folder_ / "file").string()));
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, FolderTest, ::testing::Values(true));

}  // namespace
}  // namespace smartkv::openai
