#include "cache/prefix_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <new>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cache/forwarding_cache.h"
#include "cache/policies/gated_eviction/gate.h"
#include "cache/policy.h"
#include "cache/prefix_cache.h"
#include "cache/state_io.h"
#include "tests/cache/cache_driver.h"
#include "tests/cache/random_gate.h"

namespace smartkv {
namespace {

namespace fs = std::filesystem;

using Tokens = std::vector<int32_t>;

class PrefixFilesTest : public testing::Test {
 protected:
  PrefixFilesTest() : directory_(fs::path(testing::TempDir()) / ("prefixes." + std::to_string(::getpid()))) {
    fs::remove_all(directory_);
  }
  ~PrefixFilesTest() override { fs::remove_all(directory_); }

  PrefixFilesOptions options(const std::string& identity = "this model", int64_t max_bytes = int64_t{1} << 30) {
    return {directory_, max_bytes, identity, [this](const std::string& line) { log_.push_back(line); }};
  }
  // Returns the state of a prompt of `prompt` tokens after its first n.
  std::unique_ptr<SequenceCache> state(const KvCachePolicy& policy, int64_t n, int64_t prompt) {
    std::unique_ptr<SequenceCache> cache = policy.new_sequence(prompt);
    grow(cache.get(), n);
    return cache;
  }
  void grow(SequenceCache* cache, int64_t n) {
    while (cache->tokens() < n) {
      const int64_t at = cache->tokens(), end = std::min(n, cache->next_boundary());
      driver_.pass(cache, std::min<int64_t>(96, end - at), salt_);
      if (cache->tokens() == cache->next_boundary()) cache->commit(cache->tokens());
    }
  }
  Tokens tokens(int64_t n) const {
    Tokens tokens(static_cast<size_t>(n));
    std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(salt_) * 1'000'000);
    return tokens;
  }
  fs::path only_file() {
    const fs::directory_iterator it(directory_);
    return it->path();
  }
  static std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void set_contents(const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  }
  // Leaves a file with a state of `full`, as a server that has ended does.
  void leave_state() {
    const auto full = make_policy(context_, "full");
    PrefixFiles files(options());
    PrefixCache prefixes(int64_t{1} << 30, &files);
    prefixes.insert("key", tokens(200), state(*full, 200, 200), 1);
  }
  // Returns how many tokens of a prompt with the same beginning a restarted server finds.
  int64_t found(const std::string& identity = "this model") {
    const auto full = make_policy(context_, "full");
    PrefixFiles files(options(identity));
    PrefixCache prefixes(int64_t{1} << 30, &files);
    const auto cache = prefixes.find("key", *full, tokens(250));
    return cache == nullptr ? 0 : cache->tokens();
  }

