// Stores states of the prefix cache in files of a directory, so that they survive a restart. Files are written in the
// background, each under its own name, and appear whole or not at all.
//
// Format of a file, little endian, with 64-bit XXH3 checksums:
//  - "SmartKV\n", u32 version, u32 size of the header in bytes;
//  - the header: identity, key, tokens, committed tokens, own bytes, size of the state in bytes;
//  - u64 checksum of everything so far;
//  - the state;
//  - u64 checksum of the state.
// A file that is cut short, damaged, foreign or stale is skipped with one line in the log.
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

// Description of a state that is not in memory, as the prefix cache needs it.
struct PrefixRecord {
  std::string key;
  std::vector<int32_t> tokens;
  // Committed tokens. The state cannot be cut back to fewer.
  int64_t committed = 0;
  // Bytes of memory that the state takes once it is loaded.
  int64_t own_bytes = 0;
};

struct PrefixFilesOptions {
  std::filesystem::path directory;
  // Limit for all states in the directory, whichever process wrote them. The least recently used are deleted first.
  int64_t max_bytes = 0;
  // Identifies everything that a state depends on besides its key: model, program, kind of machine.
  std::string identity;
  // Called with one line of text, from any thread.
  std::function<void(const std::string&)> log = {};
};

// REQUIRES: all methods are called from one thread. A background thread, which this object owns, writes the files.
class PrefixFiles {
 public:
  using Name = std::string;

  // Creates the directory, accessible by its owner only, if it is missing, and reads the headers of the files in it.
  // Throws CacheError if the directory cannot be written to.
  explicit PrefixFiles(PrefixFilesOptions options);
  // Waits until every queued state is written.
  ~PrefixFiles();
  PrefixFiles(const PrefixFiles&) = delete;
  PrefixFiles& operator=(const PrefixFiles&) = delete;

  // Returns the usable files found at the start, least recently used first. Call it once.
  std::vector<std::pair<Name, PrefixRecord>> take_found() { return std::move(found_); }

  // Queues a state to be written and returns the name under which read() will find it. Nullopt if too many states are
  // queued already.
  std::optional<Name> write(const PrefixRecord& record, std::shared_ptr<const SequenceCache> state);
  // Returns the bytes of a state, for KvCachePolicy::load(), and marks the file as used. Nullopt if there is no such
  // file, or if it was damaged; a damaged file is deleted.
  std::optional<std::string> read(const Name& name);
  // Logs `problem` and deletes the file.
  void skip(const Name& name, const std::string& problem);
  // Takes a state out of the queue. Returns false if it was not queued (any more).
  bool cancel(const Name& name);
  // Releases the states that were written: only the thread that owns the caches may drop the last reference to a state.
  // Returns the names of files that were deleted to make room or could not be written.
  std::vector<Name> collect();
  // Waits until nothing is queued or being written.
  void wait();
  // Returns whether the background holds a state that cancel() cannot free but collect() will: one that is being
  // copied, or that was copied already.
  bool holds_memory() const;
  // Waits until collect() has a state to release, or until no state is being copied, but not longer than `timeout`.
  void wait_for_memory(std::chrono::milliseconds timeout);

  // Bytes of all states in the directory, when they were last counted.
  int64_t bytes() const;

 private:
  // Deletes a state's file or takes it out of the queue. Waits if it is being written.
  void remove(const Name& name);
  struct Job {
    Name name;
    PrefixRecord record;
    std::shared_ptr<const SequenceCache> state;
  };

  void find_files();
  // The background thread.
  void work();
  // Copies a state, hands it over to written_, and writes the copy to its file. Throws CacheError.
  void write_file(Job* job);
  // Deletes the least recently used files until `incoming` more bytes are within the limit. Throws CacheError if that
  // is impossible.
  void make_room(int64_t incoming);
  void log(const std::string& line) const {
    if (options_.log) options_.log(line);
  }

  PrefixFilesOptions options_;
  std::vector<std::pair<Name, PrefixRecord>> found_;

  mutable std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<Job> queue_;
  // States that were copied, for collect() to release.
  std::vector<std::shared_ptr<const SequenceCache>> written_;
  // Files that collect() will report as deleted or not written.
  std::vector<Name> gone_;
  // The file that is being written. Empty if there is none.
  Name writing_;
  // The state of writing_ is still being copied, so it is not in written_ yet.
  bool saving_ = false;
  int64_t bytes_ = 0;
  bool failed_ = false;  // A failure to write was logged; later ones are not.
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace smartkv
