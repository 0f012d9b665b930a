#include "engine/text/pre_tokenizer.h"

#include <algorithm>

#include "engine/text/byte_level.h"
#include "engine/text/reused_buffer.h"
#include "engine/text/unicode_scripts.h"
#include "engine/text/utf8.h"

namespace smartkv {
namespace {

using PreSteps = std::vector<PreTokenizerStep>;
using Match = Pattern::Match;

constexpr const char* kPunctuation = R"([!-/:-@\[-`{-~\p{P}])";

struct Span {
  Match range;
  bool matched;
};

// Returns the matches and the spans between them, which together cover the text.
std::vector<Span> spans_of(const Pattern& pattern, std::string_view text, bool invert) {
  thread_local std::vector<Match> matches;
  pattern.find(text, &matches);
  std::vector<Span> spans;
  size_t done = 0;
  for (const Match& match : matches) {
    if (match.begin > done) spans.push_back({{done, match.begin}, invert});
    spans.push_back({match, !invert});
    done = match.end;
  }
  if (done < text.size()) spans.push_back({{done, text.size()}, invert});
  free_if_large(&matches);
  return spans;
}

// Joins a span with the previous one if joins(previous is matched, span is matched).
template <typename Joins>
void join(std::vector<Span>* spans, Joins joins) {
  std::vector<Span> joined;
  bool before = false;
  for (const Span& span : *spans) {
    if (!joined.empty() && joins(before, span.matched)) {
      joined.back().range = {std::min(joined.back().range.begin, span.range.begin),
                             std::max(joined.back().range.end, span.range.end)};
    } else {
      joined.push_back(span);
    }
    before = span.matched;
  }
  spans->swap(joined);
}

std::vector<Span> split(const Pattern& pattern, std::string_view text, SplitBehavior behavior, bool invert) {
  std::vector<Span> spans = spans_of(pattern, text, invert);
  const auto ends_run = [](bool before, bool matched) { return matched && !before; };
  if (behavior == SplitBehavior::kRemoved) {
    std::erase_if(spans, [](const Span& span) { return span.matched; });
  } else if (behavior == SplitBehavior::kMergedWithPrevious) {
    join(&spans, ends_run);
  } else if (behavior == SplitBehavior::kMergedWithNext) {
    std::reverse(spans.begin(), spans.end());
    join(&spans, ends_run);
    std::reverse(spans.begin(), spans.end());
  } else if (behavior == SplitBehavior::kContiguous) {
    join(&spans, [](bool before, bool matched) { return matched == before; });
  }
  return spans;
}

SplitBehavior read_behavior(const JsonNode& node) {
  const std::string name = node.string();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  node.unsupported();
}

PreTokenizerStep prefix_space_step() {
  return {[](const TextPiece& piece, TextPieces* out) {
    out->add(piece.text.starts_with(' ') ? piece
                                         : TextPiece{out->keep(std::string(1, ' ').append(piece.text)), piece.first});
  }};
}

PreTokenizerStep fixed_length_step(int64_t length) {
  return {[length](const TextPiece& piece, TextPieces* out) {
    size_t begin = 0;
    int64_t characters = 0;
    for (size_t at = 0; at < piece.text.size();) {
      at += std::max<size_t>(1, utf8_length(piece.text.substr(at)));
      if (++characters % length != 0) continue;
      out->add({piece.text.substr(begin, at - begin), piece.first && begin == 0});
      begin = at;
    }
    out->add({piece.text.substr(begin), piece.first && begin == 0});
  }};
}

enum class Prepend { kNever, kFirst, kAlways };

// Writes each space as `mark`. Depending on `prepend`, also puts `mark` before a piece that does not begin with it.
PreTokenizerStep mark_spaces_step(std::string mark, Prepend prepend) {
  return {[mark = std::move(mark), prepend, space = Pattern::literal(" ")](const TextPiece& piece, TextPieces* out) {
    std::string text = space.replace(piece.text, mark);
    if ((prepend == Prepend::kAlways || (prepend == Prepend::kFirst && piece.first)) && !text.starts_with(mark))
      text.insert(0, mark);
    out->add({out->keep(std::move(text)), piece.first});
  }};
}

void read_metaspace_steps(const JsonNode& node, PreSteps* steps) {
  const std::string mark = node.has("replacement") ? node["replacement"].character() : "\xe2\x96\x81";
  const JsonNode scheme = node["prepend_scheme"];
  Prepend prepend = Prepend::kAlways;
  if (!scheme.is_null()) {
    const std::string name = scheme.string();
    if (name != "always" && name != "first" && name != "never") scheme.unsupported();
    prepend = name == "always" ? Prepend::kAlways : name == "first" ? Prepend::kFirst : Prepend::kNever;
  } else if (!node["add_prefix_space"].boolean_or(true)) {
    prepend = Prepend::kNever;
  }
  steps->push_back(mark_spaces_step(mark, prepend));
  if (node["split"].boolean_or(true))
    steps->push_back(split_step(Pattern::literal(mark), SplitBehavior::kMergedWithNext));
}

void read_pre_tokenizer_step(const JsonNode& node, PreSteps* steps) {
  using enum SplitBehavior;
  const std::string type = node.type();
  if (type == "Sequence") {
    for (const JsonNode& child : node["pretokenizers"].items()) read_pre_tokenizer_step(child, steps);
  } else if (type == "ByteLevel") {
    if (node["add_prefix_space"].boolean_or(true)) steps->push_back(prefix_space_step());
    if (node["use_regex"].boolean_or(true)) steps->push_back(split_step(gpt2_pattern()));
    steps->push_back(byte_level_step());
  } else if (type == "Split") {
    steps->push_back(
        split_step(node["pattern"].pattern(), read_behavior(node["behavior"]), node["invert"].boolean_or(false)));
  } else if (type == "Digits") {
    steps->push_back(
        split_step(Pattern(R"(\p{N})"), node["individual_digits"].boolean_or(false) ? kIsolated : kContiguous));
  } else if (type == "Punctuation") {
    steps->push_back(
        split_step(Pattern(kPunctuation), node.has("behavior") ? read_behavior(node["behavior"]) : kIsolated));
  } else if (type == "Whitespace") {
    // Rust's \w, which matches more characters than Oniguruma's.
    const std::string word = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control})";
    steps->push_back(split_step(Pattern("[" + word + "]+|[^" + word + R"(\s]+)"), kRemoved, true));
  } else if (type == "WhitespaceSplit") {
    steps->push_back(split_step(Pattern(R"(\s)"), kRemoved));
  } else if (type == "BertPreTokenizer") {
    steps->push_back(split_step(Pattern(R"(\s)"), kRemoved));
    steps->push_back(split_step(Pattern(kPunctuation)));
  } else if (type == "CharDelimiterSplit") {
    steps->push_back(split_step(Pattern::literal(node["delimiter"].character()), kRemoved));
  } else if (type == "Metaspace") {
    read_metaspace_steps(node, steps);
  } else if (type == "FixedLength") {
    const int64_t length = node.has("length") ? node["length"].count() : 5;
    if (length == 0) node["length"].fail("expected a length of at least 1, found 0");
    steps->push_back(fixed_length_step(length));
  } else if (type == "UnicodeScripts") {
    steps->push_back(split_step(Pattern(one_script_expression()), kRemoved, true));
  } else {
    node.unsupported();
  }
}

}  // namespace

PreSteps read_pre_tokenizer(const JsonNode& node) {
  PreSteps steps;
  if (!node.is_null()) read_pre_tokenizer_step(node, &steps);
  return steps;
}

PreTokenizerStep split_step(Pattern pattern, SplitBehavior behavior, bool invert) {
  const auto apply = [pattern = std::move(pattern), behavior, invert](const TextPiece& piece, TextPieces* out) {
    for (const Span& span : split(pattern, piece.text, behavior, invert)) {
      out->add({piece.text.substr(span.range.begin, span.range.end - span.range.begin),
                piece.first && span.range.begin == 0});
    }
  };
  return {apply, behavior == SplitBehavior::kRemoved};
}

PreTokenizerStep byte_level_step() {
  return {[](const TextPiece& piece, TextPieces* out) {
            out->add({out->keep(to_stand_ins(piece.text)), piece.first});
          },
          false, true};
}

Pattern gpt2_pattern() {
  return Pattern(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
}

}  // namespace smartkv
