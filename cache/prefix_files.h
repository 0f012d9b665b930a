// States of a prefix cache in files of a directory, so that they survive a restart: written in the background, each under a
// name of its own, whole or not at all.
//
// A file: "SmartKV\n", u32 version, u32 bytes of the header; the header (identity, key, tokens, what the tree wants to know of
// the state, bytes of the state); u64 checksum of all so far; the state; u64 checksum of the state. Little endian, XXH3 (64
// bits). A file that is cut short, damaged, foreign or stale is skipped with one line in the log.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cache/sequence_cache.h"

namespace smartkv {

// What the prefix cache knows of a state without having it.
struct PrefixRecord {
  std::string key;
  std::vector<int32_t> tokens;
  int64_t committed = 0;  // tokens that it cannot be cut back beyond
  int64_t own_bytes = 0;  // of memory, when it is loaded
};

struct PrefixFilesOptions {
  std::filesystem::path directory;
  int64_t max_bytes = 0;  // of all states in the directory, whoever wrote them; the least recently used are deleted first
  std::string identity;   // of all that a state depends on besides its key: model, program, machine
  std::function<void(const std::string&)> log = {};  // one line; from any thread
};

// All but the background's work is called from one thread.
class PrefixFiles {
 public:
  using Name = std::string;

  // Makes the directory, readable by its owner alone, and reads what is there. Throws CacheError when it cannot be used.
  explicit PrefixFiles(PrefixFilesOptions options);
  ~PrefixFiles();  // what is queued is written first
  PrefixFiles(const PrefixFiles&) = delete;
  PrefixFiles& operator=(const PrefixFiles&) = delete;

  // What was there at the start, longest unused first. Once.
  std::vector<std::pair<Name, PrefixRecord>> take_found() { return std::move(found_); }

  // Queues a state to be written; the name under which it will be found. Nullopt: too much is queued already.
  std::optional<Name> write(const PrefixRecord& record, std::shared_ptr<const SequenceCache> state);
  // The bytes of a state, for KvCachePolicy::load(). Nullopt: there is no such file, or it was damaged and is gone.
  std::optional<std::string> read(const Name& name);
  void skip(const Name& name, const std::string& problem);  // says so in the log, and removes it
  bool cancel(const Name& name);  // true: it was queued, and will not be written
  // Lets go of what was written: states may only be let go of by the thread that owns the caches. Returns the files that
  // went to make room, or could not be written.
  std::vector<Name> collect();
  void wait();  // until nothing is queued
  // Whether collect() will free a state that is being written and that cancel() cannot free.
  bool holds_memory() const;
  void wait_for_memory(std::chrono::milliseconds timeout);  // until collect() frees one, or none is held

  int64_t bytes() const;  // of all states in the directory, as last counted

 private:
  void remove(const Name& name);  // written or still queued
  struct Job {
    Name name;
    PrefixRecord record;
    std::shared_ptr<const SequenceCache> state;
  };

  void find_files();
  void work();
  void write_file(Job* job);  // and hands its state to written_ once it is copied. Throws CacheError
  // Deletes the least recently used states until `incoming` bytes more are within the limit. Throws CacheError if they cannot be.
  void make_room(int64_t incoming);
  void log(const std::string& line) const {
    if (options_.log) options_.log(line);
  }

  PrefixFilesOptions options_;
  std::vector<std::pair<Name, PrefixRecord>> found_;

  mutable std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<Job> queue_;
  std::vector<std::shared_ptr<const SequenceCache>> written_;
  std::vector<Name> gone_;
  Name writing_;  // empty: none
  bool saving_ = false;  // the state of writing_ is not in written_ yet
  int64_t bytes_ = 0;
  bool failed_ = false;  // said once
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace smartkv
