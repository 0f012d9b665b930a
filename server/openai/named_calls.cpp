#include "server/openai/named_calls.h"

#include <algorithm>
#include <cctype>

#include "server/openai/loose_calls.h"
#include "server/openai/partial_mark.h"

namespace smartkv::openai {

namespace {

constexpr std::string_view kCallId = "[CALL_ID]", kGemmaQuote = "<|\"|>";
constexpr size_t kMostName = 64, kMostCallId = 64, kMostGemmaDepth = 64;

enum class Match : uint8_t { kYes, kNo, kMore };

bool is_blank(char c) { return kBlanks.find(c) != kBlanks.npos; }

// Matches `mark` at `*at` of the text, and moves `*at` behind it. White space in front of it and within it may be any.
Match match(std::string_view text, std::string_view mark, size_t* at) {
  size_t i = std::min(text.find_first_not_of(kBlanks, *at), text.size());
  for (const char c : mark) {
    if (is_blank(c)) {
      i = std::min(text.find_first_not_of(kBlanks, i), text.size());
      continue;
    }
    if (i == text.size()) return Match::kMore;
    if (text[i] != c) return Match::kNo;
    ++i;
  }
  *at = i;
  return Match::kYes;
}

std::string_view without_blanks_around(std::string_view mark) {
  const size_t first = mark.find_first_not_of(kBlanks);
  if (first == mark.npos) return {};
  return mark.substr(first, mark.find_last_not_of(kBlanks) + 1 - first);
}

bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.'; }

AnswerPiece arguments_piece(int64_t call, std::string text) {
  return {.text = {}, .call = call, .name = {}, .arguments = std::move(text), .reasoning = {}};
}

// Reads Gemma's notation.
class GemmaReader {
 public:
  explicit GemmaReader(std::string_view text) : text_(text) {}
  bool object(std::string* json, size_t depth = 0) {
    return list('{', '}', depth, json, [&](std::string* out) {
      const size_t colon = text_.find(':', at_);
      if (colon == text_.npos) return false;
      std::string_view key = without_blanks_around(text_.substr(at_, colon - at_));
      if (key.starts_with(kGemmaQuote) && key.size() >= 2 * kGemmaQuote.size())
        key = key.substr(kGemmaQuote.size(), key.size() - 2 * kGemmaQuote.size());
      *out += dump(Json(key)) + ":";
      at_ = colon + 1;
      return value(out, depth + 1);
    });
  }
  bool ended() const { return text_.find_first_not_of(kBlanks, at_) == text_.npos; }

 private:
  void skip() { at_ = std::min(text_.find_first_not_of(kBlanks, at_), text_.size()); }
  template <typename Element>
  bool list(char open, char close, size_t depth, std::string* json, const Element& element) {
    skip();
    if (depth > kMostGemmaDepth || at_ == text_.size() || text_[at_] != open) return false;
    ++at_;
    *json += open;
    for (bool first = true;; first = false) {
      skip();
      if (at_ == text_.size()) return false;
      if (text_[at_] == close) {
        ++at_;
        *json += close;
        return true;
      }
      if (!first && text_[at_++] != ',') return false;
      if (!first) *json += ',';
      if (!element(json)) return false;
    }
  }
  bool value(std::string* json, size_t depth) {
    skip();
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with(kGemmaQuote)) {
      const size_t end = rest.find(kGemmaQuote, kGemmaQuote.size());
      if (end == rest.npos) return false;
      *json += dump(Json(rest.substr(kGemmaQuote.size(), end - kGemmaQuote.size())));
      at_ += end + kGemmaQuote.size();
      return true;
    }
    if (rest.starts_with('{')) return object(json, depth);
    if (rest.starts_with('['))
      return list('[', ']', depth, json, [&](std::string* out) { return value(out, depth + 1); });
    const std::string_view plain = rest.substr(0, rest.find_first_of(",}]"));
    const std::string_view word = without_blanks_around(plain);
    if (!Json::accept(word)) return false;
    *json += word;
    at_ += plain.size();
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// Returns the offset behind the object that begins `text` in Gemma's notation; npos if it has not ended.
size_t gemma_end(std::string_view text) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i).starts_with(kGemmaQuote)) {
      in_string = !in_string;
      i += kGemmaQuote.size() - 1;
    } else if (!in_string && (text[i] == '{' || text[i] == '[')) {
      ++depth;
    } else if (!in_string && (text[i] == '}' || text[i] == ']') && (depth == 0 || --depth == 0)) {
      return i + 1;
    }
  }
  return text.npos;
}

}  // namespace

