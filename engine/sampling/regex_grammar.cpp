#include "engine/sampling/regex_grammar.h"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

#include "engine/text/utf8.h"

namespace smartkv {
namespace {

constexpr int kMostNesting = 64;
constexpr int64_t kFewCharacters = 64;

const CodePoints kDigits = {{'0', '9'}};
const CodePoints kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePoints kSpace = {{0x09, 0x0d}, {' ', ' '}};
const CodePoints kAnySpace = {{0x09, 0x0d},     {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
                              {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const CodePoints kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
const CodePoints kSurrogates = {{0xd800, 0xdfff}};
const CodePoints kEscapedInJson = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};

int64_t saturated(int64_t a, int64_t b) { return a > kUnbounded - b ? kUnbounded : a + b; }
int64_t times(int64_t a, int64_t b) { return a == 0 || b == 0 ? 0 : a > kUnbounded / b ? kUnbounded : a * b; }

std::string json_escape(uint32_t c) {
  const std::string quoted = nlohmann::json(std::string(1, static_cast<char>(c))).dump();
  return quoted.substr(1, quoted.size() - 2);
}

int64_t size_of(const CodePoints& set) {
  int64_t n = 0;
  for (const auto& [first, last] : set) n += static_cast<int64_t>(last) - first + 1;
  return n;
}

bool contains(const CodePoints& set, uint32_t c) {
  return std::any_of(set.begin(), set.end(), [c](const auto& range) { return c >= range.first && c <= range.second; });
}

class RegexParser {
 public:
  RegexParser(std::string_view regex, TextForm form, bool search) : form_(form), search_(search) {
    if (regex.size() > kMostRegexBytes) fail("more than " + std::to_string(kMostRegexBytes) + " bytes");
    if (!utf8_is_valid(regex)) fail("expected UTF-8");
    text_ = code_points(regex);
  }

  RegexGrammar parse() {
    RegexGrammar result = alternatives(0);
    if (at_ < text_.size()) fail("unbalanced )");
    return result;
  }

 private:
  struct Piece {
    std::string ebnf;
    int64_t min = 0, max = 0;
    int64_t states = 1;  // about the number of states that the grammar needs
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw GrammarError("", "regular expression: " + what + " (at character " + std::to_string(at_ + 1) + ")");
  }

  bool done() const { return at_ >= text_.size(); }
  uint32_t peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : 0; }
  bool take(char c) {
    if (done() || peek() != static_cast<unsigned char>(c)) return false;
    ++at_;
    return true;
  }

  RegexGrammar alternatives(int depth) {
    if (depth > kMostNesting) fail("groups nested deeper than " + std::to_string(kMostNesting));
    RegexGrammar result;
    bool first = true;
    do {
      const Piece piece = sequence(depth);
      result.ebnf += (first ? "" : " | ") + piece.ebnf;
      result.min_length = first ? piece.min : std::min(result.min_length, piece.min);
      result.max_length = first ? piece.max : std::max(result.max_length, piece.max);
      states_ = first ? piece.states : states_ + piece.states;
      first = false;
    } while (take('|'));
    result.ebnf = '(' + result.ebnf + ')';
    return result;
  }

  Piece sequence(int depth) {
    Piece result;
    const bool outermost = depth == 0;
    const bool from_start = outermost && take('^');
    bool to_end = false;
    result.ebnf = outermost && search_ && !from_start ? anything(&result) : "\"\"";
    while (!done() && peek() != '|' && peek() != ')') {
      if (peek() == '$') {
        if (!outermost) fail("$ inside a group is not supported");
        ++at_;
        to_end = true;
        if (!done() && peek() != '|') fail("expected nothing after $");
        break;
      }
      const Piece piece = repeated(depth);
      result.ebnf += " " + piece.ebnf;
      result.min = saturated(result.min, piece.min);
      result.max = saturated(result.max, piece.max);
      result.states += piece.states;
    }
    if (outermost && search_ && !to_end) result.ebnf.append(" ").append(anything(&result));
    return result;
  }

  std::string anything(Piece* piece) const {
    piece->max = kUnbounded;
    return characters(complement({}), form_) + "*";
  }

  Piece repeated(int depth) {
    Piece piece = atom(depth);
    for (;;) {
      int64_t least = 0, most = kUnbounded;
      if (take('*')) {
      } else if (take('+')) {
        least = 1;
      } else if (take('?')) {
        most = 1;
      } else if (!braces(&least, &most)) {
        return piece;
      }
      if (peek() == '+') fail("possessive quantifiers are not supported");
      take('?');  // a lazy quantifier matches the same texts
      piece = repeat(piece, least, most);
    }
  }

  Piece repeat(const Piece& piece, int64_t least, int64_t most) const {
    if (least > kMostRepetitions || (most != kUnbounded && most > kMostRepetitions)) {
      fail("more than " + std::to_string(kMostRepetitions) + " repetitions are not supported");
    }
    Piece result;
    const std::string bound = std::to_string(least) + "," + (most == kUnbounded ? "" : std::to_string(most));
    const std::string count = least == 0 && most == kUnbounded   ? "*"
                              : least == 1 && most == kUnbounded ? "+"
                              : least == 0 && most == 1          ? "?"
                                                                 : '{' + bound + '}';
    result.ebnf = most == 0 ? "\"\"" : '(' + piece.ebnf + ')' + count;
    result.min = times(piece.min, least);
    result.max = times(piece.max, most);
    result.states = times(piece.states, std::max<int64_t>(1, most == kUnbounded ? least : most));
    if (result.states > kMostRepetitions * 2) fail("too many nested repetitions");
    return result;
  }

  // Parses "{m,n}". Returns false and consumes nothing if the "{" is not followed by a count; it is then an ordinary
  // character.
  bool braces(int64_t* least, int64_t* most) {
    if (peek() != '{') return false;
    const size_t start = at_++;
    const std::optional<int64_t> low = number();
    std::optional<int64_t> high = low;
    bool open = false;
    if (take(',')) {
      high = number();
      open = !high;
    }
    if (!take('}') || (!low && !high)) {
      at_ = start;
      return false;
    }
    *least = low.value_or(0);
    *most = open ? kUnbounded : *high;
    if (*least > *most) fail("the minimum of a repetition exceeds its maximum");
    return true;
  }

  std::optional<int64_t> number() {
    if (peek() < '0' || peek() > '9') return std::nullopt;
    int64_t value = 0;
    while (peek() >= '0' && peek() <= '9') value = std::min<int64_t>(value * 10 + (text_[at_++] - '0'), 1 << 30);
    return value;
  }

  Piece atom(int depth) {
    const uint32_t c = peek();
    if (c == '(') return group(depth);
    if (c == '[') return one_of(bracket());
    if (c == '\\') return one_of(escape(false));
    if (c == '*' || c == '+' || c == '?') fail("a quantifier follows nothing");
    if (c == '^') fail("^ is supported only at the start");
    if (c == '{') {
      int64_t least = 0, most = 0;
      if (braces(&least, &most)) fail("a quantifier follows nothing");
    }
    ++at_;
    return one_of(c == '.' ? complement(kLineEnds) : CodePoints{{c, c}});
  }

  Piece one_of(const CodePoints& set) const {
    try {
      return {characters(set, form_), 1, 1, 1};
    } catch (const GrammarError& error) {
      fail(error.what());
    }
  }

  Piece group(int depth) {
    ++at_;
    if (take('?')) {
      const bool named = peek() == 'P' ? (++at_, peek() == '<') : peek() == '<' && peek(1) != '=' && peek(1) != '!';
      if (named) {
        while (!done() && peek() != '>') ++at_;
        ++at_;
      } else if (!take(':')) {
        fail("lookaround and inline flags are not supported");
      }
    }
    const RegexGrammar inner = alternatives(depth + 1);
    const int64_t states = states_;
    if (!take(')')) fail("expected )");
    return {inner.ebnf, inner.min_length, inner.max_length, states};
  }

  CodePoints bracket() {
    ++at_;
    const bool negated = take('^');
    CodePoints set;
    while (peek() != ']') {
      if (done()) fail("expected ]");
      const CodePoints low = peek() == '\\' ? escape(true) : CodePoints{{peek(), text_[at_++]}};
      const bool range = peek() == '-' && at_ + 1 < text_.size() && peek(1) != ']';
      if (!range || size_of(low) != 1) {
        set.insert(set.end(), low.begin(), low.end());
        continue;
      }
      ++at_;
      const CodePoints high = peek() == '\\' ? escape(true) : CodePoints{{peek(), text_[at_++]}};
      if (size_of(high) != 1 || high[0].first < low[0].first) fail("a character class contains an invalid range");
      set.emplace_back(low[0].first, high[0].first);
    }
    ++at_;
    return negated ? complement(set) : set;
  }

  uint32_t hexadecimal(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const uint32_t c = peek();
      const uint32_t lower = c | 0x20;
      const bool letter = lower >= 'a' && lower <= 'f';
      if (!letter && (c < '0' || c > '9')) fail("expected a hexadecimal digit");
      value = value * 16 + (letter ? lower - 'a' + 10 : c - '0');
    }
    return value;
  }

  CodePoints escape(bool in_class) {
    ++at_;
    if (done()) fail("expected a character after \\");
    const uint32_t c = text_[at_++];
    const auto one = [](uint32_t code) { return CodePoints{{code, code}}; };
    switch (c) {
      case 'd': return kDigits;
      case 'D': return complement(kDigits);
      case 'w': return kWord;
      case 'W': return complement(kWord);
      case 's': return kSpace;
      case 'S': return complement(kAnySpace);
      case 't': return one('\t');
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case 'x': return one(hexadecimal(2));
      case 'u': return one(hexadecimal(4));
      case 'b':
        if (in_class) return one('\b');
        break;
      default: break;
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter) fail(std::string("\\") + static_cast<char>(c) + " is not supported");
    return one(c);
  }

  TextForm form_;
  bool search_;
  std::vector<uint32_t> text_;
  size_t at_ = 0;
  int64_t states_ = 0;  // states of the last alternatives parsed
};

}  // namespace

std::vector<uint32_t> code_points(std::string_view text) {
  std::vector<uint32_t> result;
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    result.push_back(utf8_decode(text.substr(0, n)));
    text.remove_prefix(n);
  }
  return result;
}

