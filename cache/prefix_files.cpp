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

constexpr char kMagic[] = {'S', 'm', 'a', 'r', 't', 'K', 'V', '\n'};
constexpr uint32_t kVersion = 2;
constexpr uint32_t kMostHeader = uint32_t{1} << 28;
constexpr size_t kMostQueued = 4;  // Each holds its state's memory until it is copied.
constexpr std::string_view kSuffix = ".kv", kPartSuffix = ".part";
constexpr size_t kHashDigits = 32;

uint64_t checksum(const void* data, size_t n) { return XXH3_64bits(data, n); }

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

bool is_state_name(std::string_view name) {
  return name.size() == kHashDigits + kSuffix.size() && name.ends_with(kSuffix) &&
         name.substr(0, kHashDigits).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Returns whether this is the name of a state that some process is writing: NAME.PID.part.
bool is_part_name(std::string_view name) {
  const size_t end = kHashDigits + kSuffix.size();
  return name.size() > end + 1 + kPartSuffix.size() && is_state_name(name.substr(0, end)) && name[end] == '.' &&
         name.ends_with(kPartSuffix) &&
         name.substr(end + 1, name.size() - end - 1 - kPartSuffix.size()).find_first_not_of("0123456789") ==
             std::string_view::npos;
}

// Returns whether the process that wrote a part has ended. A writer holds a lock on its part.
bool is_abandoned(const fs::path& part) {
  const Descriptor fd(::open(part.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return fd.get() >= 0 && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
}

// Sets the time of last use, which decides the order in which files are deleted. If that is not permitted, only the
// order suffers.
void mark_used(int fd) {
  timespec times[2];
  ::clock_gettime(CLOCK_REALTIME, &times[0]);  // Finer than the time stamps that the kernel sets.
  times[1] = times[0];
  ::futimens(fd, times);
}

bool write_all(int fd, const std::string& data) {
  for (size_t at = 0; at < data.size();) {
    const ssize_t n = ::write(fd, data.data() + at, data.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += static_cast<size_t>(n);
  }
  return true;
}

bool read_all(int fd, void* to, size_t n) {
  for (size_t at = 0; at < n;) {
    const ssize_t got = ::read(fd, static_cast<char*>(to) + at, n - at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += static_cast<size_t>(got);
  }
  return true;
}

void write_text(StateWriter* out, const std::string& text) { out->values(std::vector<char>(text.begin(), text.end())); }

std::string read_text(StateReader* in) {
  const std::vector<char> text = in->values<char>();
  return {text.begin(), text.end()};
}

struct Header {
  std::string identity;
  PrefixRecord record;
  int64_t state_bytes = 0;
};

std::string encode(const Header& header) {
  StateWriter body;
  write_text(&body, header.identity);
  write_text(&body, header.record.key);
  body.fields(header.record.tokens, header.record.committed, header.record.own_bytes, header.state_bytes);
  StateWriter out;
  out.bytes(kMagic, sizeof(kMagic));
  out.value(kVersion);
  out.value(static_cast<uint32_t>(body.data().size()));
  out.bytes(body.data().data(), body.data().size());
  out.value(checksum(out.data().data(), out.data().size()));
  return out.data();
}

// Reads up to where the state begins. Throws CacheError saying what is wrong.
Header read_header(int fd, int64_t file_bytes) {
  std::string text(sizeof(kMagic) + 2 * sizeof(uint32_t), '\0');
  if (!read_all(fd, text.data(), text.size())) throw CacheError("the file is truncated");
  if (std::memcmp(text.data(), kMagic, sizeof(kMagic)) != 0) throw CacheError("it is not a SmartKV state file");
  uint32_t version = 0, bytes = 0;
  std::memcpy(&version, text.data() + sizeof(kMagic), sizeof(version));
  std::memcpy(&bytes, text.data() + sizeof(kMagic) + sizeof(version), sizeof(bytes));
  if (version != kVersion) {
    throw CacheError("expected version " + std::to_string(kVersion) + ", found " + std::to_string(version));
  }
  const size_t start = text.size();
  if (bytes > kMostHeader || static_cast<int64_t>(start + bytes + sizeof(uint64_t)) > file_bytes) {
    throw CacheError("the file is truncated");
  }
  text.resize(start + bytes);
  uint64_t found = 0;
  if (!read_all(fd, text.data() + start, bytes) || !read_all(fd, &found, sizeof(found))) {
    throw CacheError("the file is truncated");
  }
  if (found != checksum(text.data(), text.size())) throw CacheError("the header's checksum is wrong");
  StateReader in(std::span<const char>(text).subspan(start));
  Header header;
  header.identity = read_text(&in);
  header.record.key = read_text(&in);
  in.fields(header.record.tokens, header.record.committed, header.record.own_bytes, header.state_bytes);
  const auto whole = static_cast<int64_t>(text.size() + 2 * sizeof(uint64_t));
  if (header.state_bytes < 0 || whole + header.state_bytes != file_bytes) {
    throw CacheError("expected " + std::to_string(whole + header.state_bytes) + " bytes, found " +
                     std::to_string(file_bytes));
  }
  return header;
}

std::string name_of(const std::string& identity, const PrefixRecord& record) {
  StateWriter text;
  write_text(&text, identity);
  write_text(&text, record.key);
  text.values(record.tokens);
  const XXH128_hash_t hash = XXH3_128bits(text.data().data(), text.data().size());
  std::string name;
  for (const uint64_t half : {hash.high64, hash.low64}) {
    for (int shift = 60; shift >= 0; shift -= 4) name += "0123456789abcdef"[half >> shift & 15];
  }
  return name.append(kSuffix);
}

// Opens a regular file for reading and sets *size to its bytes. Returns a negative number on failure.
int open_file(const fs::path& path, int64_t* size) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat info {};
  if (fd >= 0 && (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))) {
    ::close(fd);
    return -1;
  }
  *size = info.st_size;
  return fd;
}

// Blocks SIGXFSZ in the calling thread. A file that outgrows RLIMIT_FSIZE then makes write() fail instead of ending the
// process.
void block_file_size_signal() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGXFSZ);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace

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

void PrefixFiles::find_files() {
  struct Found {
    fs::file_time_type time;
    Name name;
    PrefixRecord record;
  };
  std::vector<Found> found;
  std::error_code error;
  for (fs::directory_iterator it(options_.directory, error), end; !error && it != end; it.increment(error)) {
    const fs::path path = it->path();
    const std::string name = path.filename().string();
    if (is_part_name(name)) {
      if (is_abandoned(path)) ::unlink(path.c_str());
      continue;
    }
    try {
      if (!is_state_name(name)) throw CacheError("its name is not that of a state file");
      int64_t bytes = 0;
      const Descriptor fd(open_file(path, &bytes));
      if (fd.get() < 0) throw CacheError("it is not a readable regular file");
      Header header = read_header(fd.get(), bytes);
      if (header.identity != options_.identity) {
        throw CacheError("it was written for another model, program or kind of machine");
      }
      if (name_of(header.identity, header.record) != name) throw CacheError("its name belongs to another state");
      found.push_back({fs::last_write_time(path, error), name, std::move(header.record)});
    } catch (const CacheError& problem) {
      log("prefix_cache_dir: skipped " + name + ": " + problem.what());
    }
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.time < b.time; });
  for (Found& file : found) found_.emplace_back(file.name, std::move(file.record));
  make_room(0);
}

std::optional<PrefixFiles::Name> PrefixFiles::write(const PrefixRecord& record,
                                                    std::shared_ptr<const SequenceCache> state) {
  const Name name = name_of(options_.identity, record);
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= kMostQueued) return std::nullopt;
    queue_.push_back({name, record, std::move(state)});
  }
  wake_.notify_one();
  return name;
}