  fs::path directory_;
  std::vector<std::string> log_;
  CacheShape shape_{2, 1, 64, kernels::KvType::kBf16};
  ThreadPool threads_{2};
  PolicyContext context_{shape_, PagePool::create(shape_), &threads_};
  CacheDriver driver_{shape_, 2, &threads_};
  uint32_t salt_ = 0;  // other states for other salts
};

TEST_F(PrefixFilesTest, AStateOutlivesTheServer) {
  leave_state();
  EXPECT_EQ(found(), 200);
  EXPECT_TRUE(log_.empty());
  struct stat info {};
  ASSERT_EQ(::stat(only_file().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);  // it holds what users wrote
  ASSERT_EQ(::stat(directory_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(PrefixFilesTest, MemoryMayLoseWhatAFileHolds) {
  const auto full = make_policy(context_, "full");
  PrefixFiles files(options());
  PrefixCache prefixes(int64_t{1} << 30, &files);
  const int64_t before = context_.pool->bytes_in_use();
  prefixes.insert("key", tokens(200), state(*full, 200, 200), 1);
  files.wait();
  EXPECT_EQ(prefixes.find("other", *full, tokens(250)), nullptr);  // find() releases states that have been written
  EXPECT_TRUE(prefixes.evict(PrefixCache::Evict::kAny));
  EXPECT_EQ(context_.pool->bytes_in_use(), before);
  EXPECT_EQ(prefixes.bytes(), 0);
  EXPECT_FALSE(prefixes.evict(PrefixCache::Evict::kAny));
  const auto cache = prefixes.find("key", *full, tokens(250));
  ASSERT_NE(cache, nullptr);
  EXPECT_EQ(cache->tokens(), 200);
  EXPECT_EQ(prefixes.n_states(), 1);
  EXPECT_GT(prefixes.bytes(), 0);
}

TEST_F(PrefixFilesTest, EverythingElseIsSkippedWithOneLine) {
  leave_state();
  const fs::path path = only_file();
  const std::string good = contents(path);
  const auto expect_skipped = [&](const std::string& bad, const char* why) {
    set_contents(path, bad);
    log_.clear();
    EXPECT_EQ(found(), 0) << why;
    ASSERT_EQ(log_.size(), 1u) << why;
    EXPECT_NE(log_[0].find(path.filename().string()), std::string::npos);
    EXPECT_NE(log_[0].find(why), std::string::npos) << log_[0];
  };
  expect_skipped(good.substr(0, 10), "truncated");
  expect_skipped(good.substr(0, 60), "truncated");
  expect_skipped(good.substr(0, good.size() - 1), "bytes, found");
  expect_skipped("", "truncated");
  expect_skipped(std::string(4096, 'x'), "not a SmartKV state file");
  std::string other = good;
  other[8] = 9;
  expect_skipped(other, "expected version 3, found 9");
  other = good;
  other[40] ^= 1;
  expect_skipped(other, "header's checksum");
  other = good;
  other[good.size() / 2] ^= 1;
  expect_skipped(other, "checksum is wrong");
  set_contents(path, good);
  log_.clear();
  EXPECT_EQ(found("another model"), 0);
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_NE(log_[0].find("for another model"), std::string::npos);
  fs::rename(path, directory_ / "renamed.kv");
  log_.clear();
  EXPECT_EQ(found(), 0);
  EXPECT_EQ(log_.size(), 1u);
  fs::remove(directory_ / "renamed.kv");
  ASSERT_EQ(::mkfifo((directory_ / "pipe.kv").c_str(), 0600), 0);  // opening it must not block
  fs::create_symlink("/dev/zero", directory_ / "link.kv");
  fs::create_directory(directory_ / "folder");
  log_.clear();
  EXPECT_EQ(found(), 0);
  EXPECT_EQ(log_.size(), 3u);
}

TEST_F(PrefixFilesTest, DamageNeverHarms) {
  leave_state();
  const fs::path path = only_file();
  const std::string good = contents(path);
  std::minstd_rand random(7);
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    if (i % 3 == 0) bad.resize(random() % good.size());
    for (uint32_t flips = 1 + random() % 4; flips > 0 && !bad.empty(); --flips) {
      // Headers are short, so half of the damage is aimed at them.
      const size_t at = random() % (random() % 2 == 0 ? std::min<size_t>(bad.size(), 1200) : bad.size());
      bad[at] = static_cast<char>(random());
    }
    if (bad == good) continue;
    set_contents(path, bad);
    EXPECT_EQ(found(), 0) << i;
    if (!fs::exists(path)) set_contents(path, good);
  }
}

// A checksum does not guard against files that an attacker writes.
TEST_F(PrefixFilesTest, AStateThatWasTamperedWithIsSafeToLoad) {
  const nlohmann::json specs[] = {"full",
                                  "k4v4",
                                  {{"policy", "mixed_precision"}, {"horizon", 16384}, {"forecast", true}},
                                  {{"policy", "snapkv"}, {"tokens", 320}},
                                  {{"policy", "snapkv"}, {"tokens", 448}, {"kept", "k4v4"}},
                                  {{"policy", "snapkv"}, {"tokens", 448}, {"sizes", "shared"}, {"kept", "k4v4"}},
                                  {{"policy", "gated_eviction"}, {"tokens", 320}}};
  context_.load_gate = [this](const std::string&) { return random_gate(shape_); };
  context_.rope = [this](int64_t position, float* cos, float* sin) {
    for (int64_t j = 0; j < shape_.head_dim / 2; ++j) {
      cos[j] = std::cos(static_cast<float>(position) / static_cast<float>(j + 1));
      sin[j] = std::sin(static_cast<float>(position) / static_cast<float>(j + 1));
    }
  };
  std::minstd_rand random(11);
  for (const nlohmann::json& spec : specs) {
    const auto policy = make_policy(context_, spec);
    StateWriter good;
    ASSERT_TRUE(state(*policy, 700, 640)->save(&good));
    int64_t refused = 0;
    for (int i = 0; i < 150; ++i) {
      std::string bad = good.data();
      if (i % 4 == 0) bad.resize(random() % bad.size());
      // Counts and places mostly stand in front or between pages. Numbers that are too large or negative do most harm.
      const size_t at = 8 * (random() % (i % 2 == 0 ? 64 : bad.size() / 8 + 1));
      const int64_t values[] = {-1, 1 << 20, INT64_MAX, INT64_MIN, static_cast<int64_t>(random()), 63};
      if (at + 8 <= bad.size()) std::memcpy(bad.data() + at, &values[random() % 6], 8);
      try {
        StateReader in(bad);
        const auto cache = policy->load(&in);
        std::vector<kernels::KvSegment> segments;
        for (int64_t layer = 0; layer < shape_.n_layers; ++layer) cache->view(layer, 0, &segments);
        for (int64_t layer = 0; layer < shape_.n_layers; ++layer) cache->positions(layer, 0);
        cache->stats();
        cache->max_growth(64);
        if (cache->tokens() < 100'000) driver_.run(cache->fork().get(), cache->tokens() + 70, 64);
      } catch (const std::exception&) {  // ends only the sequence that would resume from it
        ++refused;
      }
    }
    EXPECT_GT(refused, 15) << spec;
  }
}

TEST_F(PrefixFilesTest, TheLeastRecentlyUsedFilesGoFirst) {
  const auto full = make_policy(context_, "full");
  int64_t one = 0;
  {
    PrefixFiles files(options());
    PrefixCache prefixes(int64_t{1} << 30, &files);
    prefixes.insert("key 0", tokens(100), state(*full, 100, 100), 1);
    files.wait();
    one = files.bytes();
    EXPECT_EQ(one, static_cast<int64_t>(fs::file_size(only_file())));
  }
  PrefixFiles files(options("this model", 2 * one + 100));
  PrefixCache prefixes(0, &files);  // keeps no state in memory
  PrefixCache both(int64_t{1} << 30, &files);
  for (const char* key : {"key 1", "key 2"}) {
    ++salt_;
    both.insert(key, tokens(100), state(*full, 100, 100), 1);
    files.wait();
  }
  EXPECT_LE(files.bytes(), 2 * one + 100);
  int64_t n = 0;
  for (const auto& entry : fs::directory_iterator(directory_)) n += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(n, 2);
  salt_ = 0;
  EXPECT_EQ(prefixes.find("key 0", *full, tokens(150)), nullptr);
}

TEST_F(PrefixFilesTest, TheLimitHoldsForStatesOfAllModels) {
  const auto full = make_policy(context_, "full");
  const auto write = [&](const std::string& identity, const std::string& key, int64_t max_bytes) {
    ++salt_;
    PrefixFiles files(options(identity, max_bytes));
    files.write({key, tokens(100), 64, 1}, std::shared_ptr<SequenceCache>(state(*full, 100, 100)));
    files.wait();
    return files.bytes();
  };
  const auto names = [&] {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(directory_)) found.insert(entry.path().filename().string());
    return found;
  };
  const int64_t one = write("model a", "key 1", int64_t{1} << 30);
  const std::set<std::string> oldest = names();
  EXPECT_EQ(write("model a", "key 2", int64_t{1} << 30), 2 * one);
  EXPECT_EQ(write("model b", "key 1", 2 * one), 2 * one);
  EXPECT_EQ(names().size(), 2u);
  EXPECT_FALSE(names().contains(*oldest.begin()));
  // A file that is larger than the limit is not written, and no other file is deleted for it.
  PrefixFiles files(options("model c", one / 2));
  EXPECT_EQ(names().size(), 0u);  // the new limit is too small for the files that were there
  const auto name = files.write({"key", tokens(100), 64, 1}, std::shared_ptr<SequenceCache>(state(*full, 100, 100)));
  files.wait();
  EXPECT_TRUE(names().empty());
  const auto gone = files.collect();
  EXPECT_NE(std::find(gone.begin(), gone.end(), *name), gone.end());
  EXPECT_NE(log_.back().find("prefix_cache_dir_bytes"), std::string::npos) << log_.back();
}

TEST_F(PrefixFilesTest, AStartDeletesOnlyAbandonedPartsOfItsOwn) {
  fs::create_directories(directory_);
  const std::string hash(32, 'a');
  const fs::path foreign = directory_ / "holiday.part", abandoned = directory_ / (hash + ".kv.123.part"),
                 written = directory_ / (hash + ".kv.124.part");
  for (const fs::path& path : {foreign, abandoned, written}) set_contents(path, "half");
  const int fd = ::open(written.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);  // as the process that writes it does
  found();
  ::close(fd);
  EXPECT_TRUE(fs::exists(foreign));
  EXPECT_FALSE(fs::exists(abandoned));
  EXPECT_TRUE(fs::exists(written));
}

class TurnFilesTest : public PrefixFilesTest {
 protected:
  // Stores the states of a conversation after each of these numbers of tokens. Returns the last one's bytes in a file
  // of its own.
  int64_t talk(const std::string& policy, const std::vector<int64_t>& turns) {
    const auto made = make_policy(context_, policy);
    PrefixFiles files(options());
    PrefixCache prefixes(int64_t{1} << 30, &files);
    const std::unique_ptr<SequenceCache> cache = made->new_sequence(turns.back() + 64);
    for (const int64_t n : turns) {
      grow(cache.get(), n);
      prefixes.insert("key", tokens(n), cache->fork(), 1);
      files.wait();
    }
    StateWriter whole;
    EXPECT_TRUE(cache->save(&whole));
    return static_cast<int64_t>(whole.data().size());
  }
  int64_t directory_bytes() {
    int64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(directory_)) bytes += static_cast<int64_t>(entry.file_size());
    return bytes;
  }
  std::vector<fs::path> by_size() {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(directory_)) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end(),
              [](const auto& a, const auto& b) { return fs::file_size(a) > fs::file_size(b); });
    return paths;
  }
  // Returns the bytes of the state that a restarted server finds.
  std::string reloaded(const std::string& policy, int64_t n) {
    const auto made = make_policy(context_, policy);
    PrefixFiles files(options());
    PrefixCache prefixes(int64_t{1} << 30, &files);
    const auto cache = prefixes.find("key", *made, tokens(n + 64));
    StateWriter out;
    if (cache == nullptr || cache->tokens() != n || !cache->save(&out)) return "";
    return out.data();
  }
  std::string computed(const std::string& policy, int64_t n) {
    const auto cache = state(*make_policy(context_, policy), n, n + 64);
    if (cache->committed() < n) cache->commit(n);
    StateWriter out;
    cache->resume(n + 64)->save(&out);
    return out.data();
  }
};

TEST_F(TurnFilesTest, ATurnWritesOnlyItsNewPages) {
  const int64_t whole = talk("full", {1024, 1536, 2048, 2560});
  EXPECT_LT(static_cast<double>(directory_bytes()), 1.05 * static_cast<double>(whole));
  EXPECT_EQ(by_size().size(), 4u);
  EXPECT_TRUE(reloaded("full", 2560) == computed("full", 2560));
}

TEST_F(TurnFilesTest, PackedPagesAreStoredOnce) {
  const int64_t whole = talk("k4v4", {1024, 1536, 2048, 2560});
  const int64_t tails = 4 * 4 * context_.pool->page_bytes() * shape_.n_layers;  // dense windows of four turns
  EXPECT_LT(directory_bytes(), whole + tails);
  EXPECT_TRUE(reloaded("k4v4", 2560) == computed("k4v4", 2560));
}

TEST_F(TurnFilesTest, ALongConversationNeedsFewFiles) {
  std::vector<int64_t> turns;
  for (int64_t n = 64; n <= 64 * 80; n += 64) turns.push_back(n);
  const int64_t whole = talk("full", turns);
  EXPECT_LT(directory_bytes(), 3 * whole);
  EXPECT_TRUE(reloaded("full", turns.back()) == computed("full", turns.back()));
}

TEST_F(TurnFilesTest, DamageEndsEveryStateThatNeedsIt) {
  talk("full", {1024, 1536});
  const fs::path first = by_size().front();
  const std::string good = contents(first);
  std::string bad = good;
  bad[bad.size() / 2] ^= 1;
  set_contents(first, bad);
  EXPECT_EQ(reloaded("full", 1536), "");
  EXPECT_FALSE(fs::exists(first));  // later states must not refer to it
  talk("full", {1024, 1536});
  EXPECT_TRUE(reloaded("full", 1536) == computed("full", 1536));
}

TEST_F(TurnFilesTest, AStateWhoseFilesAreGoneIsSkipped) {
  talk("full", {1024, 1536});
  const fs::path first = by_size().front();
  fs::remove(first);
  EXPECT_EQ(reloaded("full", 1536), "");
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_NE(log_[0].find("which is gone"), std::string::npos) << log_[0];
}

// The tokens of the second state are in its own file, because they are stored in chunks of 512.
TEST_F(TurnFilesTest, AStateWhosePagesAreGoneIsSkipped) {
  talk("full", {300, 450});
  fs::path first;
  for (const auto& entry : fs::directory_iterator(directory_)) {
    if (first.empty() || fs::last_write_time(entry.path()) < fs::last_write_time(first)) first = entry.path();
  }
  fs::remove(first);
  EXPECT_EQ(reloaded("full", 450), "");
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_NE(log_[0].find(first.filename().string() + ", which is gone"), std::string::npos) << log_[0];
}

TEST_F(TurnFilesTest, AFileThatAnotherServerDeletedIsNotNeeded) {
  const auto full = make_policy(context_, "full");
  {
    PrefixFiles files(options());
    PrefixCache prefixes(int64_t{1} << 30, &files);
    prefixes.insert("key", tokens(1024), state(*full, 1024, 1600), 1);
    files.wait();
    fs::remove(only_file());
    prefixes.insert("key", tokens(1536), state(*full, 1536, 1600), 1);
    files.wait();
  }
  EXPECT_TRUE(reloaded("full", 1536) == computed("full", 1536));
}

TEST_F(TurnFilesTest, AUsedStateKeepsTheFilesThatItNeeds) {
  talk("full", {1024, 1536});
  const int64_t both = directory_bytes();
  const auto full = make_policy(context_, "full");
  PrefixFiles files(options("this model", 2 * both));
  PrefixCache prefixes(0, &files);
  const PrefixFiles::Name used = state_name("this model", {"key", tokens(1536), 0, 0});
  for (const char* key : {"key 2", "key 3", "key 4"}) {
    ++salt_;
    ASSERT_TRUE(files.read(used));  // before each of the others
    files.write({key, tokens(1024), 64, 1}, std::shared_ptr<SequenceCache>(state(*full, 1024, 1600)));
    files.wait();
  }
  EXPECT_TRUE(files.read(used));
  EXPECT_LE(files.bytes(), 2 * both);
}

// A cache that waits in save() until `allowed` is ready.
class SlowCache final : public ForwardingCache {
 public:
  SlowCache(std::unique_ptr<SequenceCache> cache, std::shared_future<void> allowed)
      : ForwardingCache({cache.get()}), cache_(std::move(cache)), allowed_(std::move(allowed)) {}
  std::unique_ptr<SequenceCache> fork() const override { return cache_->fork(); }
  std::unique_ptr<SequenceCache> resume(int64_t prompt) const override { return cache_->resume(prompt); }
  bool save(StateWriter* out) const override {
    if (out != nullptr) allowed_.wait();
    return cache_->save(out);
  }

