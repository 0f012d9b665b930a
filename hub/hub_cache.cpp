#include "hub/hub_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "hub/hub_error.h"
#include "hub/letters.h"

namespace smartkv {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "models--";

// "ORG/NAME" as a folder's name, and back.
std::string folder_name(std::string repo) {
  for (size_t at; (at = repo.find('/')) != std::string::npos;) repo.replace(at, 1, "--");
  return std::string(kPrefix) + repo;
}
std::string repo_name(std::string folder) {
  folder.erase(0, kPrefix.size());
  if (const auto at = folder.find("--"); at != std::string::npos) folder.replace(at, 2, "/");
  return folder;
}

// Calls use(path of a link or file, path below the snapshot) for all files of a snapshot.
template <typename Use>
void for_each_file(const fs::path& snapshot, const Use& use) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(snapshot, error), end; !error && it != end; it.increment(error)) {
    if (!it->is_directory(error)) use(it->path(), it->path().lexically_relative(snapshot).string());
  }
}

template <typename Use>
void for_each_snapshot(const fs::path& repo_folder, const Use& use) {
  std::error_code error;
  for (fs::directory_iterator it(repo_folder / "snapshots", error), end; !error && it != end; it.increment(error)) {
    use(it->path());
  }
}

}  // namespace

fs::path HubCache::repo_folder(const std::string& repo) const { return folder_ / folder_name(repo); }

std::optional<std::string> HubCache::commit_of(const std::string& repo, const std::string& revision) const {
  std::error_code error;
  if (is_hash(revision, kSha1) && fs::is_directory(snapshot(repo, revision), error)) return revision;
  std::ifstream file(repo_folder(repo) / "refs" / revision);
  std::string commit;
  if (!(file >> commit) || !is_hash(commit, kSha1) || !fs::is_directory(snapshot(repo, commit), error))
    return std::nullopt;
  return commit;
}

void HubCache::set_commit(const std::string& repo, const std::string& revision, const std::string& commit) const {
  if (revision == commit) return;
  const fs::path file = repo_folder(repo) / "refs" / revision,
                 unfinished = file.string() + "." + std::to_string(::getpid());
  fs::create_directories(file.parent_path());
  std::ofstream(unfinished) << commit;
  fs::rename(unfinished, file);
}

fs::path HubCache::snapshot(const std::string& repo, const std::string& commit) const {
  return repo_folder(repo) / "snapshots" / commit;
}

std::vector<std::string> HubCache::files(const std::string& repo, const std::string& commit) const {
  std::vector<std::string> names;
  for_each_file(snapshot(repo, commit), [&](const fs::path& path, const std::string& name) {
    std::error_code error;
    if (fs::exists(path, error)) names.push_back(name);
  });
  std::ranges::sort(names);
  return names;
}

fs::path HubCache::blob(const std::string& repo, const std::string& etag) const {
  return repo_folder(repo) / "blobs" / etag;
}

fs::path HubCache::incomplete(const std::string& repo, const std::string& etag) const {
  return blob(repo, etag).string() + ".incomplete";
}

fs::path HubCache::lock_file(const std::string& repo, const std::string& etag) const {
  return folder_ / ".locks" / folder_name(repo) / (etag + ".lock");
}

void HubCache::link(const std::string& repo, const std::string& commit, const std::string& file,
                    const std::string& etag) const {
  const fs::path path = snapshot(repo, commit) / file, unfinished = path.string() + "." + std::to_string(::getpid());
  fs::create_directories(path.parent_path());
  const fs::path target = blob(repo, etag).lexically_relative(path.parent_path());
  std::error_code error;
  if (fs::is_symlink(path, error) && fs::read_symlink(path, error) == target) return;
  fs::remove(unfinished, error);
  fs::create_symlink(target, unfinished);
  fs::rename(unfinished, path);
}

std::vector<CachedModel> HubCache::models() const {
  std::vector<CachedModel> all;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPrefix) || !it->is_directory()) continue;
    CachedModel model{.repo = repo_name(name)};
    std::error_code ignored;
    model.used = fs::last_write_time(it->path(), ignored);
    for (fs::directory_iterator blob(it->path() / "blobs", ignored), last; !ignored && blob != last;
         blob.increment(ignored)) {
      struct stat status {};
      if (::stat(blob->path().c_str(), &status) != 0) continue;
      model.bytes += status.st_size;
      const auto read = std::chrono::system_clock::from_time_t(std::max(status.st_atime, status.st_mtime));
      model.used = std::max(model.used, std::chrono::file_clock::from_sys(read));
    }
    std::set<std::string> files;
    for_each_snapshot(it->path(), [&](const fs::path& snapshot) {
      for_each_file(snapshot, [&](const fs::path& path, const std::string& file) {
        if (std::error_code gone; fs::exists(path, gone)) files.insert(file);
      });
    });
    model.files.assign(files.begin(), files.end());
    all.push_back(std::move(model));
  }
  std::ranges::sort(all, {}, &CachedModel::repo);
  return all;
}

int64_t HubCache::remove(const std::string& repo, const std::string& quantization) const {
  const fs::path folder = repo_folder(repo);
  std::error_code error;
  if (!fs::is_directory(folder, error)) throw HubError(repo + " is not in " + folder_.string());
  const auto size_of_blobs = [&] {
    int64_t bytes = 0;
    std::error_code ignored;
    for (fs::directory_iterator it(folder / "blobs", ignored), end; !ignored && it != end; it.increment(ignored)) {
      bytes += static_cast<int64_t>(it->file_size());
    }
    return bytes;
  };
  const int64_t before = size_of_blobs();
  if (quantization.empty()) {
    fs::remove_all(folder);
    fs::remove_all(folder_ / ".locks" / folder_name(repo), error);
    return before;
  }
  std::vector<fs::path> links;
  std::set<fs::path> blobs, used;
  for_each_snapshot(folder, [&](const fs::path& snapshot) {
    for_each_file(snapshot, [&](const fs::path& path, const std::string& name) {
      const fs::path blob = fs::weakly_canonical(path);
      if (name.ends_with(".gguf") && lower(name).find(lower(quantization)) != std::string::npos) {
        links.push_back(path);
        blobs.insert(blob);
      } else {
        used.insert(blob);
      }
    });
  });
  if (links.empty())
    throw HubError(repo + ": no file in " + folder_.string() + " has \"" + quantization + "\" in its name");
  for (const fs::path& link : links) fs::remove(link);
  for (const fs::path& blob : blobs) {
    if (!used.contains(blob)) fs::remove(blob, error);
  }
  return before - size_of_blobs();
}

FileLock::FileLock(const fs::path& file) {
  fs::create_directories(file.parent_path());
  descriptor_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  int result = -1;
  while (descriptor_ >= 0 && (result = ::flock(descriptor_, LOCK_EX)) != 0 && errno == EINTR) {
  }
  if (result != 0) throw HubError(file.string() + " cannot be locked: " + std::strerror(errno));
}

FileLock::~FileLock() { ::close(descriptor_); }

}  // namespace smartkv