std::optional<std::string> PrefixFiles::read(const Name& name) {
  const fs::path path = options_.directory / name;
  try {
    int64_t bytes = 0;
    const Descriptor fd(open_file(path, &bytes));
    if (fd.get() < 0) return std::nullopt;
    const Header header = read_header(fd.get(), bytes);
    if (header.identity != options_.identity || name_of(header.identity, header.record) != name) {
      throw CacheError("it holds another state");
    }
    std::string state(static_cast<size_t>(header.state_bytes), '\0');
    uint64_t found = 0;
    if (!read_all(fd.get(), state.data(), state.size()) || !read_all(fd.get(), &found, sizeof(found))) {
      throw CacheError("the file is truncated");
    }
    if (found != checksum(state.data(), state.size())) throw CacheError("the state's checksum is wrong");
    mark_used(fd.get());
    return state;
  } catch (const CacheError& problem) {
    skip(name, problem.what());
    return std::nullopt;
  }
}

void PrefixFiles::skip(const Name& name, const std::string& problem) {
  log("prefix_cache_dir: skipped " + name + ": " + problem);
  remove(name);
}

void PrefixFiles::remove(const Name& name) {
  std::unique_lock lock(mutex_);
  std::erase_if(queue_, [&](const Job& job) { return job.name == name; });
  done_.wait(lock, [&] { return writing_ != name; });
  const fs::path path = options_.directory / name;
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0 && ::unlink(path.c_str()) == 0) bytes_ -= info.st_size;
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

