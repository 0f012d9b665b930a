#include "server/openai/json_body.h"

#include <set>
#include <vector>

#include "engine/text/exact_integer.h"

namespace smartkv::openai {

using Json = nlohmann::ordered_json;

namespace {

// Builds the value from the parser's events and enforces the limits.
class StrictReader final : public nlohmann::json_sax<Json> {
 public:
  explicit StrictReader(const JsonOptions& options) : options_(options) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t& text) override {
    const bool exact = options_.integers == Integers::kExact && text.find_first_not_of("-0123456789") == text.npos;
    return add(exact ? exact_integer(text) : Json(value)) != nullptr;
  }
  bool string(string_t& value) override { return add(std::move(value)) != nullptr; }
  bool binary(binary_t& value) override { return add(std::move(value)) != nullptr; }  // JSON text has none
  bool key(string_t& name) override {
    std::set<std::string>& keys = open_.back().keys;
    if (!keys.insert(name).second && !options_.repeated_keys) throw JsonSyntaxError("duplicate key \"" + name + "\"");
    if (keys.size() > kMaxJsonKeys) {
      throw JsonSyntaxError("an object has more than " + std::to_string(kMaxJsonKeys) + " keys");
    }
    open_.back().key = std::move(name);
    return true;
  }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    // Drops the beginning of "[json.exception.parse_error.101] parse error at line 1, column 9: ...".
    const std::string_view what = error.what();
    const size_t name = what.find("] ");
    throw JsonSyntaxError(std::string(what.substr(name == what.npos ? 0 : name + 2)));
  }

 private:
  struct Container {
    // Points into root_. It stays valid, because only the innermost container grows.
    Json* value;
    std::set<std::string> keys;  // keys of an object so far
    std::string key;             // key of the next member
  };

  Json* add(Json value) {
    if (++values_ > kMaxJsonValues) {
      throw JsonSyntaxError("the text has more than " + std::to_string(kMaxJsonValues) + " values");
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back().value;
    if (parent.is_array()) return &parent.get_ref<Json::array_t&>().emplace_back(std::move(value));
    Json::object_t& members = parent.get_ref<Json::object_t&>();
    const std::string& key = open_.back().key;
    const auto repeated = options_.repeated_keys ? members.find(key) : members.end();
    if (repeated == members.end()) return &members.emplace_back(key, std::move(value)).second;
    repeated->second = std::move(value);
    return &repeated->second;
  }
  bool open(Json container) {
    if (open_.size() == options_.max_depth)
      throw JsonSyntaxError("nested deeper than " + std::to_string(options_.max_depth) + " levels");
    open_.push_back({add(std::move(container)), {}, {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  JsonOptions options_;
  Json root_;
  std::vector<Container> open_;  // outermost first
  int values_ = 0;
};

}  // namespace

Json parse_json(std::string_view text, const JsonOptions& options) {
  StrictReader reader(options);
  try {
    Json::sax_parse(text.begin(), text.end(), &reader, nlohmann::detail::input_format_t::json, true, options.comments);
  } catch (const Json::exception& error) {
    throw JsonSyntaxError(error.what());
  }
  return reader.take();
}

}  // namespace smartkv::openai
