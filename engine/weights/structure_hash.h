// A hash over structures, field by field.
#pragma once

#include <xxhash.h>

#include <filesystem>
#include <memory>
#include <ranges>
#include <string>
#include <tuple>
#include <type_traits>

namespace smartkv {

template <typename T>
concept HasFields = requires(const T& value) { fields(value); };

// 128-bit XXH3. Equal values have equal hashes on machines with the same byte order.
class StructureHash {
 public:
  StructureHash();  // Throws std::bad_alloc.

  // Adds a number, an enumerator, a string, a range with its size, the target of a pointer, or every field of a
  // structure (fields.h).
  template <typename T>
  void add(const T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      add_bytes(&value, sizeof value);
    } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
      add(value.native());
    } else if constexpr (HasFields<T>) {
      std::apply([&](const auto&... field) { (add(field), ...); }, fields(value));
    } else if constexpr (requires { std::tuple_size<T>::value; }) {
      std::apply([&](const auto&... element) { (add(element), ...); }, value);
    } else if constexpr (std::ranges::range<T>) {
      add_range(value);
    } else {
      add(value != nullptr);
      if (value != nullptr) add(*value);
    }
  }

  // Adds the contents of a file. Throws std::runtime_error naming the file if it cannot be read.
  void add_file(const std::filesystem::path& path);

  std::string digest() const;  // 32 hexadecimal digits

 private:
  template <typename Range>
  void add_range(const Range& range) {
    add(static_cast<uint64_t>(std::ranges::size(range)));
    using Value = std::ranges::range_value_t<Range>;
    constexpr bool bytes =
        std::ranges::contiguous_range<Range> && (std::is_arithmetic_v<Value> || std::is_enum_v<Value>);
    if constexpr (bytes) {
      add_bytes(std::ranges::data(range), std::ranges::size(range) * sizeof(Value));
    } else {
      for (const Value& element : range) add(element);
    }
  }
  void add_bytes(const void* data, size_t n);

  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

}  // namespace smartkv
