// nlohmann's JSON, whose values need no memory to be destroyed or compared. This folder stands before the library's on the
// include path.
//
// The library's destructor moves nested values into a vector before it frees them, so that deep nesting cannot exhaust the
// stack. It is noexcept: where that vector cannot be had, the program ends. The destructor below takes a value apart in place
// instead, in linear time, without recursion. It specialises json_value::destroy() for the two kinds of values in use; both
// compilers instantiate functions at the end of a file, which is behind this.
//
// The library compares a value with a text by making a value of the text, also noexcept. The operators below take precedence,
// because they are no templates. tests/server/out_of_memory_test.cpp would fail if the library's own were called.
#pragma once

#pragma GCC system_header  // #include_next is an extension

#include_next <nlohmann/json.hpp>

#include <iterator>
#include <memory>
#include <string>

namespace smartkv::json_destruction {

// The first and the last member of a container that is not empty.
template <typename Json>
Json& first_of(Json& container) {
  if (auto* array = container.template get_ptr<typename Json::array_t*>()) return array->front();
  return container.template get_ptr<typename Json::object_t*>()->begin()->second;
}
template <typename Json>
Json& last_of(Json& container) {
  if (auto* array = container.template get_ptr<typename Json::array_t*>()) return array->back();
  return std::prev(container.template get_ptr<typename Json::object_t*>()->end())->second;
}

template <typename Members>
void pop(Members& members) {
  if constexpr (requires { members.pop_back(); }) {
    members.pop_back();
  } else {
    members.erase(std::prev(members.end()));
  }
}
template <typename Json>
void pop_last(Json& container) {
  if (auto* array = container.template get_ptr<typename Json::array_t*>()) return pop(*array);
  pop(*container.template get_ptr<typename Json::object_t*>());
}

// Frees what is below `value`, which is empty or no container afterwards.
//
// Members go from the back. A member that is a container itself is entered: it takes the place of its parent, which becomes
// its first member, whose former value takes the place that the container had in the parent. So each container is entered
// once, and what is left when all others are gone is the parent.
template <typename Json>
void take_apart(Json& value) {
  const auto is_full = [](const Json& json) { return json.is_structured() && !json.empty(); };
  while (is_full(value)) {
    Json& last = last_of(value);
    if (!is_full(last)) {
      pop_last(value);
      continue;
    }
    Json inner = std::move(last);
    if (value.size() == 1) {
      pop_last(value);
    } else {
      first_of(inner).swap(last);
      first_of(inner).swap(value);
    }
    value.swap(inner);
  }
}

template <typename T>
void free(T* held) {
  std::destroy_at(held);
  std::allocator<T>().deallocate(held, 1);
}

template <typename Union>
void destroy(Union& held, nlohmann::detail::value_t type) {
  using nlohmann::detail::value_t;
  if (type == value_t::array) {
    for (auto& member : *held.array) take_apart(member);
    free(held.array);
  } else if (type == value_t::object) {
    for (auto& member : *held.object) take_apart(member.second);
    free(held.object);
  } else if (type == value_t::string) {
    free(held.string);
  } else if (type == value_t::binary) {
    free(held.binary);
  }
}

}  // namespace smartkv::json_destruction

template <>
inline void nlohmann::json::json_value::destroy(nlohmann::detail::value_t type) {
  smartkv::json_destruction::destroy(*this, type);
}
template <>
inline void nlohmann::ordered_json::json_value::destroy(nlohmann::detail::value_t type) {
  smartkv::json_destruction::destroy(*this, type);
}

namespace nlohmann {

inline bool operator==(const json& value, const char* text) noexcept {
  const auto* held = value.get_ptr<const json::string_t*>();
  return held != nullptr && *held == text;
}
inline bool operator!=(const json& value, const char* text) noexcept { return !(value == text); }
inline bool operator==(const ordered_json& value, const char* text) noexcept {
  const auto* held = value.get_ptr<const ordered_json::string_t*>();
  return held != nullptr && *held == text;
}
inline bool operator!=(const ordered_json& value, const char* text) noexcept { return !(value == text); }

}  // namespace nlohmann
