#include "server/openai/answer_parser.h"

#include <utility>

#include "server/openai/partial_mark.h"

namespace smartkv::openai {

AnswerParser::AnswerParser(const ApiRequest& request) {
  const std::optional<Thinking>& thinking = request.generations.front().thinking;
  if (request.channels) {
    harmony_.emplace(!thinking, request.tools.has_value());
    return;
  }
  if (request.tools) tools_.emplace(*request.tools);
  if (!thinking) return;
  open_ = thinking->open;
  close_ = thinking->close;
  state_ = thinking->opened ? State::kThinking : State::kStart;
}

std::vector<AnswerPiece> AnswerParser::take(const GenerationEvent& event) {
  std::vector<AnswerPiece> pieces;
  if (harmony_) {
    harmony_->push(event.text, &pieces);
    if (event.finish != FinishReason::kNone)
      harmony_->flush(event.finish == FinishReason::kStop && !event.stop_string, &pieces);
    return pieces;
  }
  held_ += event.text;
  while (step(&pieces)) {
  }
  if (event.finish != FinishReason::kNone) flush(event.finish == FinishReason::kLength, &pieces);
  return pieces;
}

int64_t AnswerParser::calls() const { return harmony_ ? harmony_->calls() : tools_ ? tools_->calls() : 0; }

bool AnswerParser::incomplete() const {
  return harmony_ ? harmony_->incomplete() : tools_.has_value() && tools_->incomplete();
}

bool AnswerParser::step(std::vector<AnswerPiece>* pieces) {
  switch (state_) {
    case State::kStart: return find_thinking();
    case State::kThinking: return read_thinking(pieces);
    case State::kBehind:
      held_.erase(0, held_.find_first_not_of(kBlanks));
      if (held_.empty()) return false;
      state_ = State::kAnswer;
      return true;
    case State::kAnswer: break;
  }
  add_answer(std::exchange(held_, {}), pieces);
  return false;
}

bool AnswerParser::find_thinking() {
  const size_t first = held_.find_first_not_of(kBlanks);
  if (first == held_.npos) return false;
  const std::string_view rest = std::string_view(held_).substr(first);
  if (!may_begin_with(rest, open_)) {
    state_ = State::kAnswer;
    return true;
  }
  if (rest.size() < open_.size()) return false;
  held_.erase(0, first + open_.size());
  state_ = State::kThinking;
  return true;
}

bool AnswerParser::read_thinking(std::vector<AnswerPiece>* pieces) {
  const size_t close = held_.find(close_);
  const size_t end = close != held_.npos ? close : held_.size() - partial_mark(held_, close_);
  const size_t text = without_blanks(held_, end);  // blanks before the mark are dropped
  add_thinking(text, pieces);
  if (close == std::string::npos) return false;
  held_.erase(0, close - text + close_.size());
  state_ = State::kBehind;
  return true;
}

void AnswerParser::add_thinking(size_t bytes, std::vector<AnswerPiece>* pieces) {
  std::string text = held_.substr(0, bytes);
  held_.erase(0, bytes);
  if (!thought_) text.erase(0, text.find_first_not_of(kBlanks));
  if (text.empty()) return;
  thought_ = true;
  pieces->emplace_back().reasoning = std::move(text);
}

void AnswerParser::add_answer(std::string_view text, std::vector<AnswerPiece>* pieces) {
  if (tools_) {
    for (AnswerPiece& piece : tools_->push(text)) pieces->push_back(std::move(piece));
  } else if (!text.empty()) {
    pieces->emplace_back().text = text;
  }
}

void AnswerParser::flush(bool cut, std::vector<AnswerPiece>* pieces) {
  if (state_ == State::kThinking) {
    // The beginning of a closing mark is no thinking. One character may well be.
    const size_t mark = cut ? partial_mark(held_, close_) : 0;
    if (mark > 1) held_.resize(without_blanks(held_, held_.size() - mark));
    add_thinking(held_.size(), pieces);
  } else {
    add_answer(std::exchange(held_, {}), pieces);
  }
  if (!tools_) return;
  for (AnswerPiece& piece : tools_->flush()) pieces->push_back(std::move(piece));
}

}  // namespace smartkv::openai