void PrefixFiles::write_file(Job* job) {
  StateWriter state;
  job->state->save(&state);
  // Hand over the state before writing, so that a slow disk does not hold its memory.
  {
    const std::lock_guard lock(mutex_);
    written_.push_back(std::move(job->state));
    saving_ = false;
  }
  done_.notify_all();
  const std::string header = encode({options_.identity, job->record, static_cast<int64_t>(state.data().size())});
  StateWriter sum;
  sum.value(checksum(state.data().data(), state.data().size()));
  const auto bytes = static_cast<int64_t>(header.size() + state.data().size() + sum.data().size());
  make_room(bytes);
  const fs::path path = options_.directory / job->name;
  const fs::path part = path.string() + "." + std::to_string(::getpid()) + std::string(kPartSuffix);
  const Descriptor fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  const bool written = fd.get() >= 0 && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 && write_all(fd.get(), header) &&
                       write_all(fd.get(), state.data()) && write_all(fd.get(), sum.data());
  if (written) mark_used(fd.get());
  if (!written || ::rename(part.c_str(), path.c_str()) != 0) {
    const int problem = errno;
    ::unlink(part.c_str());
    throw CacheError(std::strerror(problem));
  }
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
}

void PrefixFiles::make_room(int64_t incoming) {
  struct File {
    timespec used;
    Name name;
    int64_t bytes;
  };
  std::vector<File> files;
  int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator it(options_.directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    struct stat info {};
    if (!(is_state_name(name) || is_part_name(name)) || ::lstat(it->path().c_str(), &info) != 0 ||
        !S_ISREG(info.st_mode))
      continue;
    bytes += info.st_size;
    if (is_state_name(name)) files.push_back({info.st_mtim, name, info.st_size});
  }
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) {
    return std::tie(a.used.tv_sec, a.used.tv_nsec, a.name) < std::tie(b.used.tv_sec, b.used.tv_nsec, b.name);
  });
  std::vector<Name> gone;
  const bool fits = incoming <= options_.max_bytes;
  for (const File& file : files) {
    if (!fits || bytes + incoming <= options_.max_bytes) break;
    if (::unlink((options_.directory / file.name).c_str()) != 0) continue;
    bytes -= file.bytes;
    gone.push_back(file.name);
  }
  const std::lock_guard lock(mutex_);
  bytes_ = bytes;
  gone_.insert(gone_.end(), gone.begin(), gone.end());
  if (bytes + incoming <= options_.max_bytes || incoming == 0) return;
  throw CacheError("expected at most " + std::to_string(options_.max_bytes) +
                   " bytes (prefix_cache_dir_bytes), found " + std::to_string(bytes + incoming));
}

}  // namespace smartkv