bool is_string_schema(const Json& schema) {
  if (!schema.is_object()) return false;
  if (const auto type = schema.find("type"); type != schema.end()) return *type == "string";
  const auto values = schema.find("enum");
  return values != schema.end() && values->is_array() && !values->empty() &&
         std::all_of(values->begin(), values->end(), [](const Json& value) { return value.is_string(); });
}

std::string gemma_json(std::string_view text) {
  GemmaReader reader(text);
  std::string json;
  return reader.object(&json) && reader.ended() ? json : "";
}

NamedCallReader::NamedCallReader(const NamedForm& form, const ToolUse& tools) : form_(&form) {
  for (const ToolFunction& function : tools.functions) schemas_.emplace(function.name, function.parameters);
}

NamedCallReader::Result NamedCallReader::read(std::string* text, int64_t* calls, std::vector<AnswerPiece>* pieces) {
  for (;;) {
    Step step = Step::kMore;
    switch (state_) {
      case State::kBegin: step = begin(text, true, calls, pieces); break;
      case State::kArguments:
        step = form_->style == ArgumentStyle::kJson   ? read_json(text, *calls - 1, pieces)
               : form_->style == ArgumentStyle::kTags ? read_tag(text, *calls - 1, pieces)
                                                      : read_gemma(text, *calls - 1, pieces);
        break;
      case State::kClose: step = close(text); break;
      case State::kNext: step = next(text, calls, pieces); break;
    }
    if (step == Step::kMore) return Result::kMore;
    if (step == Step::kOn) continue;
    state_ = State::kBegin;
    return step == Step::kText ? Result::kText : Result::kEnded;
  }
}

NamedCallReader::Step NamedCallReader::begin(std::string* text, bool first, int64_t* calls,
                                             std::vector<AnswerPiece>* pieces) {
  size_t at = 0;
  const auto read_mark = [&](std::string_view mark) { return mark.empty() ? Match::kYes : match(*text, mark, &at); };
  Match result = first ? read_mark(form_->begin) : Match::kYes;
  if (result == Match::kYes) result = read_mark(form_->open);
  if (result != Match::kYes) return result == Match::kMore ? Step::kMore : Step::kText;
  size_t end = at;
  while (end < text->size() && is_name_char((*text)[end])) ++end;
  if (end == text->size() && end - at <= kMostName) return Step::kMore;
  if (end == at || end - at > kMostName) return Step::kText;
  std::string name = text->substr(at, end - at);
  at = end;
  const std::string_view rest = std::string_view(*text).substr(at);
  if (form_->form == ToolForm::kMistralArgs && may_begin_with(rest, kCallId)) {  // an id that some models write
    const size_t args = rest.find(form_->name_end);
    if (args == rest.npos) return rest.size() < kMostCallId ? Step::kMore : Step::kText;
    at += args;
  }
  result = read_mark(without_blanks_around(form_->name_end));
  if (result != Match::kYes) return result == Match::kMore ? Step::kMore : Step::kText;
  text->erase(0, at);
  name_ = std::move(name);
  any_ = false;
  json_ = JsonEnd();
  state_ = State::kArguments;
  pieces->push_back({.text = {}, .call = (*calls)++, .name = name_, .arguments = {}, .reasoning = {}});
  return Step::kOn;
}

NamedCallReader::Step NamedCallReader::read_json(std::string* text, int64_t call, std::vector<AnswerPiece>* pieces) {
  if (!any_) {
    const size_t first = text->find_first_not_of(kBlanks);
    if (first == text->npos) return Step::kMore;
    text->erase(0, first);
    if ((*text)[0] != '{') {
      pieces->push_back(arguments_piece(call, "{}"));
      state_ = State::kClose;
      return Step::kOn;
    }
    any_ = true;
  }
  const size_t n = json_.take(*text);
  if (n > 0) pieces->push_back(arguments_piece(call, text->substr(0, n)));
  text->erase(0, n);
  if (!json_.ended()) return Step::kMore;
  state_ = State::kClose;
  return Step::kOn;
}

