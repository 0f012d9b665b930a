#include "server/openai/tool_call_parser.h"

#include <algorithm>

#include "server/openai/partial_mark.h"

namespace smartkv::openai {

namespace {

// Reads the beginning of a call, `{"name": "f", "arguments": `, from a text that may be cut anywhere.
class HeadReader {
 public:
  enum class Result : uint8_t { kMore, kOther, kHead };
  explicit HeadReader(std::string_view text) : text_(text) {}

  Result read(std::string* name) {
    const bool read = literal("{") && quoted("name") && literal(":") && value(name) && literal(",") &&
                      (quoted("arguments") || (!ended_ && (at_ = mark_, quoted("parameters")))) && literal(":");
    if (!read) return ended_ ? Result::kMore : Result::kOther;
    skip();
    return at_ < text_.size() ? Result::kHead : Result::kMore;
  }
  size_t end() const { return at_; }

 private:
  void skip() { at_ = std::min(text_.find_first_not_of(kBlanks, at_), text_.size()); }
  bool literal(std::string_view expected) {
    skip();
    mark_ = at_;
    const std::string_view rest = text_.substr(at_);
    const size_t n = std::min(rest.size(), expected.size());
    if (rest.substr(0, n) != expected.substr(0, n)) return false;
    ended_ = n < expected.size();
    at_ += n;
    return !ended_;
  }
  bool quoted(std::string_view name) { return literal('"' + std::string(name) + '"'); }
  bool value(std::string* name) {
    if (!literal("\"")) return false;
    const size_t close = text_.find('"', at_);
    ended_ = close == text_.npos;
    if (ended_) return false;
    *name = text_.substr(at_, close - at_);
    at_ = close + 1;
    return true;
  }

