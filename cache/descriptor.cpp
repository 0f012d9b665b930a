#include "cache/descriptor.h"

#include <unistd.h>

#include <cerrno>

namespace smartkv {

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

bool write_all(int fd, std::string_view data) {
  while (!data.empty()) {
    const ssize_t n = ::write(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool read_all_at(int fd, char* to, int64_t n, int64_t offset) {
  while (n > 0) {
    const ssize_t got = ::pread(fd, to, static_cast<size_t>(n), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    n -= got;
    offset += got;
  }
  return true;
}

}  // namespace smartkv