 private:
  std::unique_ptr<SequenceCache> cache_;
  std::shared_future<void> allowed_;
};

TEST_F(PrefixFilesTest, SaysWhileItHoldsTheMemoryOfAState) {
  const auto full = make_policy(context_, "full");
  const int64_t before = context_.pool->bytes_in_use();
  PrefixFiles files(options());
  EXPECT_FALSE(files.holds_memory());
  std::promise<void> allow;
  files.write({"key", tokens(100), 64, 1},
              std::make_shared<SlowCache>(state(*full, 100, 100), allow.get_future().share()));
  while (!files.holds_memory()) std::this_thread::yield();  // until the writing thread has taken the state
  files.wait_for_memory(std::chrono::milliseconds(1));
  files.collect();
  EXPECT_TRUE(files.holds_memory());
  EXPECT_GT(context_.pool->bytes_in_use(), before);
  allow.set_value();
  files.wait_for_memory(std::chrono::minutes(2));
  EXPECT_TRUE(files.holds_memory());
  files.collect();
  EXPECT_FALSE(files.holds_memory());
  EXPECT_EQ(context_.pool->bytes_in_use(), before);
}

TEST_F(PrefixFilesTest, WithoutRoomOnTheDiskOnlyTheFileIsMissing) {
  const auto full = make_policy(context_, "full");
  PrefixFiles files(options());
  PrefixCache prefixes(int64_t{1} << 30, &files);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit little = before;
  little.rlim_cur = 4096;  // exceeding it would end the process if SIGXFSZ were not blocked
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  for (const char* key : {"key", "another"}) {
    prefixes.insert(key, tokens(200), state(*full, 200, 200), 1);
    files.wait();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_EQ(log_.size(), 1u);  // logged once
  EXPECT_NE(log_[0].find("could not write"), std::string::npos) << log_[0];
  EXPECT_TRUE(fs::is_empty(directory_));
  EXPECT_EQ(files.bytes(), 0);
  const auto cache = prefixes.find("key", *full, tokens(250));
  ASSERT_NE(cache, nullptr);
  EXPECT_EQ(cache->tokens(), 200);
}

// A state that lacks the memory to write its bytes to a file.
class HeavyCache final : public ForwardingCache {
 public:
  explicit HeavyCache(std::unique_ptr<SequenceCache> cache)
      : ForwardingCache({cache.get()}), cache_(std::move(cache)) {}
  std::unique_ptr<SequenceCache> fork() const override { return cache_->fork(); }
  std::unique_ptr<SequenceCache> resume(int64_t prompt) const override { return cache_->resume(prompt); }
  bool save(StateWriter*) const override { throw std::bad_alloc(); }

 private:
  std::unique_ptr<SequenceCache> cache_;
};

TEST_F(PrefixFilesTest, WithoutMemoryToWriteOnlyTheFileIsMissing) {
  const auto full = make_policy(context_, "full");
  PrefixFiles files(options());
  const auto name = files.write({"key", tokens(100), 64, 1}, std::make_shared<HeavyCache>(state(*full, 100, 100)));
  files.wait();
  EXPECT_EQ(files.collect(), std::vector<PrefixFiles::Name>{*name});
  EXPECT_EQ(log_.size(), 1u);
  EXPECT_TRUE(fs::is_empty(directory_));
}

TEST_F(PrefixFilesTest, NamesADirectoryThatCannotBeUsed) {
  const fs::path file = directory_.string() + ".file";
  set_contents(file, "x");
  PrefixFilesOptions bad = options();
  bad.directory = file;
  try {
    const PrefixFiles files(bad);
    FAIL();
  } catch (const CacheError& error) {
    EXPECT_NE(std::string(error.what()).find("prefix_cache_dir: expected a writable directory"), std::string::npos)
        << error.what();
  }
  fs::remove(file);
}

}  // namespace
}  // namespace smartkv
