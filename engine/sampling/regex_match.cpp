#include "engine/sampling/regex_match.h"

#include <memory>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/sampling/ebnf.h"

namespace smartkv {
namespace {

constexpr size_t kMostBytes = 4096;  // of an expression
constexpr uint32_t kMostSteps = 100'000, kMostHeapKib = 4096;

PCRE2_SPTR bytes(const std::string& text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

bool regex_matches(const std::string& regex, const std::string& text) {
  if (regex.size() > kMostBytes) throw GrammarError("", "regular expression: more than " + std::to_string(kMostBytes) + " bytes");
  int error = 0;
  size_t at = 0;
  const std::unique_ptr<pcre2_code, void (*)(pcre2_code*)> code(
      pcre2_compile(bytes(regex), regex.size(), PCRE2_UTF | PCRE2_ALT_BSUX | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr),
      pcre2_code_free);
  if (code == nullptr) throw GrammarError("", "regular expression: not one that can be matched (at byte " + std::to_string(at + 1) + ")");
  const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(pcre2_match_context_create(nullptr),
                                                                                     pcre2_match_context_free);
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  if (context == nullptr || data == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(context.get(), kMostSteps);
  pcre2_set_heap_limit(context.get(), kMostHeapKib);
  const int found = pcre2_match(code.get(), bytes(text), text.size(), 0, 0, data.get(), context.get());
  if (found >= 0) return true;
  if (found == PCRE2_ERROR_NOMATCH) return false;
  throw GrammarError("", "regular expression: takes too many steps to match");
}

}  // namespace smartkv
