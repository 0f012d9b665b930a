#include "cache/prefix_files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include <xxhash.h>

#include "cache/state_io.h"

namespace smartkv {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostQueued = 4;   // Each holds its state's memory until it is copied.
constexpr size_t kMostNeeded = 64;  // Files that are open while a state is read. One that needs more is stored whole.

// Returns whether the process that wrote a part has ended. A writer holds a lock on its part.
bool is_abandoned(const fs::path& part) {
  const Descriptor fd(::open(part.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return fd.get() >= 0 && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
}

CacheError gone(const std::string& needed) { return CacheError("it needs " + needed + ", which is gone"); }

// Blocks SIGXFSZ in the calling thread. A file that outgrows RLIMIT_FSIZE then makes write() fail instead of ending the
// process.
void block_file_size_signal() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGXFSZ);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace

// Divides a state into bytes that are stored already and new ones.
class PrefixFiles::NewBytes final : public PageSink {
 public:
  // alone: take every byte as new, so that the state needs no other file.
  NewBytes(const PrefixFiles& files, bool alone) : files_(files), alone_(alone) { XXH3_64bits_reset(sum_.get()); }

  bool keeps(std::string_view written, size_t at) override {
    add_new(written.substr(0, at));
    const std::string_view page = written.substr(at);
    const PageName name = page_name(page);
    const auto own = own_.find(name);
    if (own != own_.end()) {
      add_range(0, own->second, page);
    } else if (const auto stored = find(name, page.size())) {
      add_range(stored->first, stored->second, page);
    } else {
      own_[name] = static_cast<int64_t>(at);
      header_.pages.push_back(name);
      header_.page_offsets.push_back(static_cast<int64_t>(at));
      header_.page_bytes.push_back(static_cast<int64_t>(page.size()));
      add_new(written);
      return true;
    }
    return false;
  }
  // Ends a part of the state, of which the writer has kept `written`. Returns its bytes, stored ones included, and sets
  // *checksum.
  int64_t end_part(std::string_view written, uint64_t* checksum) {
    add_new(written);
    *checksum = XXH3_64bits_digest(sum_.get());
    XXH3_64bits_reset(sum_.get());
    return std::exchange(bytes_, 0);
  }
  StateHeader take_header() { return std::move(header_); }

 private:
  // Returns the number in `needs` of a file that has the page, and where it has it.
  std::optional<std::pair<int64_t, int64_t>> find(const PageName& name, size_t bytes) {
    if (alone_) return std::nullopt;
    const std::lock_guard lock(files_.mutex_);
    const auto at = files_.pages_.find(name);
    if (at == files_.pages_.end() || at->second.bytes != static_cast<int64_t>(bytes)) return std::nullopt;
    const auto [number, added] =
        numbers_.emplace(at->second.file->first, static_cast<int64_t>(header_.needs.size() + 1));
    if (added) header_.needs.push_back(number->first);
    return std::pair(number->second, at->second.offset);
  }
  void add_new(std::string_view written) {
    if (written.size() > end_) add_range(0, static_cast<int64_t>(end_), written.substr(end_));
    end_ = written.size();
  }
  void add_range(int64_t file, int64_t offset, std::string_view bytes) {
    const auto n = static_cast<int64_t>(bytes.size());
    XXH3_64bits_update(sum_.get(), bytes.data(), bytes.size());
    bytes_ += n;
    std::vector<StateRange>& ranges = header_.ranges;
    if (!ranges.empty() && ranges.back().file == file && ranges.back().offset + ranges.back().bytes == offset) {
      ranges.back().bytes += n;
    } else {
      ranges.push_back({file, offset, n});
    }
  }

  const PrefixFiles& files_;
  bool alone_;
  StateHeader header_;
  std::map<std::string, int64_t> numbers_;                   // of files, in header_.needs
  std::unordered_map<PageName, int64_t, PageNameHash> own_;  // offsets of the new pages
  size_t end_ = 0;                                           // of the bytes that belong to ranges already
  int64_t bytes_ = 0;                                        // of this part
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> sum_{XXH3_createState(), &XXH3_freeState};
};

PrefixFiles::PrefixFiles(PrefixFilesOptions options) : options_(std::move(options)) {
  std::error_code error;
  if (fs::create_directories(options_.directory, error)) {
    fs::permissions(options_.directory, fs::perms::owner_all, error);
  }
  const fs::path trial = options_.directory / (".trial." + std::to_string(::getpid()));
  const Descriptor fd(::open(trial.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.get() < 0) {
    throw CacheError("prefix_cache_dir: expected a writable directory, found " + options_.directory.string() + ": " +
                     std::strerror(errno));
  }
  ::unlink(trial.c_str());
  // Handing over a state must not fail for lack of memory: the writer would drop the last reference to it.
  written_.reserve(2 * kMostQueued);
  find_files();
  thread_ = std::thread([this] { work(); });
}

PrefixFiles::~PrefixFiles() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

StateHeader PrefixFiles::read_own_header(const std::string& file) const {
  int64_t bytes = 0;
  const Descriptor fd = open_state_file(options_.directory / file, &bytes);
  if (fd.get() < 0) throw CacheError("it is not a readable regular file");
  StateHeader header = read_header(fd.get(), bytes);
  if (header.identity != options_.identity) {
    throw CacheError("it was written for another model, program or kind of machine");
  }
  return header;
}

void PrefixFiles::find_files() {
  struct Found {
    fs::file_time_type time;
    std::string file;
    StateHeader header;
  };
  std::vector<Found> found;
  const auto skipped = [this](const std::string& file, const CacheError& problem) {
    log("prefix_cache_dir: skipped " + file + ": " + problem.what());
  };
  std::error_code error;
  for (fs::directory_iterator it(options_.directory, error), end; !error && it != end; it.increment(error)) {
    const std::string file = it->path().filename().string();
    if (is_part_name(file)) {
      if (is_abandoned(it->path())) ::unlink(it->path().c_str());
      continue;
    }
    try {
      if (!is_state_file_name(file)) throw CacheError("its name is not that of a state file");
      found.push_back({fs::last_write_time(it->path(), error), file, read_own_header(file)});
    } catch (const CacheError& problem) {
      skipped(file, problem);
    }
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.time < b.time; });
  for (const Found& each : found) add_file(each.file, each.header);
  for (const Found& each : found) {
    try {
      PrefixRecord record = find_state(each.file, each.header);
      const Name name = state_of_file(each.file);
      if (states_.contains(name)) std::erase_if(found_, [&](const auto& other) { return other.first == name; });
      found_.emplace_back(name, std::move(record));
      add_state(each.file, each.header);  // a later file of the same state replaces the one before
    } catch (const CacheError& problem) {
      skipped(each.file, problem);
    }
  }
  make_room(0);
}

PrefixRecord PrefixFiles::find_state(const std::string& file, const StateHeader& header) const {
  PrefixRecord record = header.record;
  const std::string tokens = read_state(file, header, 0, header.token_bytes);
  if (state_checksum(tokens) != header.token_checksum) throw CacheError("the checksum of its tokens is wrong");
  record.tokens.resize(tokens.size() / sizeof(int32_t));
  std::memcpy(record.tokens.data(), tokens.data(), record.tokens.size() * sizeof(int32_t));
  if (state_name(header.identity, record) != state_of_file(file)) throw CacheError("its name belongs to another state");
  for (const std::string& needed : header.needs) {
    if (!files_.contains(needed)) throw gone(needed);
  }
  return record;
}

std::string PrefixFiles::read_state(const std::string& file, const StateHeader& header, int64_t from, int64_t n) const {
  std::string text(static_cast<size_t>(n), '\0');
  struct Opened {
    Descriptor fd;
    int64_t data_begin, data_bytes;
  };
  std::map<int64_t, Opened> opened;
  int64_t at = 0;
  for (const StateRange& range : header.ranges) {
    const int64_t begin = std::max(from, at), end = std::min(from + n, at + range.bytes);
    const int64_t offset = range.offset + begin - at;
    at += range.bytes;
    if (begin >= end) continue;
    const std::string& name = range.file == 0 ? file : header.needs[static_cast<size_t>(range.file - 1)];
    auto it = opened.find(range.file);
    if (it == opened.end()) {
      const std::lock_guard lock(mutex_);
      const auto known = files_.find(name);
      int64_t bytes = 0;
      Descriptor fd = open_state_file(options_.directory / name, &bytes);
      if (known == files_.end() || fd.get() < 0) throw gone(name);
      it = opened.emplace(range.file, Opened{std::move(fd), known->second.data_begin, known->second.data_bytes}).first;
    }
    const auto& [fd, data_begin, data_bytes] = it->second;
    if (offset > data_bytes - (end - begin) ||
        !read_all_at(fd.get(), text.data() + begin - from, end - begin, data_begin + offset)) {
      throw CacheError(name + " is truncated");
    }
  }
  return text;
}

void PrefixFiles::add_file(const std::string& file, const StateHeader& header) {
  const auto at = files_.try_emplace(file).first;
  at->second = {header.data_begin, header.data_bytes, header.data_checksum, header.pages, {}};
  for (size_t i = 0; i < header.pages.size(); ++i) {
    pages_[header.pages[i]] = {&*at, header.page_offsets[i], header.page_bytes[i]};
  }
}

void PrefixFiles::add_state(const std::string& file, const StateHeader& header) {
  const Name name = state_of_file(file);
  forget_state(name);  // one that was written before
  State state = {file, {header.needs.begin(), header.needs.end()}};
  state.needs.insert(file);
  for (const std::string& needed : state.needs) files_.at(needed).users.insert(name);
  states_[name] = std::move(state);
}

void PrefixFiles::forget_state(const Name& name) {
  const auto state = states_.extract(name);
  if (!state) return;
  for (const std::string& file : state.mapped().needs) {
    const auto at = files_.find(file);
    if (at != files_.end()) at->second.users.erase(name);
  }
}

void PrefixFiles::forget_file(const std::string& file) {
  const auto at = files_.find(file);
  if (at == files_.end()) return;
  for (const PageName& page : at->second.pages) {
    const auto place = pages_.find(page);
    if (place != pages_.end() && place->second.file == &*at) pages_.erase(place);
  }
  for (const Name& user : std::set<Name>(at->second.users)) {
    gone_.push_back(user);
    forget_state(user);
  }
  files_.erase(at);
}

std::optional<PrefixFiles::Name> PrefixFiles::write(const PrefixRecord& record,
                                                    std::shared_ptr<const SequenceCache> state) {
  const Name name = state_name(options_.identity, record);
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= kMostQueued) return std::nullopt;
    queue_.push_back({name, record, std::move(state)});
  }
  wake_.notify_one();
  return name;
}

