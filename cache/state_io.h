// Serialization of cache states. A state is read by the same build on the same kind of machine that wrote it, in the
// order in which it was written.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cache/sequence_cache.h"

namespace smartkv {

// Takes the pages of a state, so that pages which are stored already need not be stored again.
class PageSink {
 public:
  virtual ~PageSink() = default;
  // `written` ends with a page, which begins at `page`. Returns whether the writer keeps it there.
  virtual bool keeps(std::string_view written, size_t page) = 0;
};

// Appends values to a buffer in memory.
class StateWriter {
 public:
  // sink: must outlive this object; null keeps every page.
  explicit StateWriter(PageSink* sink = nullptr) : sink_(sink) {}

  template <typename T>
  void value(const T& value) {
    static_assert(std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>);
    bytes(&value, sizeof(T));
  }
  template <typename T>
  void values(const std::vector<T>& values) {
    static_assert(std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>);
    value(static_cast<int64_t>(values.size()));
    bytes(values.data(), values.size() * sizeof(T));
  }
  // Appends values, and vectors as values() does, one after the other.
  template <typename... T>
  void fields(const T&... fields) {
    (field(fields), ...);
  }
  void bytes(const void* from, size_t n) {
    end_page();
    data_.append(static_cast<const char*>(from), n);
  }
  // Appends a page of n bytes, which the caller must fill before the next call, and returns where it begins. A page is
  // worth its own place in a file: other states probably hold the same bytes.
  char* page(size_t n) {
    end_page();
    data_.resize(data_.size() + n);
    page_ = n;
    return data_.data() + data_.size() - n;
  }

  // Returns what was written, without the pages that the sink did not keep.
  const std::string& data() {
    end_page();
    return data_;
  }

 private:
  template <typename T>
  void field(const T& field) {
    value(field);
  }
  template <typename T>
  void field(const std::vector<T>& field) {
    values(field);
  }
  void end_page() {
    const size_t begin = data_.size() - std::exchange(page_, 0);
    if (begin == data_.size() || sink_ == nullptr) return;
    if (!sink_->keeps(data_, begin)) data_.resize(begin);
  }

  PageSink* sink_;
  std::string data_;
  size_t page_ = 0;  // bytes of the page at the end of data_ that the sink has not seen yet
};

// Reads what a StateWriter wrote. Every read throws CacheError if the bytes end early.
class StateReader {
 public:
  explicit StateReader(std::span<const char> data) : data_(data) {}

  template <typename T>
  T value() {
    static_assert(std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>);
    T value;
    bytes(&value, sizeof(T));
    return value;
  }
  template <typename T>
  std::vector<T> values() {
    const auto n = value<int64_t>();
    if (n < 0 || n > left() / static_cast<int64_t>(sizeof(T))) fail(n);
    std::vector<T> values(static_cast<size_t>(n));
    bytes(values.data(), values.size() * sizeof(T));
    return values;
  }
  // Reads what StateWriter::fields() wrote.
  template <typename... T>
  void fields(T&... fields) {
    (field(fields), ...);
  }
  void bytes(void* to, size_t n) {
    const std::span<const char> from = bytes(n);
    if (n > 0) std::memcpy(to, from.data(), n);
  }
  // Returns the next n bytes. They are valid as long as the data given to the constructor.
  std::span<const char> bytes(size_t n) {
    if (static_cast<int64_t>(n) > left()) fail(static_cast<int64_t>(n));
    at_ += n;
    return data_.subspan(at_ - n, n);
  }

  // Bytes that are left to read.
  int64_t left() const { return static_cast<int64_t>(data_.size() - at_); }
  // Throws CacheError saying that `what` was expected, unless `holds`.
  void expect(bool holds, const char* what) const {
    if (!holds) throw CacheError("state: expected " + std::string(what) + ", before byte " + std::to_string(at_));
  }

 private:
  template <typename T>
  void field(T& field) {
    field = value<T>();
  }
  template <typename T>
  void field(std::vector<T>& field) {
    field = values<T>();
  }
  [[noreturn]] void fail(int64_t wanted) const {
    throw CacheError("state: expected " + std::to_string(wanted) + " more values or bytes at byte " +
                     std::to_string(at_) + ", found " + std::to_string(left()));
  }

  std::span<const char> data_;
  size_t at_ = 0;
};

}  // namespace smartkv
