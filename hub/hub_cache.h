// The folder in which huggingface_hub and others keep what they fetched:
//   models--ORG--NAME/refs/REVISION           a file with the commit that a branch or tag was at
//   models--ORG--NAME/snapshots/COMMIT/FILE   a link to a blob
//   models--ORG--NAME/blobs/ETAG              the bytes of a file; ETAG.incomplete while they are fetched
//   .locks/models--ORG--NAME/ETAG.lock        held by whoever fetches a blob
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace smartkv {

// A repository in the cache.
struct CachedModel {
  std::string repo;
  int64_t bytes = 0;                          // of its blobs
  std::filesystem::file_time_type used = {};  // when a file of it was last read, as far as the system keeps that
  std::vector<std::string> files = {};        // of all snapshots, without those of links to nowhere
};

class HubCache {
 public:
  explicit HubCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // Returns the commit of a revision that was fetched, or nothing. A full commit is its own.
  std::optional<std::string> commit_of(const std::string& repo, const std::string& revision) const;
  void set_commit(const std::string& repo, const std::string& revision, const std::string& commit) const;
  // Returns a snapshot's folder and the paths of the files in it, in order.
  std::filesystem::path snapshot(const std::string& repo, const std::string& commit) const;
  std::vector<std::string> files(const std::string& repo, const std::string& commit) const;
  std::filesystem::path blob(const std::string& repo, const std::string& etag) const;
  std::filesystem::path incomplete(const std::string& repo, const std::string& etag) const;
  std::filesystem::path lock_file(const std::string& repo, const std::string& etag) const;
  // Lets a file of a snapshot lead to a blob.
  void link(const std::string& repo, const std::string& commit, const std::string& file, const std::string& etag) const;

  std::vector<CachedModel> models() const;  // by name
  // Removes a repository, or only its files whose names contain `quantization`, with blobs that nothing else uses.
  // Returns the bytes that are free now. Throws HubError if there is nothing to remove.
  int64_t remove(const std::string& repo, const std::string& quantization) const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path repo_folder(const std::string& repo) const;

  std::filesystem::path folder_;
};

// A lock that other processes respect, huggingface_hub among them. Waits for whoever holds it. Throws HubError if it
// cannot be made.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& file);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace smartkv
