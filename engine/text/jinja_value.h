// The values of the template interpreter: JSON's, undefined, tuples, namespaces and macros. Python's semantics.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

namespace smartkv::jinja {

struct Macro;  // jinja_ast.h
class Value;

struct Undefined {
  std::string name;  // what was looked up, for errors
};
struct Builtin {
  std::string name;  // of a function
};
struct List {
  std::vector<Value> items;
  bool tuple = false;
};
struct Dict {
  std::vector<std::pair<std::string, Value>> items;  // in order of insertion
  bool is_namespace = false;                         // its attributes can be set

  const Value* find(std::string_view key) const;
  void set(const std::string& key, Value value);
};

class Value {
 public:
  using Storage = std::variant<Undefined, std::nullptr_t, bool, int64_t, double, std::string, std::shared_ptr<List>,
                               std::shared_ptr<Dict>, const Macro*, Builtin>;

  Value() : storage_(nullptr) {}
  template <typename T>
  Value(T value) : storage_(std::move(value)) {}  // NOLINT: implicit on purpose
  Value(int value) : storage_(int64_t{value}) {}
  Value(size_t value) : storage_(static_cast<int64_t>(value)) {}
  Value(const char* value) : storage_(std::string(value)) {}
  static Value list(std::vector<Value> items, bool tuple = false);
  static Value from_json(const nlohmann::ordered_json& json);

  template <typename T>
  const T* as() const { return std::get_if<T>(&storage_); }
  const List* as_list() const;
  Dict* as_dict() const;
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<std::nullptr_t>() != nullptr; }
  bool is_number() const { return as<int64_t>() || as<double>() || as<bool>(); }
  bool is_integer() const { return as<int64_t>() || as<bool>(); }
  int64_t integer() const;  // of an integer or bool
  double number() const;    // of any number
  bool truthy() const;
  std::string type_name() const;  // Python's

 private:
  Storage storage_;
};

bool equal(const Value& a, const Value& b);
// -1, 0 or 1; TypeMismatch where Python would not order them.
struct TypeMismatch {};
int compare(const Value& a, const Value& b);

std::string to_text(const Value& value);  // str()
std::string to_repr(const Value& value);  // repr()
// json.dumps(ensure_ascii=False); indent < 0: on one line.
std::string to_json(const Value& value, int64_t indent, bool sort_keys);

}  // namespace smartkv::jinja
