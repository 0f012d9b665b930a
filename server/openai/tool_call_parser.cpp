#include "server/openai/tool_call_parser.h"

#include <algorithm>
#include <optional>

namespace smartkv::openai {

namespace {

constexpr std::string_view kHermesStart = "<tool_call>", kMistralStart = "[TOOL_CALLS]";
constexpr std::string_view kSpace = " \t\r\n";

// Reads the beginning of a call, `{"name": "f", "arguments": `, from a text that may end anywhere in it.
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
  void skip() {
    while (at_ < text_.size() && kSpace.find(text_[at_]) != kSpace.npos) ++at_;
  }
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

// Bytes at the end of the text that may begin the marker.
size_t begun(std::string_view text, std::string_view marker) {
  for (size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == marker.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace

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
  if (state_ == State::kTail || (calls_ > 0 && held_.find_first_not_of(kSpace) == held_.npos)) held_.clear();
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
    case State::kStart:
    case State::kText: return find_start(pieces);
    case State::kHead: return read_head(pieces);
    case State::kArguments: return read_arguments(pieces);
    case State::kTail: return read_tail();
  }
  return false;
}

void ToolCallParser::add_text(size_t bytes, std::vector<AnswerPiece>* pieces) {
  if (bytes == 0) return;
  AnswerPiece& piece = pieces->emplace_back();
  piece.text = held_.substr(0, bytes);
  held_.erase(0, bytes);
}

bool ToolCallParser::find_start(std::vector<AnswerPiece>* pieces) {
  if (form_ == ToolForm::kHermes) {
    const size_t start = held_.find(kHermesStart);
    if (start == held_.npos) {
      const size_t known = held_.size() - begun(held_, kHermesStart);
      add_text(known == 0 ? 0 : held_.find_last_not_of('\n', known - 1) + 1, pieces);
      return false;
    }
    // Line breaks before a call are not text.
    const size_t end = start == 0 ? 0 : held_.find_last_not_of('\n', start - 1) + 1;
    add_text(end, pieces);
    opening_ = held_.substr(0, start - end + kHermesStart.size());
    held_.erase(0, opening_.size());
    state_ = State::kHead;
    return true;
  }
  if (state_ == State::kText) {
    add_text(held_.size(), pieces);
    return false;
  }
  // The whole answer is calls, or it is text.
  const size_t first = held_.find_first_not_of(kSpace);
  if (first == held_.npos) return false;
  const std::string_view rest = std::string_view(held_).substr(first);
  if (form_ == ToolForm::kMistral && rest.substr(0, kMistralStart.size()) == kMistralStart.substr(0, rest.size()) && rest.size() > 1) {
    if (rest.size() < kMistralStart.size()) return false;
    held_.erase(0, first + kMistralStart.size());
    return true;
  }
  if (rest[0] == '[' && form_ != ToolForm::kLlama3) {
    if (rest.find_first_not_of(kSpace, 1) == rest.npos) return false;
    opening_ = held_.substr(0, first + 1);
    held_.erase(0, first + 1);
  }
  state_ = held_.find('{') == held_.find_first_not_of(kSpace) ? State::kHead : State::kText;
  if (state_ == State::kText) held_.insert(0, opening_), opening_.clear();
  return true;
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
  depth_ = 0;
  return true;
}

bool ToolCallParser::read_arguments(std::vector<AnswerPiece>* pieces) {
  size_t n = 0;
  bool done = false;
  while (n < held_.size() && !done) {
    const char c = held_[n++];
    if (in_string_) {
      if (c == '"' && !escaped_) in_string_ = false;
      escaped_ = c == '\\' && !escaped_;
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      done = --depth_ == 0;
    }
  }
  if (n > 0) {
    AnswerPiece& piece = pieces->emplace_back();
    piece.call = calls_ - 1;
    piece.arguments = held_.substr(0, n);
    held_.erase(0, n);
  }
  if (done) state_ = State::kTail;
  return done;
}

// Behind a call: what closes it, and perhaps another one.
bool ToolCallParser::read_tail() {
  if (form_ == ToolForm::kHermes) {
    constexpr std::string_view kEnd = "</tool_call>";
    const size_t end = held_.find(kEnd);
    if (end == held_.npos) return false;
    held_.erase(0, end + kEnd.size());
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