void PrefixFiles::prefetch(const Name& name) {
  std::set<std::string> needs;
  {
    const std::lock_guard lock(mutex_);
    const auto at = states_.find(name);
    if (at == states_.end() || std::exchange(at->second.prefetched, true)) return;
    needs = at->second.needs;
  }
  for (const std::string& file : needs) {
    int64_t bytes = 0;
    const Descriptor fd = open_state_file(options_.directory / file, &bytes);
    if (fd.get() >= 0) ::posix_fadvise(fd.get(), 0, bytes, POSIX_FADV_WILLNEED);
  }
}

std::optional<std::string> PrefixFiles::read(const Name& name) {
  State state;
  {
    const std::lock_guard lock(mutex_);
    const auto at = states_.find(name);
    if (at == states_.end()) return std::nullopt;  // not written yet, or deleted
    at->second.prefetched = false;
    state = at->second;
  }
  try {
    const StateHeader header = read_own_header(state.file);
    std::string text = read_state(state.file, header, header.token_bytes, header.state_bytes);
    if (state_checksum(text) != header.checksum) throw CacheError("the state's checksum is wrong");
    mark_used(state.needs);
    return text;
  } catch (const CacheError& problem) {
    skip(name, problem.what());
  } catch (const std::bad_alloc&) {
    log("prefix_cache_dir: no memory to load " + name);
  }
  return std::nullopt;
}

