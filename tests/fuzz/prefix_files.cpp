// Files of the prefix cache. The first byte chooses a policy or, as 0, none. Without a policy, the rest is a file. With
// a policy, the rest changes a good file of that policy: three bytes for each change (place and value), with checksums
// that fit.
#include "cache/prefix_files.h"

#include <cstring>

#include <nlohmann/json.hpp>

#include "cache/policy.h"
#include "cache/state_file.h"
#include "cache/state_io.h"
#include "kernels/thread_pool.h"
#include "tests/cache/cache_driver.h"
#include "tests/fuzz/input.h"

namespace smartkv::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTokens = 280, kPrompt = 330, kFurther = 4;

class Files {
 public:
  Files() : directory_(scratch_directory() / "prefixes") {
    for (const char* spec : {R"("full")", R"("k4v4")", R"("mixed_precision")", R"({"policy": "snapkv", "tokens": 192})",
                             R"({"policy": "block_summary", "tokens": 256, "window": 64})", R"("channel_packed")"}) {
      policies_.push_back(make_policy(context_, nlohmann::json::parse(spec)));
      good_.push_back(good_file(*policies_.back()));
    }
  }

  // A file of a whole state, divided into what stands in front of the data, and the data.
  struct Good {
    std::string name, data;
    StateHeader header;
  };

  void try_one(const uint8_t* data, size_t size) {
    if (size == 0) return;
    const size_t policy = data[0] % (policies_.size() + 1);
    const std::string file =
        policy == 0 ? std::string(text_of(data + 1, size - 1)) : changed(good_[policy - 1], data + 1, size - 1);
    fs::remove_all(directory_);
    fs::create_directories(directory_);
    write_file(directory_ / good_[policy == 0 ? 0 : policy - 1].name, file);
    PrefixFiles files({.directory = directory_, .max_bytes = 1 << 30, .identity = "this model"});
    for (const auto& [name, record] : files.take_found()) {
      if (const auto state = files.read(name)) use(*policies_[policy == 0 ? 0 : policy - 1], *state);
    }
  }

 private:
  Good good_file(const KvCachePolicy& policy) {
    fs::remove_all(directory_);
    const std::shared_ptr<SequenceCache> cache = policy.new_sequence(kPrompt);
    driver_.run(cache.get(), kTokens, 64);
    PrefixFiles files({.directory = directory_, .max_bytes = 1 << 30, .identity = "this model"});
    files.write({.key = "key", .tokens = std::vector<int32_t>(kTokens), .committed = 0, .own_bytes = 1}, cache);
    files.wait();
    files.collect();
    const fs::path path = fs::directory_iterator(directory_)->path();
    int64_t bytes = 0;
    const Descriptor fd = open_state_file(path, &bytes);
    Good good = {path.filename().string(), "", read_header(fd.get(), bytes)};
    good.data.resize(static_cast<size_t>(good.header.data_bytes));
    read_all_at(fd.get(), good.data.data(), good.header.data_bytes, good.header.data_begin);
    return good;
  }

  // Changes bytes of the data, and of the header if the place is in its last quarter of places.
  static std::string changed(Good good, const uint8_t* data, size_t size) {
    std::vector<std::pair<size_t, char>> of_header;
    for (; size >= 3; data += 3, size -= 3) {
      const size_t at = data[0] | data[1] << 8;
      if (at >= 0xC000) {
        of_header.emplace_back(at - 0xC000, static_cast<char>(data[2]));
      } else {
        good.data[at % good.data.size()] = static_cast<char>(data[2]);
      }
    }
    std::string state;
    for (const StateRange& range : good.header.ranges) {
      state.append(good.data, static_cast<size_t>(range.offset), static_cast<size_t>(range.bytes));
    }
    const auto tokens = static_cast<size_t>(good.header.token_bytes);
    good.header.token_checksum = state_checksum(std::string_view(state).substr(0, tokens));
    good.header.checksum = state_checksum(std::string_view(state).substr(tokens));
    good.header.data_checksum = state_checksum(good.data);
    uint64_t sum = 0;
    std::string head = encode_header(good.header, &sum);
    constexpr size_t kFixed = 16;  // magic, version, bytes of the header
    const size_t end = head.size() - sizeof(sum);
    for (const auto& [at, value] : of_header) head[kFixed + at % (end - kFixed)] = value;
    sum = state_checksum(std::string_view(head).substr(0, end));
    std::memcpy(head.data() + end, &sum, sizeof(sum));
    return head + good.data;
  }

  void use(const KvCachePolicy& policy, const std::string& state) {
    try {
      StateReader in(state);
      const auto cache = policy.load(&in);
      cache->stats();
      if (cache->tokens() < 10 * kTokens) driver_.run(cache->fork().get(), cache->tokens() + kFurther, 64);
    } catch (const std::exception&) {  // ends only the sequence that would resume from it
    }
  }

  fs::path directory_;
  CacheShape shape_{1, 1, 64, kernels::KvType::kBf16};
  ThreadPool threads_{1};
  PolicyContext context_{shape_, PagePool::create(shape_), &threads_};
  CacheDriver driver_{shape_, 2, &threads_};
  std::vector<std::unique_ptr<KvCachePolicy>> policies_;
  std::vector<Good> good_;
};

}  // namespace
}  // namespace smartkv::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static smartkv::fuzz::Files files;
  files.try_one(data, size);
  return 0;
}
