// Destroys JSON values in place: in linear time, without recursion and without memory.
#include <nlohmann/json.hpp>

#include <iterator>
#include <memory>

namespace {

// Return the first and the last member of a container. REQUIRES: it is not empty.
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

// Frees everything below `value`, which is then empty or not a container.
//
// Members are removed from the back. A member that is a container is entered: it takes the place of its parent, the
// parent becomes its first member, and the former first member takes the container's place in the parent. So each
// container is entered once, and the parent is freed when nothing else is left.
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
void destroy_union(Union& held, nlohmann::detail::value_t type) {
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

}  // namespace

template <>
void nlohmann::json::json_value::destroy(nlohmann::detail::value_t type) {
  destroy_union(*this, type);
}
template <>
void nlohmann::ordered_json::json_value::destroy(nlohmann::detail::value_t type) {
  destroy_union(*this, type);
}