void PrefixFiles::skip(const Name& name, const std::string& problem) {
  std::unique_lock lock(mutex_);
  std::erase_if(queue_, [&](const Job& job) { return job.name == name; });
  done_.wait(lock, [&] { return writing_ != name; });
  const auto at = states_.find(name);
  if (at == states_.end()) return;
  const State state = at->second;
  forget_state(name);
  lock.unlock();
  log("prefix_cache_dir: skipped " + state.file + ": " + problem);
  delete_damaged(state.needs);
  lock.lock();
  const auto own = files_.find(state.file);
  if (own == files_.end() || !own->second.users.empty()) return;
  forget_file(state.file);
  unlink(state.file);
}

void PrefixFiles::unlink(const std::string& file) {
  const fs::path path = options_.directory / file;
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0 && ::unlink(path.c_str()) == 0) bytes_ -= info.st_size;
}

void PrefixFiles::delete_damaged(const std::set<std::string>& files) {
  for (const std::string& file : files) {
    bool intact = false;
    try {
      const StateHeader header = read_own_header(file);
      std::string data(static_cast<size_t>(header.data_bytes), '\0');
      int64_t bytes = 0;
      const Descriptor fd = open_state_file(options_.directory / file, &bytes);
      intact = fd.get() >= 0 && read_all_at(fd.get(), data.data(), header.data_bytes, header.data_begin) &&
               state_checksum(data) == header.data_checksum;
    } catch (const CacheError&) {  // its header is damaged, or it is gone
    }
    if (intact) continue;
    const std::lock_guard lock(mutex_);
    forget_file(file);
    unlink(file);
  }
}

