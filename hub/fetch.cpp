#include "hub/fetch.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/choose_files.h"
#include "hub/hub_cache.h"
#include "hub/hub_error.h"
#include "hub/hub_http.h"
#include "hub/letters.h"

namespace smartkv {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kSpare = int64_t{256} << 20;  // bytes that stay free on the disk

// A hash over the bytes of a file: SHA-256 of those in large-file storage, else git's SHA-1 of a blob.
class BlobHash {
 public:
  BlobHash(bool sha256, int64_t bytes) : sha256_(sha256), bytes_(bytes) { restart(); }
  void restart() {
    if (EVP_DigestInit_ex(context_.get(), sha256_ ? EVP_sha256() : EVP_sha1(), nullptr) != 1) {
      throw HubError("OpenSSL has no SHA-256 or SHA-1");
    }
    if (!sha256_) add("blob " + std::to_string(bytes_) + std::string(1, '\0'));
  }
  void add(std::string_view bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }
  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned size = 0;
    EVP_DigestFinal_ex(context_.get(), digest.data(), &size);
    std::string text;
    for (unsigned i = 0; i < size; ++i) {
      text += "0123456789abcdef"[digest[i] >> 4];
      text += "0123456789abcdef"[digest[i] & 15];
    }
    return text;
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_{EVP_MD_CTX_new()};
  bool sha256_;
  int64_t bytes_;
};

// Returns text as a part of a URL's path, with slashes.
std::string encoded(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) || std::string_view("-_.~/").find(c) != std::string_view::npos) {
      result += c;
    } else {
      result += '%';
      result += "0123456789ABCDEF"[byte >> 4];
      result += "0123456789ABCDEF"[byte & 15];
    }
  }
  return result;
}

// Throws what a status other than 200 means.
[[noreturn]] void fail(const HubResponse& response, const HubSettings& settings, const ModelReference& reference,
                       const std::string& what) {
  const std::string code = response.header("x-error-code"), name = reference.repo + (what.empty() ? "" : "/" + what);
  const std::string page = settings.endpoint + "/" + reference.repo;
  if (!response.url.starts_with(settings.endpoint + "/")) {
    throw HubError(name + ": the server that " + settings.endpoint + " leads to answered status " +
                   std::to_string(response.status));
  }
  if (code == "GatedRepo" || response.status == 403) {
    throw HubError(
        name + ": access is restricted: accept its terms on " + page +
        (settings.token.empty() ? " and set HF_TOKEN to a token of your account" : " with the account of your token"));
  }
  if (response.status == 401) {
    throw HubError(
        name + ": " + settings.endpoint + " knows no such public model" +
        (settings.token.empty() ? "; if it is private, set HF_TOKEN" : "; the token may be wrong or lack access"));
  }
  if (code == "RevisionNotFound") throw HubError(name + ": there is no revision \"" + reference.revision + '"');
  if (response.status == 404) throw HubError(name + ": " + settings.endpoint + " has no such model or file");
  if (response.status == 429) {
    throw HubError(settings.endpoint + " limits requests (429): try again later" +
                   (settings.token.empty() ? ", or set HF_TOKEN" : ""));
  }
  throw HubError(settings.endpoint + " answered status " + std::to_string(response.status) + " for " + name);
}

// What the hub says about a revision.
struct Revision {
  std::string commit;
  std::vector<HubFile> files;
};

Revision revision_of(const HubHttp& http, const HubSettings& settings, const ModelReference& reference) {
  const HubResponse response =
      http.get("/api/models/" + reference.repo + "/revision/" + encoded(reference.revision) + "?blobs=true");
  if (response.status != 200) fail(response, settings, reference, "");
  try {
    const json answer = json::parse(response.body);
    Revision revision{answer.at("sha"), {}};
    if (!is_hash(revision.commit, kSha1)) {
      throw HubError(settings.endpoint + ": expected a commit of 40 digits for " + reference.repo + ", found " +
                     answer.at("sha").dump());
    }
    for (const json& file : answer.at("siblings")) {
      const std::string path = file.at("rfilename");
      const fs::path name(path);
      const bool inside = !path.empty() && name.is_relative() && std::ranges::none_of(name, [](const fs::path& part) {
        return part == ".." || part == "." || part.empty();
      });
      if (!inside)
        throw HubError(settings.endpoint + ": " + reference.repo +
                       " names a file outside of it: " + file.at("rfilename").dump());
      revision.files.push_back({path, file.value("size", int64_t{-1})});
    }
    return revision;
  } catch (const json::exception& error) {
    throw HubError(settings.endpoint + ": its description of " + reference.repo + " cannot be read: " + error.what());
  }
}

