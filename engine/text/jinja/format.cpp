#include "engine/text/jinja/format.h"

#include <cmath>
#include <cstdio>

#include "engine/text/jinja/print.h"
#include "engine/text/jinja/strings.h"

namespace smartkv::jinja {
namespace {

constexpr int64_t kMaxWidth = 1000;  // Characters of one number. Python has no limit.

// One conversion: %[(key)][flags][width][.precision]type
struct Conversion {
  std::string flags;
  int64_t width = 0, precision = -1;
  char type = 0;
};

std::string padded(const std::string& text, const Conversion& c, Environment& environment) {
  const int64_t missing = c.width - length(text);
  if (missing <= 0) return text;
  environment.check_bytes(text.size() + static_cast<size_t>(missing));
  const std::string spaces(static_cast<size_t>(missing), ' ');
  return c.flags.find('-') != std::string::npos ? text + spaces : spaces + text;
}

// Formats a number with C's printf, which does it as Python does. type: the conversion, with its length modifier.
template <typename T>
std::string number(const Conversion& c, const char* type, T value) {
  if (c.width > kMaxWidth || c.precision > kMaxWidth)
    fail("format: a width or precision above " + std::to_string(kMaxWidth));
  std::string format = "%";
  format += c.flags;
  if (c.width > 0) format += std::to_string(c.width);
  if (c.precision >= 0) format.append(".").append(std::to_string(c.precision));
  format += type;
  std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, format.c_str(), value)), '\0');
  std::snprintf(text.data(), text.size() + 1, format.c_str(), value);
  return text;
}

std::string convert(const Conversion& c, const Value& value, bool markup, Environment& environment) {
  const auto type_in = [&c](std::string_view types) { return types.find(c.type) != std::string_view::npos; };
  if (type_in("sr")) {
    std::string text = c.type == 's' ? environment.text_of(value) : to_repr(value, environment.max_bytes);
    if (markup && !(c.type == 's' && value.is_markup())) text = escape_html(text);
    if (c.precision >= 0 && c.precision < length(text)) text = substring(text, 0, c.precision, 1);
    return padded(text, c, environment);
  }
  if (type_in("diu")) {
    if (!value.is_number())
      fail(std::string("format: %") + c.type + " takes a number, found \"" + value.type_name() + "\"");
    const double x = value.number();
    if (!value.is_integer() && !(std::abs(x) < 9.2e18)) fail("format: a number out of range");
    return number(c, "lld", static_cast<long long>(value.is_integer() ? value.integer() : static_cast<int64_t>(x)));
  }
  if (type_in("xXo")) {
    if (!value.is_integer() || value.integer() < 0) {
      fail(std::string("format: %") + c.type + " takes a non-negative integer, found " + environment.text_of(value));
    }
    const char type[] = {'l', 'l', c.type, '\0'};
    return number(c, type, static_cast<unsigned long long>(value.integer()));
  }
  if (!value.is_number()) fail("format: expected a number, found \"" + value.type_name() + "\"");  // e, E, f, F, g, G
  const char type[] = {c.type, '\0'};
  return number(c, type, value.number());
}

class Formatter {
 public:
  Formatter(const std::string& format, const Value& values, Environment& environment, bool markup)
      : format_(format), mapping_(values.as_mapping()), environment_(environment), markup_(markup) {
    const List* list = values.as_sequence();
    const bool tuple = list != nullptr && list->kind == List::Kind::kTuple;
    values_ = tuple ? list->items : std::vector<Value>{values};
    // Python requires that all arguments are used, unless the value supports lookups by key.
    all_are_used_ = tuple || values.is_number() || values.is_none() || values.as<std::string>() != nullptr;
  }

  std::string run() {
    std::string out;
    while (at_ < format_.size()) {
      const char c = format_[at_++];
      if (c != '%') {
        out += c;
      } else {
        out += conversion();
      }
      environment_.check_bytes(out.size());
    }
    if (all_are_used_ && used_ < values_.size()) fail("format: too many arguments");
    return out;
  }

 private:
  char next() {
    if (at_ >= format_.size()) fail("format: an incomplete conversion");
    return format_[at_++];
  }

  std::string conversion() {
    const Value* value = nullptr;
    if (at_ < format_.size() && format_[at_] == '(') {
      const size_t end = format_.find(')', at_);
      if (end == std::string::npos) fail("format: an incomplete conversion");
      const std::string key = format_.substr(at_ + 1, end - at_ - 1);
      at_ = end + 1;
      value = mapping_ == nullptr ? nullptr : mapping_->find(key);
      if (value == nullptr) fail("format: no value for \"" + key + "\"");
    }
    Conversion c;
    char at = next();
    for (; std::string_view("-+ 0").find(at) != std::string_view::npos; at = next()) c.flags += at;
    for (; at >= '0' && at <= '9'; at = next()) c.width = digit(c.width, at);
    if (at == '.') {
      c.precision = 0;
      for (at = next(); at >= '0' && at <= '9'; at = next()) c.precision = digit(c.precision, at);
    }
    while (at == 'l' || at == 'h' || at == 'L') at = next();  // Python ignores C's length modifiers.
    c.type = at;
    if (at == '%') return "%";
    if (std::string_view("srdiuxXoeEfFgG").find(at) == std::string_view::npos) {
      fail(std::string("format: the conversion \"") + at + "\" is not supported");
    }
    if (value == nullptr) {
      if (used_ >= values_.size()) fail("format: not enough arguments");
      value = &values_[used_++];
    }
    return convert(c, *value, markup_, environment_);
  }

  int64_t digit(int64_t number, char c) const {
    if (number > environment_.max_bytes) fail("format: a width or precision above the limit");
    return number * 10 + (c - '0');
  }

  const std::string& format_;
  std::vector<Value> values_;
  const Dict* mapping_;
  Environment& environment_;
  bool markup_;
  bool all_are_used_;
  size_t at_ = 0, used_ = 0;
};

}  // namespace

std::string format_percent(const std::string& format, const Value& values, Environment& environment, bool markup) {
  return Formatter(format, values, environment, markup).run();
}

}  // namespace smartkv::jinja