std::string characters(const CodePoints& set, TextForm form) {
  const CodePoints valid = without(set, kSurrogates);
  if (valid.empty()) throw GrammarError("", "a character class is empty");
  if (form == TextForm::kPlain) return ebnf_class(valid);
  std::vector<std::string> written;
  if (const CodePoints plain = without(valid, kEscapedInJson); !plain.empty()) written.push_back(ebnf_class(plain));
  // A large class leaves out the characters that need an escape. The rest is one class, which token masks handle fast.
  for (const auto& [first, last] : kEscapedInJson) {
    for (uint32_t c = first; c <= last; ++c) {
      if ((written.empty() || size_of(valid) <= kFewCharacters) && contains(valid, c))
        written.push_back(ebnf_literal(json_escape(c)));
    }
  }
  return written.size() == 1 ? written[0] : ebnf_either(written);
}

const CodePoints& plain_json_characters() {
  static const CodePoints set = without(complement(kEscapedInJson), kSurrogates);
  return set;
}

std::string json_escape_ebnf() {
  static const std::string result =
      R"("\\" (["\\/bfnrt] | "u" ([0-9a-cA-Ce-fE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} )"
      R"(| [dD] [89abAB] [0-9a-fA-F]{2} "\\u" [dD] [c-fC-F] [0-9a-fA-F]{2})))";
  return result;
}

RegexGrammar regex_grammar(std::string_view regex, TextForm form, bool search) {
  return RegexParser(regex, form, search).parse();
}

}  // namespace smartkv