// Reads an argument, or the end of the call.
NamedCallReader::Step NamedCallReader::read_tag(std::string* text, int64_t call, std::vector<AnswerPiece>* pieces) {
  size_t at = 0;
  const Match key_mark = match(*text, form_->key, &at);
  if (key_mark == Match::kYes) {
    const std::string_view key_end = without_blanks_around(form_->value.substr(0, form_->value.find('\n')));
    const size_t key = at, end = text->find(key_end, at);
    if (end == text->npos) return Step::kMore;
    at = end;
    const Match value_mark = match(*text, without_blanks_around(form_->value), &at);
    if (value_mark == Match::kMore) return Step::kMore;
    const std::string_view close = without_blanks_around(form_->value_end);
    const size_t value_end = text->find(close, at);
    if (value_end == text->npos) return Step::kMore;
    std::string_view value = std::string_view(*text).substr(at, value_end - at);
    if (form_->value.ends_with('\n') && value.starts_with('\n')) value.remove_prefix(1);
    if (form_->value_end.starts_with('\n') && value.ends_with('\n')) value.remove_suffix(1);
    const std::string name(without_blanks_around(std::string_view(*text).substr(key, end - key)));
    pieces->push_back(
        arguments_piece(call, (any_ ? ", " : "{") + dump(Json(name)) + ": " + dump(value_of(name, value))));
    text->erase(0, value_end + close.size());
    any_ = true;
    return Step::kOn;
  }
  size_t end = 0;
  const Match closed = match(*text, form_->close, &end);
  if (closed == Match::kMore || (key_mark == Match::kMore && closed != Match::kYes)) return Step::kMore;
  pieces->push_back(arguments_piece(call, any_ ? "}" : "{}"));
  state_ = State::kClose;
  return Step::kOn;
}

Json NamedCallReader::value_of(const std::string& key, std::string_view text) const {
  const auto function = schemas_.find(name_);
  Json schema;
  if (function != schemas_.end() && function->second.is_object()) {
    const Json properties = function->second.value("properties", Json::object());
    if (properties.is_object()) schema = properties.value(key, Json());
  }
  if (is_string_schema(schema)) return Json(text);
  const std::string_view word = without_blanks_around(text);
  if (word == "True" || word == "False") return word == "True";
  if (word == "None") return nullptr;
  Json value = Json::parse(word, nullptr, false);
  return value.is_discarded() ? Json(text) : value;
}

NamedCallReader::Step NamedCallReader::read_gemma(std::string* text, int64_t call, std::vector<AnswerPiece>* pieces) {
  const size_t end = gemma_end(*text);
  if (end == text->npos) return Step::kMore;
  const std::string json = gemma_json(std::string_view(*text).substr(0, end));
  pieces->push_back(arguments_piece(call, json.empty() ? text->substr(0, end) : json));
  text->erase(0, end);
  state_ = State::kClose;
  return Step::kOn;
}

// Reads the end of a call, if the model has written it.
NamedCallReader::Step NamedCallReader::close(std::string* text) {
  size_t at = 0;
  if (!form_->close.empty()) {
    const Match closed = match(*text, form_->close, &at);
    if (closed == Match::kMore) return Step::kMore;
    if (closed == Match::kYes) text->erase(0, at);
  }
  state_ = State::kNext;
  return Step::kOn;
}

NamedCallReader::Step NamedCallReader::next(std::string* text, int64_t* calls, std::vector<AnswerPiece>* pieces) {
  size_t at = 0;
  if (!form_->end.empty()) {
    const Match ended = match(*text, form_->end, &at);
    if (ended == Match::kYes) {
      text->erase(0, at);
      return Step::kEnded;
    }
    size_t other = 0;
    if (ended == Match::kMore && match(*text, form_->open, &other) != Match::kYes) return Step::kMore;
  }
  if (form_->begin.empty()) return Step::kEnded;  // another call has a mark of its own
  const Step step = begin(text, false, calls, pieces);
  return step == Step::kText ? Step::kEnded : step;
}

}  // namespace smartkv::openai