bool PrefixFiles::mark_used(const std::set<std::string>& files) {
  timespec times[2];
  ::clock_gettime(CLOCK_REALTIME, &times[0]);  // Finer than the time stamps that the kernel sets.
  times[1] = times[0];
  bool all = true;
  for (const std::string& file : files) {
    if (::utimensat(AT_FDCWD, (options_.directory / file).c_str(), times, AT_SYMLINK_NOFOLLOW) == 0) continue;
    if (errno != ENOENT) continue;  // if it is not permitted, only the order suffers
    const std::lock_guard lock(mutex_);
    forget_file(file);
    all = false;
  }
  return all;
}

bool PrefixFiles::cancel(const Name& name) {
  const std::lock_guard lock(mutex_);
  return std::erase_if(queue_, [&](const Job& job) { return job.name == name; }) > 0;
}

std::vector<PrefixFiles::Name> PrefixFiles::collect() {
  std::vector<std::shared_ptr<const SequenceCache>> written;
  const std::lock_guard lock(mutex_);
  written.assign(std::make_move_iterator(written_.begin()), std::make_move_iterator(written_.end()));
  written_.clear();  // Keeps its memory.
  return std::exchange(gone_, {});
}

void PrefixFiles::wait() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return queue_.empty() && writing_.empty(); });
}

int64_t PrefixFiles::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

int64_t PrefixFiles::written_bytes() const {
  const std::lock_guard lock(mutex_);
  return written_bytes_;
}

bool PrefixFiles::holds_memory() const {
  const std::lock_guard lock(mutex_);
  return saving_ || !written_.empty();
}

void PrefixFiles::wait_for_memory(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  done_.wait_for(lock, timeout, [this] { return !saving_ || !written_.empty(); });
}

void PrefixFiles::work() {
  block_file_size_signal();
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Job job = std::move(queue_.front());
    queue_.pop_front();
    writing_ = job.name;
    saving_ = true;
    lock.unlock();
    std::array<char, 256> problem{};
    try {
      write_file(&job);
    } catch (const std::exception& error) {  // Includes std::bad_alloc: a state is as large in a file as in memory.
      std::strncpy(problem.data(), error.what(), problem.size() - 1);
    }
    lock.lock();
    if (problem[0] != '\0') {
      try {
        gone_.push_back(writing_);
        if (!failed_) {
          log("prefix_cache_dir: could not write " + writing_ + ": " + problem.data() +
              "; further failures are not logged");
        }
        failed_ = true;
      } catch (const std::bad_alloc&) {  // read() will find that there is no such file.
      }
    }
    if (job.state != nullptr) written_.push_back(std::move(job.state));
    saving_ = false;
    writing_.clear();
    done_.notify_all();
  }
}

