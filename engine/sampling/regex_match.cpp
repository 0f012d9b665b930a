#include "engine/sampling/regex_match.h"

#include <memory>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/sampling/ebnf.h"

namespace smartkv {
namespace {

constexpr size_t kMostBytes = 4096;  // most bytes of an expression
constexpr uint32_t kMostBacktracks = 10'000, kMostHeapKib = 4096;
constexpr int64_t kMostReads = 10'000'000;  // most bytes of text that a match may read
constexpr int64_t kCompileSteps = 500;

// Counts the items of the expression that are tried, over all places where a match may begin. PCRE2's own match limit
// applies to each such place separately.
struct Items {
  int64_t n = 0, most = 0;
};

int count_item(pcre2_callout_block*, void* data) {
  auto* items = static_cast<Items*>(data);
  return ++items->n > items->most ? PCRE2_ERROR_MATCHLIMIT : 0;
}

PCRE2_SPTR bytes(const std::string& text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

bool regex_matches(const std::string& regex, const std::string& text, int64_t* steps) {
  if (regex.size() > kMostBytes)
    throw GrammarError("", "regular expression: more than " + std::to_string(kMostBytes) + " bytes");
  *steps += kCompileSteps;
  int error = 0;
  size_t at = 0, code_bytes = 0;
  const std::unique_ptr<pcre2_code, void (*)(pcre2_code*)> code(
      pcre2_compile(bytes(regex), regex.size(),
                    PCRE2_UTF | PCRE2_ALT_BSUX | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT,
                    &error, &at, nullptr),
      pcre2_code_free);
  if (code == nullptr) {
    throw GrammarError("", "regular expression: invalid or unsupported (at byte " + std::to_string(at + 1) + ")");
  }
  const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(pcre2_match_data_create(1, nullptr),
                                                                            pcre2_match_data_free);
  if (context == nullptr || data == nullptr) throw std::bad_alloc();
  const int64_t reads_per_item = 64 + static_cast<int64_t>(text.size());
  Items items{.n = 0, .most = kMostReads / reads_per_item};
  pcre2_pattern_info(code.get(), PCRE2_INFO_SIZE, &code_bytes);
  pcre2_set_callout(context.get(), count_item, &items);
  pcre2_set_match_limit(context.get(), kMostBacktracks);
  pcre2_set_heap_limit(context.get(), kMostHeapKib);
  const int found = pcre2_match(code.get(), bytes(text), text.size(), 0, 0, data.get(), context.get());
  *steps += static_cast<int64_t>(code_bytes / 64) + items.n * reads_per_item / 256;
  if (found >= 0) return true;
  if (found == PCRE2_ERROR_NOMATCH) return false;
  throw GrammarError("", "regular expression: takes too many steps to match");
}

}  // namespace smartkv
