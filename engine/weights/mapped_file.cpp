#include "engine/weights/mapped_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/weights/weights.h"

namespace smartkv {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto fail = [&](const char* what) {
    throw ModelError(path.string() + ": cannot " + what + ": " + std::strerror(errno));
  };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // A FIFO would wait for a writer.
  if (fd < 0) fail("open");
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    ::close(fd);
    fail("read its size");
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(fd);
    throw ModelError(path.string() + ": expected a regular file");
  }
  const size_t size = static_cast<size_t>(status.st_size);
  void* address = size == 0 ? nullptr : ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  ::close(fd);
  if (address == MAP_FAILED) fail("map");
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace smartkv
