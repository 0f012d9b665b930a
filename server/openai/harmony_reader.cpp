#include "server/openai/harmony_reader.h"

#include <algorithm>
#include <array>
#include <utility>

#include "server/openai/loose_calls.h"
#include "server/openai/partial_mark.h"

namespace smartkv::openai {

namespace {

constexpr std::string_view kMessage = "<|message|>", kChannel = "<|channel|>", kFunctions = "to=functions.";
constexpr std::array<std::string_view, 5> kMessageEnds = {"<|end|>", "<|call|>", "<|return|>", "<|start|>", kChannel};
constexpr size_t kMostHeader = 512;

// Returns the word after `key` in a header, or "".
std::string_view word_after(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == header.npos) return {};
  const std::string_view rest = header.substr(at + key.size());
  return rest.substr(0, rest.find_first_of(" <\n"));
}

}  // namespace

void HarmonyReader::push(std::string_view text, std::vector<AnswerPiece>* pieces) {
  held_ += text;
  while (kind_ == Kind::kHeader ? read_header(pieces) : read_body(pieces)) {
  }
}

void HarmonyReader::flush(bool stopped, std::vector<AnswerPiece>* pieces) {
  ended_ = stopped;
  if (kind_ == Kind::kHeader) {  // an unfinished header, unless the model has written none
    const bool header = held_.find("<|") != held_.npos || held_.find("to=") != held_.npos;
    if (header || held_.find_first_not_of(kBlanks) == held_.npos) return;
    kind_ = Kind::kText;
  }
  add(held_.size(), pieces);
}

bool HarmonyReader::read_header(std::vector<AnswerPiece>* pieces) {
  const size_t end = held_.find(kMessage);
  if (end == held_.npos && held_.size() <= kMostHeader) return false;
  empty_ = true;
  if (end == held_.npos) {
    kind_ = Kind::kText;
    return true;
  }
  const std::string header = held_.substr(0, end);
  held_.erase(0, end + kMessage.size());
  const std::string name(word_after(header, kFunctions));
  if (!name.empty() && may_call_) {
    kind_ = Kind::kCall;
    pieces->push_back({.text = {}, .call = calls_++, .name = name, .arguments = {}, .reasoning = {}});
  } else {
    kind_ = word_after(header, kChannel) == "analysis" ? Kind::kThinking : Kind::kText;
  }
  return true;
}

bool HarmonyReader::read_body(std::vector<AnswerPiece>* pieces) {
  size_t end = held_.npos, mark = 0;
  size_t certain = held_.size();
  for (const std::string_view one : kMessageEnds) {
    const size_t found = held_.find(one);
    if (found < end) {
      end = found;
      mark = one == kChannel ? 0 : one.size();  // the channel is part of the next header
    }
    certain = std::min(certain, held_.size() - partial_mark(held_, one));
  }
  add(std::min(end, certain), pieces);
  if (end == std::string::npos) return false;
  held_.erase(0, mark);
  if (kind_ == Kind::kCall && empty_) {
    pieces->push_back({.text = {}, .call = calls_ - 1, .name = {}, .arguments = "{}", .reasoning = {}});
  }
  thought_ |= kind_ == Kind::kThinking;
  wrote_ |= kind_ == Kind::kText && !empty_;
  kind_ = Kind::kHeader;
  return true;
}

// Returns the first bytes of held_ as part of the message. An empty line parts messages of one kind.
void HarmonyReader::add(size_t bytes, std::vector<AnswerPiece>* pieces) {
  if (bytes == 0) return;
  AnswerPiece& piece = pieces->emplace_back();
  std::string text = held_.substr(0, bytes);
  held_.erase(0, bytes);
  const bool parted = std::exchange(empty_, false) && (kind_ == Kind::kThinking ? thought_ : wrote_);
  if (kind_ == Kind::kCall) {
    piece.call = calls_ - 1;
    piece.arguments = std::move(text);
  } else {
    (kind_ == Kind::kThinking ? piece.reasoning : piece.text) = (parted ? "\n\n" : "") + std::move(text);
  }
}

}  // namespace smartkv::openai
