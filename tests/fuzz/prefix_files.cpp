// Files of the prefix cache. The first byte chooses a policy or, as 0, none. Without a policy, the rest is a file. With
// a policy, the rest changes a good file of that policy: three bytes for each change (place and value), with checksums
// that fit.
#include "cache/prefix_files.h"

#include <cstring>

#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "cache/policy.h"
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

  void try_one(const uint8_t* data, size_t size) {
    if (size == 0) return;
    const size_t policy = data[0] % (policies_.size() + 1);
    const std::string file =
        policy == 0 ? std::string(text_of(data + 1, size - 1)) : changed(good_[policy - 1], data + 1, size - 1);
    fs::remove_all(directory_);
    fs::create_directories(directory_);
    write_file(directory_ / name_, file);
    PrefixFiles files({.directory = directory_, .max_bytes = 1 << 30, .identity = "this model"});
    for (const auto& [name, record] : files.take_found()) {
      if (const auto state = files.read(name)) use(*policies_[policy == 0 ? 0 : policy - 1], *state);
    }
  }

 private:
  std::string good_file(const KvCachePolicy& policy) {
    fs::remove_all(directory_);
    const std::shared_ptr<SequenceCache> cache = policy.new_sequence(kPrompt);
    driver_.run(cache.get(), kTokens, 64);
    PrefixFiles files({.directory = directory_, .max_bytes = 1 << 30, .identity = "this model"});
    name_ = files.write({.key = "key", .tokens = std::vector<int32_t>(kTokens), .committed = 0, .own_bytes = 1}, cache)
                .value();
    files.wait();
    files.collect();
    std::ifstream in(directory_ / name_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  static std::string changed(std::string file, const uint8_t* data, size_t size) {
    constexpr size_t kFixed = 16;  // magic, version, bytes of the header
    uint32_t header = 0;
    std::memcpy(&header, file.data() + 12, sizeof(header));
    const size_t state = kFixed + header + 8, end = file.size() - 8;
    for (; size >= 3; data += 3, size -= 3) {
      const size_t at = kFixed + (data[0] | data[1] << 8) % (end - kFixed);
      if (at < kFixed + header || at >= state) file[at] = static_cast<char>(data[2]);
    }
    const uint64_t head_sum = XXH3_64bits(file.data(), kFixed + header);
    const uint64_t state_sum = XXH3_64bits(file.data() + state, end - state);
    std::memcpy(file.data() + kFixed + header, &head_sum, sizeof(head_sum));
    std::memcpy(file.data() + end, &state_sum, sizeof(state_sum));
    return file;
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
  std::vector<std::string> good_;
  std::string name_;
};

}  // namespace
}  // namespace smartkv::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static smartkv::fuzz::Files files;
  files.try_one(data, size);
  return 0;
}
