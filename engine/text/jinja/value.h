// The values of the template interpreter, with Python's semantics: JSON's values, undefined, tuples, iterators,
// namespaces and macros. The nesting and the expanded size of a value are limited when it is created, so recursion over
// a value always ends.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace smartkv::jinja {

struct Macro;  // ast.h
class Value;

// Thrown for a fault at run time. The evaluator adds the line.
struct RuntimeError {
  std::string message;
};
[[noreturn]] inline void fail(const std::string& message) { throw RuntimeError{message}; }

struct Undefined {
  std::string name;  // The name that was looked up, for errors.
};
// Text that is HTML already (the filter "safe"), as Python's markupsafe.Markup. Strings that are joined to it are
// escaped.
struct Markup {
  std::shared_ptr<const std::string> text;
};
// An integer beyond int64_t. It can be compared and written, but arithmetic does not support it.
struct BigInteger {
  std::shared_ptr<const std::string> digits;  // Decimal digits, with a minus sign if it is negative.
};
// A function, or a method that was not called.
struct Builtin {
  std::string name;
};
// The size of a value with everything that it contains.
struct Extent {
  int64_t weight = 1;      // Values in the tree below it, plus the bytes of their strings / 256.
  int depth = 0;           // Levels of nesting.
  bool is_shared = false;  // It contains a namespace or a loop, whose contents may change.
};
struct List {
  enum class Kind : uint8_t {
    kList,
    kTuple,
    kIterator,  // The result of a lazy filter: no length, no index, always true, empty after one iteration.
    kKeys,      // kKeys, kValues and kItems are the views of a dictionary: no index.
    kValues,
    kItems,
  };
  std::vector<Value> items;
  Kind kind = Kind::kList;
  Extent extent = {};

  bool is_sequence() const { return kind == Kind::kList || kind == Kind::kTuple; }
};
struct Dict {
  enum class Kind : uint8_t { kDict, kNamespace, kLoop };
  std::vector<std::pair<Value, Value>> items;  // In order of insertion. Keys are strings, numbers and none.
  Kind kind = Kind::kDict;
  Extent extent = {};

  // Both return nullptr if there is no such key.
  const Value* find(std::string_view key) const;
  const Value* find_key(const Value& key) const;  // Equal numbers are one key: 1, 1.0 and true.
  void set(const Value& key, Value value);        // Throws RuntimeError for any other type of key.
};

// A value. Copying is cheap: strings are shared and immutable, lists and dictionaries are shared.
class Value {
 public:
  using Text = std::shared_ptr<const std::string>;
  using Storage = std::variant<Undefined, std::nullptr_t, bool, int64_t, double, Text, std::shared_ptr<List>,
                               std::shared_ptr<Dict>, const Macro*, Builtin, Markup, BigInteger>;

  Value() : storage_(nullptr) {}
  template <typename T>
  Value(T value) : storage_(std::move(value)) {}  // NOLINT: implicit on purpose
  Value(std::string value) : storage_(std::make_shared<const std::string>(std::move(value))) {}
  Value(const char* value) : Value(std::string(value)) {}
  Value(int value) : storage_(int64_t{value}) {}
  Value(size_t value) : storage_(static_cast<int64_t>(value)) {}
  // list(), dict() and from_json() throw RuntimeError if the value would be nested too deep or too large.
  static Value list(std::vector<Value> items, List::Kind kind = List::Kind::kList);
  static Value dict(std::vector<std::pair<Value, Value>> items, Dict::Kind kind = Dict::Kind::kDict);
  static Value big_integer(std::string digits) {
    return BigInteger{std::make_shared<const std::string>(std::move(digits))};
  }
  static Value markup(std::string text) { return Markup{std::make_shared<const std::string>(std::move(text))}; }
  static Value from_json(const nlohmann::ordered_json& json, int depth = 0);

  // Returns the value as a T, or nullptr if it has another type. as<std::string>() accepts markup, too.
  template <typename T>
  const T* as() const {
    if constexpr (std::is_same_v<T, std::string>) {
      if (const Text* text = std::get_if<Text>(&storage_)) return text->get();
      const Markup* markup = std::get_if<Markup>(&storage_);
      return markup == nullptr ? nullptr : markup->text.get();
    } else {
      return std::get_if<T>(&storage_);
    }
  }
  List* as_list() const;
  const List* as_sequence() const;  // A list or a tuple, else nullptr.
  Dict* as_dict() const;            // A dictionary, a namespace or a loop, else nullptr.
  const Dict* as_mapping() const;   // A dictionary, else nullptr.
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<std::nullptr_t>() != nullptr; }
  bool is_markup() const { return as<Markup>() != nullptr; }
  bool is_number() const { return as<int64_t>() || as<double>() || as<bool>(); }
  bool is_integer() const { return as<int64_t>() || as<bool>(); }
  int64_t integer() const;  // REQUIRES: is_integer()
  double number() const;    // REQUIRES: is_number()
  bool truthy() const;
  std::string type_name() const;  // Python's name of the type.
  Extent extent() const;
  int64_t steps() const;  // The steps that an operation over its bytes or items costs.

 private:
  Storage storage_;
};

bool equal(const Value& a, const Value& b);
// Thrown by compare().
struct TypeMismatch {};
// Returns -1, 0 or 1. Throws TypeMismatch for values that Python does not order.
int compare(const Value& a, const Value& b);
// A strict weak order of the keys of dictionaries, whatever their types.
bool key_precedes(const Value& a, const Value& b);

}  // namespace smartkv::jinja