std::string PrefixFiles::new_bytes(const Job& job, bool alone, StateHeader* header) {
  NewBytes sink(*this, alone);
  StateWriter out(&sink);
  write_tokens(job.record.tokens, &out);
  uint64_t token_checksum = 0, checksum = 0;
  const int64_t token_bytes = sink.end_part(out.data(), &token_checksum);
  job.state->save(&out);
  const int64_t state_bytes = sink.end_part(out.data(), &checksum);
  *header = sink.take_header();
  header->identity = options_.identity;
  header->record = job.record;
  header->token_bytes = token_bytes;
  header->state_bytes = state_bytes;
  header->token_checksum = token_checksum;
  header->checksum = checksum;
  header->data_bytes = static_cast<int64_t>(out.data().size());
  header->data_checksum = state_checksum(out.data());
  return out.data();
}

void PrefixFiles::write_file(Job* job) {
  StateHeader header;
  std::string data = new_bytes(*job, false, &header);
  const auto used = [&] { return mark_used({header.needs.begin(), header.needs.end()}); };
  if (header.needs.size() > kMostNeeded || !used()) data = new_bytes(*job, true, &header);
  // Hand over the state before writing, so that a slow disk does not hold its memory.
  {
    const std::lock_guard lock(mutex_);
    written_.push_back(std::move(job->state));
    saving_ = false;
  }
  done_.notify_all();
  uint64_t checksum = 0;
  const std::string head = encode_header(header, &checksum);
  header.data_begin = static_cast<int64_t>(head.size());
  const auto bytes = static_cast<int64_t>(head.size() + data.size());
  make_room(bytes);
  const std::string file = state_file_name(job->name, checksum);
  const fs::path path = options_.directory / file;
  const fs::path part = path.string() + "." + std::to_string(::getpid()) + ".part";
  const Descriptor fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  const bool written = fd.get() >= 0 && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 && write_all(fd.get(), head) &&
                       write_all(fd.get(), data);
  if (!written || ::rename(part.c_str(), path.c_str()) != 0) {
    const int problem = errno;
    ::unlink(part.c_str());
    throw CacheError(std::strerror(problem));
  }
  mark_used({file});
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
  written_bytes_ += bytes;
  for (const std::string& needed : header.needs) {
    if (!files_.contains(needed)) throw CacheError("files that it needs had to be deleted for it");
  }
  add_file(file, header);
  add_state(file, header);
}

void PrefixFiles::make_room(int64_t incoming) {
  struct Listed {
    timespec used;
    std::string name;
    int64_t bytes;
  };
  std::vector<Listed> files;
  int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator it(options_.directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    struct stat info {};
    if (!(is_state_file_name(name) || is_part_name(name)) || ::lstat(it->path().c_str(), &info) != 0 ||
        !S_ISREG(info.st_mode))
      continue;
    bytes += info.st_size;
    if (is_state_file_name(name)) files.push_back({info.st_mtim, name, info.st_size});
  }
  std::sort(files.begin(), files.end(), [](const Listed& a, const Listed& b) {
    return std::tie(a.used.tv_sec, a.used.tv_nsec, a.name) < std::tie(b.used.tv_sec, b.used.tv_nsec, b.name);
  });
  std::vector<std::string> gone;
  const bool fits = incoming <= options_.max_bytes;
  for (const Listed& file : files) {
    if (!fits || bytes + incoming <= options_.max_bytes) break;
    if (::unlink((options_.directory / file.name).c_str()) != 0) continue;
    bytes -= file.bytes;
    gone.push_back(file.name);
  }
  const std::lock_guard lock(mutex_);
  bytes_ = bytes;
  for (const std::string& file : gone) forget_file(file);
  if (bytes + incoming <= options_.max_bytes || incoming == 0) return;
  throw CacheError("expected at most " + std::to_string(options_.max_bytes) +
                   " bytes (prefix_cache_dir_bytes), found " + std::to_string(bytes + incoming));
}

}  // namespace smartkv
