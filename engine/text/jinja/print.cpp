#include "engine/text/jinja/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "engine/text/pattern.h"
#include "engine/text/utf8.h"

namespace smartkv::jinja {
namespace {

// A string with a limit of its bytes. Throws RuntimeError beyond it.
class Out {
 public:
  explicit Out(int64_t max_bytes) : max_bytes_(max_bytes) {}
  void add(std::string_view text) {
    if (static_cast<int64_t>(text_.size() + text.size()) > max_bytes_)
      throw RuntimeError{"a string grows beyond the limit"};
    text_ += text;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  int64_t max_bytes_;
};

// repr(float): the shortest digits that give the same number, with an exponent for magnitudes of at least 1e16 or below
// 1e-4.
std::string float_text(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  char buffer[40];
  const double magnitude = std::abs(x);
  const bool scientific = x != 0 && (magnitude >= 1e16 || magnitude < 1e-4);
  const auto format = scientific ? std::chars_format::scientific : std::chars_format::fixed;
  std::string text(buffer, std::to_chars(buffer, buffer + sizeof buffer, x, format).ptr);
  if (!scientific && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string escape(const char* format, unsigned code) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, format, code);
  return buffer;
}

// Returns the letter behind the backslash of an escaped character. Returns 0 if `c` is not one of `characters`.
char escape_letter(char c, std::string_view characters, std::string_view letters) {
  const size_t at = characters.find(c);
  return at == std::string_view::npos ? '\0' : letters[at];
}

std::string string_repr(const std::string& text) {
  static const Pattern unprintable("[\\p{C}\\p{Z}]");
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view character = utf8_next(rest);
    const char c = character[0];
    if (c == quote || c == '\\') {
      out += {'\\', c};
    } else if (const char letter = escape_letter(c, "\n\r\t", "nrt"); letter != 0) {
      out += {'\\', letter};
    } else if (c == ' ' || (character.size() == 1 && c > ' ' && c < 0x7f)) {
      out += c;
    } else if (!utf8_is_valid(character) || !unprintable.matches_in(character)) {
      out += character;
    } else {
      const unsigned code = utf8_decode(character);
      out += escape(code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
    }
  }
  return out + quote;
}

void write_repr(const Value& value, Out& out) {
  if (value.is_undefined()) {
    out.add("Undefined");
  } else if (value.is_none()) {
    out.add("None");
  } else if (const bool* flag = value.as<bool>()) {
    out.add(*flag ? "True" : "False");
  } else if (const int64_t* integer = value.as<int64_t>()) {
    out.add(std::to_string(*integer));
  } else if (const BigInteger* big = value.as<BigInteger>()) {
    out.add(*big->digits);
  } else if (const double* number = value.as<double>()) {
    out.add(float_text(*number));
  } else if (const std::string* text = value.as<std::string>()) {
    out.add(value.is_markup() ? "Markup(" + string_repr(*text) + ")" : string_repr(*text));
  } else if (const List* list = value.as_list()) {
    const bool tuple = list->kind == List::Kind::kTuple;
    if (list->kind == List::Kind::kIterator)
      throw RuntimeError{"a generator cannot be printed; convert it to a list first"};
    if (!list->is_sequence()) out.add(value.type_name() + "(");
    out.add(tuple ? "(" : "[");
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) out.add(", ");
      write_repr(list->items[i], out);
    }
    if (tuple && list->items.size() == 1) out.add(",");
    out.add(tuple ? ")" : "]");
    if (!list->is_sequence()) out.add(")");
  } else if (const Dict* dict = value.as_mapping()) {
    out.add("{");
    for (size_t i = 0; i < dict->items.size(); ++i) {
      if (i > 0) out.add(", ");
      write_repr(dict->items[i].first, out);
      out.add(": ");
      write_repr(dict->items[i].second, out);
    }
    out.add("}");
  } else {
    throw RuntimeError{"a " + value.type_name() + " cannot be printed"};
  }
}

std::string json_string(const std::string& text, bool ensure_ascii) {
  std::string out = "\"";
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view character = utf8_next(rest);
    const char c = character[0];
    if (const char letter = escape_letter(c, "\"\\\n\r\t\b\f", "\"\\nrtbf"); letter != 0) {
      out += {'\\', letter};
    } else if (character.size() == 1 && c >= 0 && c < ' ') {
      out += escape("\\u%04x", static_cast<unsigned>(c));
    } else if (!ensure_ascii || character.size() == 1) {
      out += character;
    } else if (const unsigned code = utf8_decode(character); code < 0x10000) {
      out += escape("\\u%04x", code);
    } else {  // A surrogate pair.
      out += escape("\\u%04x", 0xd7c0 + (code >> 10)) + escape("\\u%04x", 0xdc00 + (code & 0x3ff));
    }
  }
  return out + "\"";
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Out& out) : style_(style), out_(out) {}

  void write(const Value& value, int depth) {
    if (const List* list = value.as_sequence()) {
      out_.add("[");
      for (size_t i = 0; i < list->items.size(); ++i) {
        separate(i == 0, depth + 1);
        write(list->items[i], depth + 1);
      }
      if (!list->items.empty()) new_line(depth);
      out_.add("]");
    } else if (const Dict* dict = value.as_mapping()) {
      std::vector<const std::pair<Value, Value>*> items;
      for (const auto& item : dict->items) items.push_back(&item);
      if (style_.sort_keys) sort(items);
      out_.add("{");
      for (size_t i = 0; i < items.size(); ++i) {
        separate(i == 0, depth + 1);
        write_key(items[i]->first);
        out_.add(style_.key_separator);
        write(items[i]->second, depth + 1);
      }
      if (!items.empty()) new_line(depth);
      out_.add("}");
    } else if (const std::string* text = value.as<std::string>()) {
      out_.add(json_string(*text, style_.ensure_ascii));
    } else if (const bool* flag = value.as<bool>()) {
      out_.add(*flag ? "true" : "false");
    } else if (value.is_none()) {
      out_.add("null");
    } else if (const double* x = value.as<double>(); x != nullptr && !std::isfinite(*x)) {
      out_.add(std::isnan(*x) ? "NaN" : *x > 0 ? "Infinity" : "-Infinity");
    } else if (value.is_number() || value.as<BigInteger>() != nullptr) {
      write_repr(value, out_);
    } else {
      throw RuntimeError{"tojson: a value of type \"" + value.type_name() + "\" is not JSON"};
    }
  }

 private:
  static void sort(std::vector<const std::pair<Value, Value>*>& items) {
    try {
      std::stable_sort(items.begin(), items.end(), [](auto* a, auto* b) { return compare(a->first, b->first) < 0; });
    } catch (const TypeMismatch&) {
      throw RuntimeError{"tojson: the keys cannot be ordered"};
    }
  }
  // Writes a key. Other keys than strings become strings with the text of the value.
  void write_key(const Value& key) {
    if (key.as<std::string>() == nullptr) out_.add("\"");
    write(key, 0);
    if (key.as<std::string>() == nullptr) out_.add("\"");
  }
  void separate(bool first, int depth) {
    if (!first) out_.add(style_.item_separator);
    new_line(depth);
  }
  void new_line(int depth) {
    if (!style_.indent) return;
    out_.add("\n");
    for (int i = 0; i < depth; ++i) out_.add(*style_.indent);
  }

  const JsonStyle& style_;
  Out& out_;
};

}  // namespace

std::string to_text(const Value& value, int64_t max_bytes) {
  if (value.is_undefined()) return "";
  if (const std::string* text = value.as<std::string>()) return *text;
  return to_repr(value, max_bytes);
}

std::string to_repr(const Value& value, int64_t max_bytes) {
  Out out(max_bytes);
  write_repr(value, out);
  return out.take();
}

std::string to_json(const Value& value, const JsonStyle& style, int64_t max_bytes) {
  Out out(max_bytes);
  JsonWriter(style, out).write(value, 0);
  return out.take();
}

}  // namespace smartkv::jinja