struct Blob {
  std::string file, etag;
  int64_t bytes = 0;
};

Blob blob_of(const HubHttp& http, const HubSettings& settings, const ModelReference& reference,
             const std::string& commit, const std::string& file) {
  const HubResponse response = http.head("/" + reference.repo + "/resolve/" + commit + "/" + encoded(file));
  if (response.status != 200 && response.status / 100 != 3) fail(response, settings, reference, file);
  const auto either = [&](const char* linked, const char* own) {
    const std::string value = response.header(linked);
    return value.empty() ? response.header(own) : value;
  };
  std::string etag = either("x-linked-etag", "etag");
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  const std::string size = either("x-linked-size", "content-length");
  const bool hash = is_hash(etag, kSha256) || is_hash(etag, kSha1);
  if (!hash || size.empty() || size.size() > 15 || size.find_first_not_of("0123456789") != std::string::npos) {
    throw HubError(settings.endpoint + ": expected a hash (ETag) and a size for " + reference.repo + "/" + file +
                   ", found \"" + etag + "\" and \"" + size + '"');
  }
  return {file, etag, std::stoll(size)};
}

class Fetch {
 public:
  Fetch(const HubSettings& settings, const ModelReference& reference, const FetchOptions& options)
      : settings_(settings), reference_(reference), options_(options), http_(settings), cache_(settings.cache) {}

  fs::path run() {
    if (settings_.offline) return from_cache("HF_HUB_OFFLINE is set");
    Revision revision;
    try {
      revision = revision_of(http_, settings_, reference_);
    } catch (const HubUnreachable& error) {
      return from_cache(error.what());
    }
    const ChosenFiles chosen = choose_files(reference_, revision.files, options_.memory_bytes);
    if (!chosen.why.empty()) say(chosen.why);
    std::vector<Blob> blobs;
    for (const HubFile& file : chosen.files)
      blobs.push_back(blob_of(http_, settings_, reference_, revision.commit, file.path));
    check_space(blobs);
    for (const Blob& blob : blobs) total_ += blob.bytes;
    for (const Blob& blob : blobs) {
      fetch(revision.commit, blob);
      cache_.link(reference_.repo, revision.commit, blob.file, blob.etag);
    }
    cache_.set_commit(reference_.repo, reference_.revision, revision.commit);
    return path_of(revision.commit, chosen);
  }

 private:
  void say(const std::string& sentence) const {
    if (options_.say) options_.say(sentence);
  }
  fs::path path_of(const std::string& commit, const ChosenFiles& chosen) const {
    const fs::path folder = cache_.snapshot(reference_.repo, commit);
    return chosen.folder ? folder : folder / chosen.files.front().path;
  }

  fs::path from_cache(const std::string& why) const {
    const auto commit = cache_.commit_of(reference_.repo, reference_.revision);
    if (!commit)
      throw HubError(reference_.text() + ": " + why + ", and " + cache_.folder().string() + " does not have it");
    std::vector<HubFile> files;
    for (const std::string& file : cache_.files(reference_.repo, *commit)) {
      std::error_code error;
      files.push_back(
          {file, static_cast<int64_t>(fs::file_size(cache_.snapshot(reference_.repo, *commit) / file, error))});
    }
    const ChosenFiles chosen = choose_files(reference_, files, options_.memory_bytes);
    if (!settings_.offline) say(why + "; using what " + cache_.folder().string() + " has");
    return path_of(*commit, chosen);
  }

  static int64_t size_or(const fs::path& file, int64_t fallback) {
    std::error_code error;
    const auto size = fs::file_size(file, error);
    return error ? fallback : static_cast<int64_t>(size);
  }