  std::string_view text_;
  size_t at_ = 0, mark_ = 0;
  bool ended_ = false;
};

std::vector<std::string> names_of(const ToolUse& tools) {
  std::vector<std::string> names;
  for (const ToolFunction& function : tools.functions) names.push_back(function.name);
  return names;
}

}  // namespace

ToolCallParser::ToolCallParser(const ToolUse& tools)
    : form_(tools.form),
      mark_(call_mark(tools.form)),
      parallel_(tools.parallel),
      constrained_(tools.constrained),
      loose_(names_of(tools)) {
  first_word_ = std::min(mark_.find('\n'), mark_.size());
  if (const NamedForm* form = named_form(form_)) named_.emplace(*form, tools);
  for (const ToolFunction& function : tools.functions) {
    if (takes_nothing(function)) bare_.push_back(function.name);
  }
}

std::vector<AnswerPiece> ToolCallParser::push(std::string_view text) {
  held_ += text;
  std::vector<AnswerPiece> pieces;
  while (step(&pieces)) {
  }
  return pieces;
}

std::vector<AnswerPiece> ToolCallParser::flush() {
  std::vector<AnswerPiece> pieces;
  held_.insert(0, opening_);
  opening_.clear();
  const bool after_call = state_ == State::kTail || (state_ == State::kNamed && named_->begun());
  if (after_call || (calls_ > 0 && held_.find_first_not_of(kBlanks) == held_.npos)) held_.clear();
  add_text(held_.size(), &pieces);
  return pieces;
}

std::vector<AnswerPiece> ToolCallParser::take(const GenerationEvent& event) {
  std::vector<AnswerPiece> pieces = push(event.text);
  if (event.finish == FinishReason::kNone) return pieces;
  for (AnswerPiece& piece : flush()) pieces.push_back(std::move(piece));
  return pieces;
}

bool ToolCallParser::step(std::vector<AnswerPiece>* pieces) {
  switch (state_) {
    case State::kStart: return find_start(pieces);
    case State::kText: return find_in_text(pieces);
    case State::kHead: return read_head(pieces);
    case State::kArguments: return read_arguments(pieces);
    case State::kTail: return read_tail();
    case State::kNamed: return read_named(pieces);
  }
  return false;
}

void ToolCallParser::add_text(size_t bytes, std::vector<AnswerPiece>* pieces) {
  if (bytes == 0) return;
  AnswerPiece& piece = pieces->emplace_back();
  piece.text = held_.substr(0, bytes);
  const size_t line = piece.text.rfind('\n');
  const bool blank =
      piece.text.find_first_not_of(" \t\r", line == std::string::npos ? 0 : line + 1) == std::string::npos;
  line_start_ = blank && (line != std::string::npos || line_start_);
  held_.erase(0, bytes);
}

// Decides at the start of an answer whether it consists of calls or is text, in forms in which it cannot be both. It is
// calls only if a grammar or the marker of the form ensures that.
bool ToolCallParser::find_start(std::vector<AnswerPiece>*) {
  const bool marked = form_ == ToolForm::kMistral || form_ == ToolForm::kGranite;
  if (!marked && form_ != ToolForm::kLlama3 && form_ != ToolForm::kGeneric) {
    state_ = State::kText;
    return true;
  }
  const size_t first = held_.find_first_not_of(kBlanks);
  if (first == held_.npos) return false;
  const std::string_view rest = std::string_view(held_).substr(first);
  if (marked && rest.size() > 1 && may_begin_with(rest, mark_)) {
    if (rest.size() < mark_.size()) return false;
    held_.erase(0, first + mark_.size());
    constrained_ = true;
    return true;
  }
  if (marked && rest.size() == 1 && rest[0] == mark_[0]) return false;
  if (constrained_ && rest[0] == '[' && form_ != ToolForm::kLlama3) {
    if (rest.find_first_not_of(kBlanks, 1) == rest.npos) return false;
    opening_ = held_.substr(0, first + 1);
    held_.erase(0, first + 1);
  }
  state_ = constrained_ && held_.find('{') == held_.find_first_not_of(kBlanks) ? State::kHead : State::kText;
  if (state_ == State::kText) held_.insert(0, opening_), opening_.clear();
  return true;
}

bool ToolCallParser::find_in_text(std::vector<AnswerPiece>* pieces) {
  bool line_start = line_start_;
  const bool may_call = parallel_ || calls_ == 0;
  for (size_t i = 0; may_call && i < held_.size(); ++i) {
    const char c = held_[i];
    const std::string_view rest = std::string_view(held_).substr(i);
    if (!mark_.empty() && c == mark_[0] && may_begin_with(rest, mark_.substr(0, first_word_))) {
      if (rest.size() >= first_word_) return begin_marked(i, pieces);
      add_text(without_blanks(held_, i), pieces);
      return false;
    }
    if (line_start && (c == '{' || c == '[' || c == '`' || c == 'f')) {
      std::vector<LooseCall> calls;
      size_t end = 0;
      const LooseCallReader::Result result = loose_.read(rest, &calls, &end);
      if (result == LooseCallReader::Result::kMore) {
        add_text(without_blanks(held_, i), pieces);
        return false;
      }
      if (result == LooseCallReader::Result::kCalls && (parallel_ || calls.size() == 1)) {
        add_loose(calls, i, i + end, pieces);
        return true;
      }
    }
    line_start = c == '\n' || (line_start && kBlanks.find(c) != kBlanks.npos);
  }
  add_text(without_blanks(held_, held_.size()),
           pieces);  // white space is held back, because it is dropped before a call
  return false;
}

bool ToolCallParser::begin_marked(size_t at, std::vector<AnswerPiece>* pieces) {
  const size_t end = without_blanks(held_, at);
  add_text(end, pieces);
  if (named_) {
    state_ = State::kNamed;
    return true;
  }
  opening_ = held_.substr(0, at - end + mark_.size());
  held_.erase(0, opening_.size());
  state_ = State::kHead;
  if (form_ == ToolForm::kHermes) return true;
  constrained_ = true;  // the rest of the answer is calls
  opening_.clear();
  state_ = State::kStart;
  return true;
}

bool ToolCallParser::read_named(std::vector<AnswerPiece>* pieces) {
  const NamedCallReader::Result result = named_->read(&held_, &calls_, pieces);
  if (result == NamedCallReader::Result::kMore) return false;
  if (result == NamedCallReader::Result::kText) {
    add_text(held_.find_first_not_of(kBlanks) + first_word_, pieces);
  } else {
    line_start_ = true;
  }
  state_ = State::kText;
  return true;
}

bool ToolCallParser::incomplete() const {
  return state_ == State::kArguments || (state_ == State::kNamed && named_->within_arguments());
}

void ToolCallParser::add_loose(const std::vector<LooseCall>& calls, size_t start, size_t end,
                               std::vector<AnswerPiece>* pieces) {
  const size_t text = without_blanks(held_, start);
  add_text(text, pieces);
  held_.erase(0, end - text);
  line_start_ = true;
  for (const LooseCall& call : calls) {
    const bool bare = std::find(bare_.begin(), bare_.end(), call.name) != bare_.end();  // no grammar has ensured {}
    pieces->push_back({.text = {}, .call = calls_, .name = call.name, .arguments = {}, .reasoning = {}});
    pieces->push_back(
        {.text = {}, .call = calls_++, .name = {}, .arguments = bare ? "{}" : call.arguments, .reasoning = {}});
  }
}

bool ToolCallParser::read_head(std::vector<AnswerPiece>* pieces) {
  HeadReader reader(held_);
  std::string name;
  switch (reader.read(&name)) {
    case HeadReader::Result::kMore: return false;
    case HeadReader::Result::kOther:
      held_.insert(0, opening_);
      add_text(opening_.size(), pieces);
      opening_.clear();
      state_ = State::kText;
      return true;
    case HeadReader::Result::kHead: break;
  }
  held_.erase(0, reader.end());
  opening_.clear();
  AnswerPiece& piece = pieces->emplace_back();
  piece.call = calls_++;
  piece.name = std::move(name);
  state_ = State::kArguments;
  json_ = JsonEnd();
  return true;
}

bool ToolCallParser::read_arguments(std::vector<AnswerPiece>* pieces) {
  const size_t n = json_.take(held_);
  if (n > 0) {
    AnswerPiece& piece = pieces->emplace_back();
    piece.call = calls_ - 1;
    piece.arguments = held_.substr(0, n);
    held_.erase(0, n);
  }
  if (json_.ended()) state_ = State::kTail;
  return json_.ended();
}

// Reads the text after a call: the end of its form, and perhaps the beginning of another call.
bool ToolCallParser::read_tail() {
  if (form_ == ToolForm::kHermes) {
    constexpr std::string_view kEnd = "</tool_call>";
    const size_t end = held_.find(kEnd);
    if (end == held_.npos) return false;
    held_.erase(0, end + kEnd.size());
    line_start_ = true;
    state_ = State::kText;
    return true;
  }
  const size_t next = held_.find('{');
  if (next == held_.npos) return false;
  held_.erase(0, next);
  state_ = State::kHead;
  return true;
}

}  // namespace smartkv::openai
