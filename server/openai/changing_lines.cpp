#include "server/openai/changing_lines.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace smartkv::openai {

namespace {

constexpr size_t kMostPatterns = 64, kMostPatternBytes = 1024;
constexpr int64_t kMostLines = 10'000;  // lines of a request that are compared with the patterns
constexpr size_t kMostLineBytes = 256;  // bytes of a line that are
constexpr uint32_t kMostCalls = 1000, kMostHeapKib = 1024;

// Returns the beginning of a line, up to kMostLineBytes, without a part of a character at its end.
std::string_view line_head(std::string_view line) {
  if (line.size() <= kMostLineBytes) return line;
  size_t end = kMostLineBytes;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xc0) == 0x80) --end;
  return line.substr(0, end);
}

}  // namespace

// What PCRE2 needs for a match.
struct MatchMemory {
  MatchMemory() : data(pcre2_match_data_create(1, nullptr)), context(pcre2_match_context_create(nullptr)) {
    if (data == nullptr || context == nullptr) throw std::bad_alloc();
    pcre2_set_match_limit(context.get(), kMostCalls);
    pcre2_set_heap_limit(context.get(), kMostHeapKib);
  }

  struct Free {
    void operator()(pcre2_match_data* memory) const { pcre2_match_data_free(memory); }
    void operator()(pcre2_match_context* memory) const { pcre2_match_context_free(memory); }
  };
  std::unique_ptr<pcre2_match_data, Free> data;
  std::unique_ptr<pcre2_match_context, Free> context;
  std::array<int, 1000> workspace = {};
  int64_t lines = 0;  // compared so far
};

// A compiled expression. PCRE2's other matcher, which follows all alternatives at once, takes time in proportion to the
// line, whatever the expression is.
class LinePattern {
 public:
  LinePattern(const std::string& regex, const std::string& option) : regex_(regex) {
    int error = 0;
    size_t at = 0;
    if (regex.size() > kMostPatternBytes) fail(option, "longer than " + std::to_string(kMostPatternBytes) + " bytes");
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(),
                              PCRE2_UTF | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr));
    if (code_ != nullptr) {
      uint32_t references = 0;
      pcre2_pattern_info(code_.get(), PCRE2_INFO_BACKREFMAX, &references);
      if (references > 0) fail(option, "back references are not supported");
      return;
    }
    std::array<PCRE2_UCHAR, 128> text = {};
    pcre2_get_error_message(error, text.data(), text.size());
    fail(option, std::string(reinterpret_cast<const char*>(text.data())) + " at byte " + std::to_string(at + 1));
  }

  // `cut` tells that the line goes on.
  bool matches(std::string_view line, bool cut, MatchMemory* memory) const {
    const uint32_t options = PCRE2_DFA_SHORTEST | (cut ? PCRE2_NOTEOL : 0);
    const int found =
        pcre2_dfa_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(line.data()), line.size(), 0, options,
                        memory->data.get(), memory->context.get(), memory->workspace.data(), memory->workspace.size());
    if (found == PCRE2_ERROR_NOMATCH) return false;
    if (found >= 0) return true;
    throw invalid_request("messages",
                          "'messages': a line of a system message takes too much work to compare with the server's "
                          "pattern \"" +
                              regex_ + "\" (options dropped_lines and moved_lines)");
  }

 private:
  [[noreturn]] void fail(const std::string& option, const std::string& problem) const {
    throw std::runtime_error(option + ": expected regular expressions, found \"" + regex_ + "\": " + problem);
  }

  std::string regex_;
  std::unique_ptr<pcre2_code, void (*)(pcre2_code*)> code_{nullptr, pcre2_code_free};
};

namespace {

ChangingLines::Patterns compiled(const std::vector<std::string>& regexes, const std::string& option) {
  if (regexes.size() > kMostPatterns) {
    throw std::runtime_error(option + ": expected at most " + std::to_string(kMostPatterns) + " patterns, found " +
                             std::to_string(regexes.size()));
  }
  ChangingLines::Patterns patterns;
  for (const std::string& regex : regexes) patterns.push_back(std::make_shared<const LinePattern>(regex, option));
  return patterns;
}

}  // namespace

void add_line_changes(const LineChanges& changes, Json* details) {
  if (changes.moved + changes.dropped == 0) return;
  (*details)["changing_lines"] = {{"moved", changes.moved}, {"dropped", changes.dropped}};
}

ChangingLines::ChangingLines(const std::vector<std::string>& dropped, const std::vector<std::string>& moved)
    : dropped_(compiled(dropped, "dropped_lines")), moved_(compiled(moved, "moved_lines")) {}

bool ChangingLines::matches(const Patterns& patterns, std::string_view line, MatchMemory* memory) {
  const std::string_view head = line_head(line);
  const bool cut = head.size() < line.size();
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const auto& pattern) { return pattern->matches(head, cut, memory); });
}

// Takes the matching lines out of `text` and appends those to move to `moved`. Returns whether there was any.
bool ChangingLines::take_lines(std::string* text, std::string* moved, LineChanges* changes, MatchMemory* memory) const {
  std::string kept;
  bool found = false, first = true;
  for (size_t at = 0; at <= text->size();) {
    const size_t end = std::min(text->find('\n', at), text->size());
    const std::string_view line = std::string_view(*text).substr(at, end - at);
    at = end + 1;
    const bool compared = memory->lines++ < kMostLines;
    if (compared && matches(dropped_, line, memory)) {
      ++changes->dropped;
      found = true;
    } else if (compared && matches(moved_, line, memory)) {
      ++changes->moved;
      moved->append(moved->empty() ? "" : "\n").append(line);
      found = true;
    } else {
      kept.append(std::exchange(first, false) ? "" : "\n").append(line);
    }
  }
  if (found) *text = std::move(kept);
  return found;
}

LineChanges ChangingLines::apply(Json* messages) const {
  LineChanges changes;
  if (dropped_.empty() && moved_.empty()) return changes;
  MatchMemory memory;
  std::string moved;
  Json kept = Json::array();
  for (Json& message : *messages) {
    const bool emptied = message["role"] == "system" &&
                         take_lines(&message["content"].get_ref<std::string&>(), &moved, &changes, &memory) &&
                         message["content"].get_ref<const std::string&>().empty();
    if (!emptied) kept.push_back(std::move(message));
  }
  if (kept.empty() && moved.empty()) kept.push_back({{"role", "system"}, {"content", ""}});
  *messages = std::move(kept);
  if (moved.empty()) return changes;
  const auto last = std::find_if(messages->rbegin(), messages->rend(),
                                 [](const Json& message) { return message["role"] != "assistant"; });
  if (last == messages->rend()) {  // nothing else was said
    messages->insert(messages->begin(), Json{{"role", "system"}, {"content", moved}});
  } else {
    (*last)["content"].get_ref<std::string&>() += "\n\n" + moved;
  }
  return changes;
}

}  // namespace smartkv::openai