  void check_space(const std::vector<Blob>& blobs) const {
    int64_t needed = 0;
    for (const Blob& blob : blobs) {
      if (size_or(cache_.blob(reference_.repo, blob.etag), -1) == blob.bytes) continue;
      needed += blob.bytes - std::min(blob.bytes, size_or(cache_.incomplete(reference_.repo, blob.etag), 0));
    }
    if (needed == 0) return;
    fs::create_directories(cache_.folder());
    const auto free = static_cast<int64_t>(fs::space(cache_.folder()).available);
    if (needed + kSpare <= free) return;
    throw HubError(reference_.text() + ": " + cache_.folder().string() + " has too little room: expected " +
                   std::to_string((needed + kSpare) >> 20) + " MiB, found " + std::to_string(free >> 20) +
                   " MiB; remove models (smartkv rm), or set HF_HUB_CACHE to a folder on another disk");
  }

  void report(const Blob& blob, int64_t done) const {
    if (options_.progress) options_.progress({blob.file, finished_ + done, total_});
  }

  void fetch(const std::string& commit, const Blob& blob) {
    const fs::path target = cache_.blob(reference_.repo, blob.etag),
                   unfinished = cache_.incomplete(reference_.repo, blob.etag);
    report(blob, 0);
    const FileLock lock(cache_.lock_file(reference_.repo, blob.etag));  // another process may be fetching it
    if (size_or(target, -1) != blob.bytes) {
      fs::create_directories(target.parent_path());
      for (int tries = 1; !download(commit, blob, unfinished); ++tries) {
        fs::remove(unfinished);
        if (tries == 2) {
          throw HubError(reference_.repo + "/" + blob.file + ": its bytes do not have the hash " + blob.etag +
                         " that the hub gives, twice; what was fetched is removed");
        }
      }
      fs::rename(unfinished, target);
    }
    finished_ += blob.bytes;
  }

  // Returns whether the bytes have the hash.
  bool download(const std::string& commit, const Blob& blob, const fs::path& file) {
    BlobHash hash(blob.etag.size() == kSha256, blob.bytes);
    int64_t have = 0;
    if (size_or(file, 0) > blob.bytes) fs::remove(file);
    if (std::ifstream before(file, std::ios::binary); before) {
      std::vector<char> piece(1 << 20);
      while (before.read(piece.data(), std::ssize(piece)), before.gcount() > 0) {
        hash.add({piece.data(), static_cast<size_t>(before.gcount())});
        have += before.gcount();
        report(blob, have);
      }
    }
    std::ofstream out(file, std::ios::binary | std::ios::app);
    const auto failed = [&] { throw HubError(file.string() + " cannot be written: is the disk full?"); };
    if (!out) failed();
    if (have < blob.bytes) {
      const auto sink = [&](std::string_view bytes) {
        if (have + static_cast<int64_t>(bytes.size()) > blob.bytes) {
          throw HubError(reference_.repo + "/" + blob.file + ": the hub sent more bytes than it announced");
        }
        hash.add(bytes);
        have += static_cast<int64_t>(bytes.size());
        if (!out.write(bytes.data(), std::ssize(bytes))) failed();
        report(blob, have);
      };
      const auto restart = [&] {
        out.close();
        out.open(file, std::ios::binary | std::ios::trunc);
        have = 0;
        hash.restart();
      };
      const HubResponse response =
          http_.download("/" + reference_.repo + "/resolve/" + commit + "/" + encoded(blob.file), have, sink, restart);
      if (response.status != 200 && response.status != 206) fail(response, settings_, reference_, blob.file);
    }
    out.close();
    if (!out) failed();
    return have == blob.bytes && hash.hex() == blob.etag;
  }

  const HubSettings& settings_;
  const ModelReference& reference_;
  const FetchOptions& options_;
  HubHttp http_;
  HubCache cache_;
  int64_t total_ = 0, finished_ = 0;
};

}  // namespace

fs::path fetch_model(const HubSettings& settings, const ModelReference& reference, const FetchOptions& options) {
  try {
    return Fetch(settings, reference, options).run();
  } catch (const fs::filesystem_error& error) {
    throw HubError(error.what());
  }
}

}  // namespace smartkv
