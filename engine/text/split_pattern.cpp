#include "engine/text/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/text/tokenizer.h"

namespace smartkv {
namespace {

// Unicode's White_Space: PCRE2's own \s has U+180E too, and lacks U+0085.
constexpr const char* kSpaces =
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

std::string with_unicode_spaces(const std::string& pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's') {
        out += in_class ? kSpaces : "[" + std::string(kSpaces) + "]";
      } else if (next == 'S' && !in_class) {
        out += "[^" + std::string(kSpaces) + "]";
      } else {
        out += {c, next};
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

// Where a match of this thread is put.
pcre2_match_data* match_data() {
  thread_local const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  return data.get();
}

// The first match at or after `at`; < 0: a PCRE2 error code.
int match(const void* code, std::string_view text, size_t at) {
  const auto run = [&](uint32_t options) {
    return pcre2_match(static_cast<const pcre2_code*>(code), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                       PCRE2_NO_UTF_CHECK | options, match_data(), nullptr);
  };
  const int result = run(0);
  return result == PCRE2_ERROR_JIT_STACKLIMIT ? run(PCRE2_NO_JIT) : result;  // the interpreter's stack is the heap
}

}  // namespace

SplitPattern::SplitPattern(const std::string& pattern) {
  const std::string adapted = with_unicode_spaces(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Line by line, as ^ and $ are in the syntax that Hugging Face's patterns are written in (Oniguruma's).
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(adapted.data()), adapted.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR message[200];
    pcre2_get_error_message(error, message, sizeof message);
    throw TokenizerError("pattern \"" + pattern + "\": " + reinterpret_cast<const char*>(message));
  }
  code_ = std::shared_ptr<void>(code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where there is no JIT, the interpreter runs the pattern
}

bool SplitPattern::matches_in(std::string_view text) const { return match(code_.get(), text, 0) >= 0; }

void SplitPattern::split(std::string_view text, std::vector<std::string_view>* pieces) const {
  size_t done = 0, at = 0;
  while (at < text.size()) {
    const int result = match(code_.get(), text, at);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) throw TokenizerError("a split pattern failed with PCRE2 error " + std::to_string(result));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match_data());
    if (range[1] == range[0]) {  // an empty match separates nothing
      at = range[1] + 1;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
      continue;
    }
    if (range[0] > done) pieces->push_back(text.substr(done, range[0] - done));
    pieces->push_back(text.substr(range[0], range[1] - range[0]));
    done = at = range[1];
  }
  if (done < text.size()) pieces->push_back(text.substr(done));
}

}  // namespace smartkv
