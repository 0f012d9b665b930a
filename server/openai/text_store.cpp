#include "server/openai/text_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <list>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "cache/descriptor.h"
#include "engine/log.h"

namespace smartkv::openai {

namespace {

namespace fs = std::filesystem;

class MemoryTexts final : public TextStore {
 public:
  explicit MemoryTexts(int64_t max_bytes) : max_bytes_(max_bytes) {}

  bool put(const std::string& name, std::string text) override {
    const std::lock_guard lock(mutex_);
    const int64_t bytes = bytes_of(name, text);
    if (bytes > max_bytes_) return false;
    if (const auto before = entries_.find(name); before != entries_.end()) remove(before);
    while (bytes_ + bytes > max_bytes_) remove(entries_.find(order_.back()));
    std::list<std::string> first = {name};
    entries_[name] = {std::move(text), first.begin()};
    order_.splice(order_.begin(), first);
    bytes_ += bytes;
    return true;
  }

  std::optional<std::string> get(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) return std::nullopt;
    order_.splice(order_.begin(), order_, found->second.place);
    return found->second.text;
  }

  bool erase(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) return false;
    remove(found);
    return true;
  }

 private:
  struct Entry {
    std::string text;
    std::list<std::string>::iterator place;  // in order_
  };
  using Entries = std::unordered_map<std::string, Entry>;

  static int64_t bytes_of(const std::string& name, const std::string& text) {
    return static_cast<int64_t>(text.size() + 2 * name.size() + sizeof(Entries::value_type) + sizeof(std::string));
  }
  void remove(Entries::iterator entry) {
    bytes_ -= bytes_of(entry->first, entry->second.text);
    order_.erase(entry->second.place);
    entries_.erase(entry);
  }

  const int64_t max_bytes_;
  std::mutex mutex_;
  int64_t bytes_ = 0;
  std::list<std::string> order_;  // the most recently used first
  Entries entries_;
};

class FolderTexts final : public TextStore {
 public:
  FolderTexts(int64_t max_bytes, fs::path folder) : max_bytes_(max_bytes), folder_(std::move(folder)) {
    std::error_code problem;
    if (fs::create_directories(folder_, problem)) fs::permissions(folder_, fs::perms::owner_all, problem);
    if (!problem && ::access(folder_.c_str(), R_OK | W_OK | X_OK) != 0)
      problem = std::error_code(errno, std::generic_category());
    if (problem) throw std::runtime_error(folder_.string() + ": " + problem.message());
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
      std::error_code gone;
      const fs::path& path = entry.path();
      const bool unfinished = path.extension() == kPart && path.filename().string().find(kSuffix) != std::string::npos;
      if (unfinished && age(entry) > kAbandoned) fs::remove(path, gone);
    }
    make_room();
  }

  bool put(const std::string& name, std::string text) override {
    if (static_cast<int64_t>(text.size()) > max_bytes_) return false;
    const std::lock_guard lock(mutex_);
    const fs::path path = path_of(name), part = path.string() + "." + std::to_string(::getpid()) + kPart;
    if (!write(part, text) || ::rename(part.c_str(), path.c_str()) != 0) {
      log_error(path.string() + ": " + std::strerror(errno));
      ::unlink(part.c_str());
      return false;
    }
    mark_used(path);
    bytes_ += static_cast<int64_t>(text.size());
    if (bytes_ > max_bytes_) make_room();
    return true;
  }

  std::optional<std::string> get(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    std::error_code problem;
    if (!fs::is_regular_file(path_of(name), problem)) return std::nullopt;
    const auto bytes = fs::file_size(path_of(name), problem);
    if (problem || bytes > static_cast<uintmax_t>(max_bytes_)) return std::nullopt;  // put() wrote no such file
    std::ifstream file(path_of(name), std::ios::binary);
    if (!file) return std::nullopt;
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (file.bad()) return std::nullopt;
    mark_used(path_of(name));
    return text;
  }

  bool erase(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    std::error_code problem;
    const auto bytes = static_cast<int64_t>(fs::file_size(path_of(name), problem));
    if (problem || !fs::remove(path_of(name), problem)) return false;
    bytes_ -= bytes;
    return true;
  }

 private:
  static constexpr const char* kSuffix = ".response";
  static constexpr const char* kPart = ".part";
  // Share of the limit that files take after some were deleted, so that few scans are needed.
  static constexpr double kRoom = 0.9;
  static constexpr auto kAbandoned = std::chrono::hours(1);  // an unfinished file that nobody writes any more

  struct File {
    fs::file_time_type used;
    int64_t bytes;
    fs::path path;
  };

  static fs::file_time_type::duration age(const fs::directory_entry& entry) {
    std::error_code gone;
    const auto time = entry.last_write_time(gone);
    return gone ? fs::file_time_type::duration(0) : fs::file_time_type::clock::now() - time;
  }

  // Sets the time of a file to now. The time that writing sets may be some milliseconds old, so it orders nothing.
  static void mark_used(const fs::path& path) {
    std::error_code gone;
    fs::last_write_time(path, fs::file_time_type::clock::now(), gone);
  }

  fs::path path_of(const std::string& name) const { return folder_ / (name + kSuffix); }

  static bool write(const fs::path& path, std::string_view text) {
    const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    return file.get() >= 0 && write_all(file.get(), text);
  }

  // Counts the files anew, because other processes write and delete some, and deletes the oldest beyond the limit.
  void make_room() {
    std::vector<File> files;
    bytes_ = 0;
    std::error_code gone;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_, gone)) {
      if (entry.path().extension() != kSuffix || !entry.is_regular_file(gone)) continue;
      const auto used = entry.last_write_time(gone);
      const auto bytes = static_cast<int64_t>(gone ? 0 : entry.file_size(gone));
      if (gone) continue;
      files.push_back({used, bytes, entry.path()});
      bytes_ += bytes;
    }
    if (bytes_ <= max_bytes_) return;
    std::ranges::sort(files, {}, &File::used);
    const auto room = static_cast<int64_t>(kRoom * static_cast<double>(max_bytes_));
    for (size_t i = 0; i + 1 < files.size() && bytes_ > room; ++i) {  // the last one is the newest
      const File& file = files[i];
      fs::remove(file.path, gone);
      bytes_ -= file.bytes;
    }
  }

  const int64_t max_bytes_;
  const fs::path folder_;
  std::mutex mutex_;
  int64_t bytes_ = 0;  // of the files, as far as this process knows
};

}  // namespace

std::unique_ptr<TextStore> texts_in_memory(int64_t max_bytes) { return std::make_unique<MemoryTexts>(max_bytes); }

std::unique_ptr<TextStore> texts_in_folder(int64_t max_bytes, fs::path folder) {
  return std::make_unique<FolderTexts>(max_bytes, std::move(folder));
}

}  // namespace smartkv::openai
