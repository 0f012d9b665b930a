// The values of the template interpreter: JSON's, undefined, tuples, iterators, namespaces and macros, with Python's
// semantics. Every value's nesting and expanded size are bounded when it is made, so recursion over one always ends.
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

// A fault at run time; the evaluator adds the line.
struct RuntimeError {
  std::string message;
};

struct Undefined {
  std::string name;  // what was looked up, for errors
};
// Text that is HTML already ("safe"): Python's markupsafe.Markup, which escapes what is joined to it.
struct Markup {
  std::shared_ptr<const std::string> text;
};
struct BigInteger {
  std::shared_ptr<const std::string> digits;  // of an integer beyond int64_t: known, compared and written, but not computed with
};
struct Builtin {
  std::string name;  // of a function, or of a method that was not called
};
// How much hangs below a value.
struct Extent {
  int64_t weight = 1;      // values in it as a tree, and its strings' bytes / 256
  int depth = 0;           // of nesting
  bool is_shared = false;  // holds a namespace, whose content may change
};
struct List {
  enum class Kind : uint8_t {
    kList,
    kTuple,
    kIterator,  // of lazy filters: no length, no index, always true, empty once it was run over
    kKeys,      // a dictionary's views: no index
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
  std::vector<std::pair<Value, Value>> items;  // in order of insertion; keys are strings, numbers and none
  Kind kind = Kind::kDict;
  Extent extent = {};

  const Value* find(std::string_view key) const;
  const Value* find_key(const Value& key) const;  // a number finds its equals: 1, 1.0 and true are one key
  void set(const Value& key, Value value);        // RuntimeError for another kind of key
};

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
  // RuntimeError if the value would be nested too deep or too large.
  static Value list(std::vector<Value> items, List::Kind kind = List::Kind::kList);
  static Value dict(std::vector<std::pair<Value, Value>> items, Dict::Kind kind = Dict::Kind::kDict);
  static Value big_integer(std::string digits) { return BigInteger{std::make_shared<const std::string>(std::move(digits))}; }
  static Value markup(std::string text) { return Markup{std::make_shared<const std::string>(std::move(text))}; }
  static Value from_json(const nlohmann::ordered_json& json, int depth = 0);

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
  const List* as_sequence() const;  // a list or tuple
  Dict* as_dict() const;            // a namespace or loop too
  const Dict* as_mapping() const;   // a dictionary proper
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<std::nullptr_t>() != nullptr; }
  bool is_markup() const { return as<Markup>() != nullptr; }
  bool is_number() const { return as<int64_t>() || as<double>() || as<bool>(); }
  bool is_integer() const { return as<int64_t>() || as<bool>(); }
  int64_t integer() const;  // of an integer or bool
  double number() const;    // of any number
  bool truthy() const;
  std::string type_name() const;  // Python's
  Extent extent() const;
  int64_t steps() const;  // what an operation over its bytes or items costs

 private:
  Storage storage_;
};

bool equal(const Value& a, const Value& b);
// -1, 0 or 1; TypeMismatch where Python would not order them.
struct TypeMismatch {};
int compare(const Value& a, const Value& b);
// Keys of a dictionary in some order.
bool key_precedes(const Value& a, const Value& b);

}  // namespace smartkv::jinja
