#include "engine/text/jinja/lexer.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "engine/text/chat_template.h"
#include "engine/text/utf8.h"

namespace smartkv::jinja {
namespace {

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_ascii_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) {
    // Make every line break one character, and drop one at the very end.
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] != '\r') {
        source_ += source[i];
      } else {
        source_ += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      }
    }
    if (source_.ends_with('\n')) source_.pop_back();
  }

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const size_t tag = find_tag();
      const bool ends = tag == std::string::npos;
      text(source_.substr(at_, ends ? std::string::npos : tag - at_), ends ? '\0' : source_[tag + 1],
           ends ? '\0' : sign_at(tag + 2));
      if (ends) break;
      move_to(tag);
      const char kind = source_[at_ + 1];
      if (kind == '#') {
        comment();
      } else if (kind == '%' && raw()) {
        continue;
      } else {
        expression(kind);
      }
    }
    tokens_.push_back({Token::Kind::kEnd, "", line_});
    return std::move(tokens_);
  }

 private:
  size_t find_tag() const {
    for (size_t at = source_.find('{', at_); at != std::string::npos && at + 1 < source_.size();
         at = source_.find('{', at + 1)) {
      if (source_[at + 1] == '{' || source_[at + 1] == '%' || source_[at + 1] == '#') return at;
    }
    return std::string::npos;
  }
  char sign_at(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
  }
  void move_to(size_t at) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    at_ = at;
  }

  // Adds the text before a tag. `kind` is the character of the tag: '{', '%' or '#', or '\0' at the end of the
  // template. `sign` is the '-' or '+' after the opening of the tag, or '\0'. Does not move at_.
  void text(std::string value, char kind, char sign) {
    const bool starts_line = at_ == 0 || source_[at_ - 1] == '\n';
    if (strip_next_) {
      value.erase(0, static_cast<size_t>(std::find_if_not(value.begin(), value.end(), is_ascii_space) - value.begin()));
    } else if (trim_newline_ && value.starts_with('\n')) {
      value.erase(0, 1);
    }
    const bool cut_newline = trim_newline_ && !strip_next_;
    strip_next_ = trim_newline_ = false;
    if (sign == '-') {
      while (!value.empty() && is_ascii_space(value.back())) value.pop_back();
      // Remove blanks between the start of the line and the tag.
    } else if ((kind == '%' || kind == '#') && sign != '+') {
      size_t blanks = value.size();
      while (blanks > 0 && (value[blanks - 1] == ' ' || value[blanks - 1] == '\t')) --blanks;
      const bool whole_line =
          blanks == 0 ? starts_line || (cut_newline && source_[at_] == '\n') : value[blanks - 1] == '\n';
      if (whole_line) value.resize(blanks);
    }
    if (!value.empty()) tokens_.push_back({Token::Kind::kText, std::move(value), line_});
  }

  void comment() {
    const size_t end = source_.find("#}", at_ + 2);
    if (end == std::string::npos) fail_at(line_, "a comment is not closed");
    strip_next_ = source_[end - 1] == '-' && end > at_ + 2;
    trim_newline_ = !(source_[end - 1] == '+' && end > at_ + 2);
    move_to(end + 2);
  }

  // Reads {% raw %} ... {% endraw %}. Returns false if this is another block.
  bool raw() {
    size_t at = at_ + 2 + (sign_at(at_ + 2) != '\0' ? 1 : 0);
    while (at < source_.size() && is_ascii_space(source_[at])) ++at;
    if (source_.compare(at, 3, "raw") != 0 || (at + 3 < source_.size() && is_name(source_[at + 3]))) return false;
    at += 3;
    while (at < source_.size() && is_ascii_space(source_[at])) ++at;
    const char sign = sign_at(at) == '-' ? '-' : '\0';
    if (sign != '\0') ++at;
    if (source_.compare(at, 2, "%}") != 0) fail_at(line_, "expected %} after raw");
    const int begin_line = line_;
    move_to(at + 2);
    strip_next_ = sign == '-';
    trim_newline_ = false;  // jinja2 keeps the line break after {% raw %}.
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 1)) {
      const char end_sign = sign_at(tag + 2);
      size_t word = tag + 2 + (end_sign != '\0' ? 1 : 0);
      while (word < source_.size() && is_ascii_space(source_[word])) ++word;
      if (source_.compare(word, 6, "endraw") != 0) continue;
      size_t close = word + 6;
      while (close < source_.size() && is_ascii_space(source_[close])) ++close;
      const char close_sign = sign_at(close);
      if (close_sign != '\0') ++close;
      if (source_.compare(close, 2, "%}") != 0) continue;
      text(source_.substr(at_, tag - at_), '%', end_sign);
      strip_next_ = close_sign == '-';
      trim_newline_ = close_sign != '+';
      move_to(close + 2);
      return true;
    }
    fail_at(begin_line, "raw is not closed");
  }

  // Reads the inside of {{ }} or {% %}.
  void expression(char kind) {
    const bool block = kind == '%';
    const int begin_line = line_;
    const std::string close = block ? "%}" : "}}";
    tokens_.push_back({block ? Token::Kind::kBeginBlock : Token::Kind::kBeginPrint, "", line_});
    move_to(at_ + 2 + (sign_at(at_ + 2) != '\0' ? 1 : 0));
    int open = 0;  // Open brackets. A "}}" inside of them closes dictionaries.
    for (;;) {
      while (at_ < source_.size() && is_ascii_space(source_[at_])) move_to(at_ + 1);
      if (at_ >= source_.size()) fail_at(begin_line, std::string("a ") + (block ? "{%" : "{{") + " is not closed");
      const char sign = open == 0 ? sign_at(at_) : '\0';
      if (open == 0 && source_.compare(at_ + (sign != '\0' ? 1 : 0), 2, close) == 0) {
        tokens_.push_back({block ? Token::Kind::kEndBlock : Token::Kind::kEndPrint, "", line_});
        strip_next_ = sign == '-';
        trim_newline_ = block && sign != '+';
        move_to(at_ + (sign != '\0' ? 3 : 2));
        return;
      }
      token(open);
    }
  }

  void token(int& open) {
    const char c = source_[at_];
    size_t end = at_;
    if (is_name_start(c)) {
      while (end < source_.size() && is_name(source_[end])) ++end;
      push(Token::Kind::kName, end);
    } else if (is_digit(c)) {
      number();
    } else if (c == '"' || c == '\'') {
      string(c);
    } else {
      static constexpr const char* kOperators[] = {"==", "!=", "<=", ">=", "//", "**", "+", "-", "*",
                                                   "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                                   "]",  "{",  "}",  ",",  ".",  ":",  "|"};
      for (const char* op : kOperators) {
        if (source_.compare(at_, std::char_traits<char>::length(op), op) != 0) continue;
        if (c == '(' || c == '[' || c == '{') ++open;
        if ((c == ')' || c == ']' || c == '}') && open > 0) --open;
        push(Token::Kind::kOperator, at_ + std::char_traits<char>::length(op));
        return;
      }
      fail_at(line_, std::string("unexpected character \"") + c + "\"");
    }
  }

  void push(Token::Kind kind, size_t end) {
    tokens_.push_back({kind, source_.substr(at_, end - at_), line_});
    move_to(end);
  }

  void number() {
    size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && (is_digit(source_[end]) ||
                                      (source_[end] == '_' && end + 1 < source_.size() && is_digit(source_[end + 1]))))
        ++end;
    };
    digits();
    bool is_float = false;
    const bool is_index = at_ > 0 && source_[at_ - 1] == '.';  // "rows.0.1" has two indices.
    if (!is_index && end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      is_float = true;
      ++end;
      digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const size_t exponent = end + 1 + (sign_at(end + 1) != '\0' ? 1 : 0);
      if (exponent < source_.size() && is_digit(source_[exponent])) {
        is_float = true;
        end = exponent;
        digits();
      }
    }
    push(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, end);
    const std::string& digits_found = tokens_.back().text;
    if (!is_float && digits_found[0] == '0' && digits_found.find_first_not_of("0_") != std::string::npos) {
      fail_at(line_, "the number " + digits_found + " begins with 0");
    }
    std::erase(tokens_.back().text, '_');
  }

  void string(char quote) {
    std::string value;
    size_t end = at_ + 1;
    for (; end < source_.size() && source_[end] != quote; ++end) {
      if (source_[end] != '\\' || end + 1 >= source_.size()) {
        value += source_[end];
        continue;
      }
      const char c = source_[++end];
      static constexpr std::string_view kLetters = "ntrbfva\\'\"", kCharacters = "\n\t\r\b\f\v\a\\'\"";
      if (const size_t at = kLetters.find(c); at != std::string_view::npos) {
        value += kCharacters[at];
      } else if (c >= '0' && c <= '7') {
        char32_t code = 0;
        const size_t stop = std::min(end + 3, source_.size());
        for (; end < stop && source_[end] >= '0' && source_[end] <= '7'; ++end)
          code = code * 8 + static_cast<char32_t>(source_[end] - '0');
        --end;
        utf8_append(value, code);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        end = code_point(end + 1, c == 'x' ? 2 : c == 'u' ? 4 : 8, value);
      } else if (c != '\n') {
        value += {'\\', c};
      }
    }
    if (end >= source_.size()) fail_at(line_, "a string is not closed");
    tokens_.push_back({Token::Kind::kString, std::move(value), line_});
    move_to(end + 1);
  }

  // Reads the hexadecimal digits of an escape. Returns the place of the last digit.
  size_t code_point(size_t at, size_t digits, std::string& value) {
    const std::string hex = source_.substr(std::min(at, source_.size()), digits);
    const bool valid = hex.size() == digits && std::all_of(hex.begin(), hex.end(), [](char c) {
                         return std::isxdigit(static_cast<unsigned char>(c)) != 0;
                       });
    const unsigned long code = valid ? std::strtoul(hex.c_str(), nullptr, 16) : 0;
    if (!valid || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
      fail_at(line_, "a string contains an invalid escape");
    utf8_append(value, static_cast<char32_t>(code));
    return at + digits - 1;
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool strip_next_ = false;    // The previous tag ended with "-".
  bool trim_newline_ = false;  // The previous tag was a block or a comment, and did not end with "+".
  std::vector<Token> tokens_;
};

}  // namespace

void fail_at(int line, const std::string& message) {
  throw ChatTemplateError("line " + std::to_string(line) + ": " + message);
}

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace smartkv::jinja
