// Files by their descriptor.
#pragma once

#include <cstdint>
#include <string_view>

namespace smartkv {

// Owns a file descriptor; -1 if opening failed.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// These return false if not all bytes could be written or read; errno says why unless the file has ended.
bool write_all(int fd, std::string_view data);
bool read_all_at(int fd, char* to, int64_t n, int64_t offset);

}  // namespace smartkv
