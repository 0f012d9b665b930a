#include "engine/text/pattern.h"

#include <oniguruma.h>

#include "engine/text/reused_buffer.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"

namespace smartkv {
namespace {

// A search keeps about 32 bytes for each position that it may backtrack to. A run such as \s+ has one per character.
constexpr unsigned kMostPlaces = 4 << 20;
constexpr unsigned kMostSteps = 100'000'000;

const UChar* bytes(std::string_view text) { return reinterpret_cast<const UChar*>(text.data()); }

std::string message_of(int code, OnigErrorInfo* info) {
  UChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length = onig_error_code_to_str(text, code, info);
  return {reinterpret_cast<const char*>(text), static_cast<size_t>(length)};
}

// The results and the limits of a search. Each thread has one.
struct Workspace {
  OnigRegion* region = onig_region_new();
  OnigMatchParam* limits = onig_new_match_param();
  Workspace() {
    onig_initialize_match_param(limits);
    onig_set_match_stack_limit_size_of_match_param(limits, kMostPlaces);
    onig_set_retry_limit_in_match_of_match_param(limits, kMostSteps);
    onig_set_retry_limit_in_search_of_match_param(limits, kMostSteps);
  }
  ~Workspace() {
    onig_region_free(region, 1);
    onig_free_match_param(limits);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
};

}  // namespace

Pattern::Pattern(const std::string& expression) : source_(expression) {
  static const int initialized = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    return onig_initialize(encodings, 1);
  }();
  if (initialized != ONIG_NORMAL) throw TokenizerError("Oniguruma: " + message_of(initialized, nullptr));
  OnigRegex regex = nullptr;
  OnigErrorInfo info{};
  const int result = utf8_is_valid(expression)
                         ? onig_new(&regex, bytes(expression), bytes(expression) + expression.size(), ONIG_OPTION_NONE,
                                    ONIG_ENCODING_UTF8, OnigDefaultSyntax, &info)
                         : ONIGERR_INVALID_WIDE_CHAR_VALUE;
  if (result != ONIG_NORMAL)
    throw TokenizerError("pattern \"" + utf8_repair(expression) + "\": " + message_of(result, &info));
  compiled_ = std::shared_ptr<void>(regex, [](void* p) { onig_free(static_cast<OnigRegex>(p)); });
}

Pattern Pattern::literal(std::string text) {
  if (text.empty()) return Pattern(text);
  Pattern pattern;
  pattern.source_ = std::move(text);
  return pattern;
}

bool Pattern::search(std::string_view text, size_t from, Match* match) const {
  if (compiled_ == nullptr) {
    const size_t found = text.find(source_, from);
    *match = {found, found + source_.size()};
    return found != std::string_view::npos;
  }
  thread_local Workspace workspace;
  const UChar* const end = bytes(text) + text.size();
  const int result =
      onig_search_with_param(static_cast<OnigRegex>(compiled_.get()), bytes(text), end, bytes(text) + from, end,
                             workspace.region, ONIG_OPTION_NONE, workspace.limits);
  if (result == ONIG_MISMATCH) return false;
  if (result < 0) {
    throw TokenizerError("pattern \"" + source_ + "\" cannot split a text of " + std::to_string(text.size()) +
                         " bytes: " + message_of(result, nullptr));
  }
  *match = {static_cast<size_t>(workspace.region->beg[0]), static_cast<size_t>(workspace.region->end[0])};
  return true;
}

void Pattern::find(std::string_view text, std::vector<Match>* matches) const {
  matches->clear();
  Match match{};
  for (size_t from = 0; from <= text.size() && search(text, from, &match); from = match.end) {
    if (match.begin == match.end && !matches->empty() && matches->back().end == match.end) {
      if (match.end == text.size()) break;
      from = match.end + std::max<size_t>(1, utf8_length(text.substr(match.end)));
      if (!search(text, from, &match)) break;
    }
    matches->push_back(match);
  }
}

bool Pattern::matches_in(std::string_view text) const {
  Match match;
  return search(text, 0, &match);
}

std::string Pattern::replace(std::string_view text, std::string_view content) const {
  thread_local std::vector<Match> matches;
  find(text, &matches);
  std::string out;
  size_t done = 0;
  for (const Match& match : matches) {
    out.append(text, done, match.begin - done).append(content);
    done = match.end;
  }
  free_if_large(&matches);
  return out.append(text, done);
}

}  // namespace smartkv
