// Adds keys to the bytes of a GGUF file.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

namespace smartkv {

class GgufKeys {
 public:
  GgufKeys& integer(const std::string& key, uint32_t value) { return add(key, 4, value); }
  GgufKeys& wide(const std::string& key, int64_t value) { return add(key, 11, value); }
  GgufKeys& number(const std::string& key, float value) { return add(key, 6, value); }
  GgufKeys& boolean(const std::string& key, bool value) { return add(key, 7, static_cast<uint8_t>(value)); }
  GgufKeys& string(const std::string& key, const std::string& value) {
    add(key, 8, uint64_t{value.size()});
    bytes_ += value;
    return *this;
  }

  // Returns the file with these keys before its own. A last key fills the header up to the alignment of the tensors.
  std::string in(std::string file) const {
    GgufKeys keys = *this;
    const size_t begun = keys.bytes_.size() + 8 + 7 + 4 + 8;
    keys.string("padding", std::string((begun + 31) / 32 * 32 - begun, ' '));
    uint64_t count = 0;
    std::memcpy(&count, file.data() + kCountAt, sizeof count);
    count += static_cast<uint64_t>(keys.count_);
    std::memcpy(file.data() + kCountAt, &count, sizeof count);
    return file.insert(kHeaderBytes, keys.bytes_);
  }

 private:
  static constexpr size_t kCountAt = 16, kHeaderBytes = 24;

  template <typename T>
  GgufKeys& add(const std::string& key, uint32_t type, T value) {
    append(uint64_t{key.size()});
    bytes_ += key;
    append(type);
    append(value);
    ++count_;
    return *this;
  }
  template <typename T>
  void append(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  std::string bytes_;
  int count_ = 0;
};

}  // namespace smartkv
