// Stores states of the prefix cache in files of a directory, so that they survive a restart. Files are written in the
// background, each under its own name, and appear whole or not at all.
//
// The directory holds each page once: a file has the bytes of its state that no other file had when it was written, and
// refers to other files for the rest (state_file.h). So a turn of a conversation writes what is new in it. A file
// counts as used whenever a state that needs it is. Files that are cut short, damaged, foreign or of an earlier version
// are skipped with one line in the log, and so are states that need them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cache/sequence_cache.h"
#include "cache/state_file.h"

namespace smartkv {

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
  using Name = std::string;  // of a state

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
  // Begins to read a state from the disk into memory of the system, so that read() need not wait for the disk.
  void prefetch(const Name& name);
  // Returns the bytes of a state, for KvCachePolicy::load(), and marks the file as used. Nullopt if there is no such
  // file, or if it was damaged; a damaged file is deleted.
  std::optional<std::string> read(const Name& name);
  // Logs `problem` and forgets the state. Deletes those of its files that are damaged, and its own unless other states
  // need it.
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

  int64_t bytes() const;          // of all states in the directory, when they were last counted
  int64_t written_bytes() const;  // that this object has written

 private:
  struct Job {
    Name name;
    PrefixRecord record;
    std::shared_ptr<const SequenceCache> state;
  };
  // A file of this identity, whose pages other files may need.
  struct File {
    int64_t data_begin = 0, data_bytes = 0;
    uint64_t data_checksum = 0;
    std::vector<PageName> pages;
    std::set<Name> users;  // states that need the file
  };
  using Files = std::map<std::string, File>;
  // Where a page is.
  struct Place {
    const Files::value_type* file;
    int64_t offset, bytes;
  };
  struct State {
    std::string file;
    std::set<std::string> needs;  // its own file included
    bool prefetched = false;      // since it was last read
  };
  class NewBytes;

  void find_files();
  // Returns the state of a file. Throws CacheError if it cannot be used.
  PrefixRecord find_state(const std::string& file, const StateHeader& header) const;
  StateHeader read_own_header(const std::string& file) const;  // throws CacheError
  // Reads bytes [from, from + n) of a state. Throws CacheError.
  std::string read_state(const std::string& file, const StateHeader& header, int64_t from, int64_t n) const;

  // REQUIRES for the next five: the caller holds mutex_.
  void add_file(const std::string& file, const StateHeader& header);
  void add_state(const std::string& file, const StateHeader& header);
  void forget_state(const Name& name);
  void forget_file(const std::string& file);  // reports the states that need it as gone
  void unlink(const std::string& file);

  // Deletes those files that are damaged.
  void delete_damaged(const std::set<std::string>& files);
  // Marks files as used, which decides the order in which files are deleted. Returns false, and forgets them, if some
  // are gone.
  bool mark_used(const std::set<std::string>& files);
  // The background thread.
  void work();
  // Returns a copy of what is new in a state, or of all if `alone`, and sets *header.
  std::string new_bytes(const Job& job, bool alone, StateHeader* header);
  // Copies what is new in a state, hands the state over to written_, and writes the copy to a file. Throws CacheError.
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
  // States that collect() will report as deleted or not written.
  std::vector<Name> gone_;
  // The state that is being written. Empty if there is none.
  Name writing_;
  // The state of writing_ is still being copied, so it is not in written_ yet.
  bool saving_ = false;
  int64_t bytes_ = 0, written_bytes_ = 0;
  Files files_;
  std::map<Name, State> states_;
  std::unordered_map<PageName, Place, PageNameHash> pages_;
  bool failed_ = false;  // A failure to write was logged; later ones are not.
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace smartkv
