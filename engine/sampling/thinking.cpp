#include "engine/sampling/thinking.h"

#include <algorithm>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace smartkv {
namespace {

enum class Phase : uint8_t {
  kStart,     // what came so far may begin the mark that opens the thinking
  kThinking,  // within the thinking
  kClosing,   // tokens of Thinking::closing and Thinking::between come next
  kAnswer
};

// Where an output is.
struct Place {
  Phase phase = Phase::kStart;
  std::string seen;     // text in which the next mark may have begun
  int64_t tokens = 0;   // of the thinking
  size_t closed = 0;    // tokens of Thinking::closing and Thinking::between that came
  size_t begun = 0;     // tokens that came in kStart
  int64_t matched = 0;  // tokens that the grammar has accepted
};

class ThinkingConstraint final : public Constraint {
 public:
  ThinkingConstraint(const Thinking& thinking, const Tokenizer& tokenizer, std::span<const TokenId> ends,
                     std::unique_ptr<Constraint> answer)
      : form_(thinking), tokenizer_(&tokenizer), ends_(ends.begin(), ends.end()), answer_(std::move(answer)) {
    closing_ = form_.closing;
    closing_.insert(closing_.end(), form_.between.begin(), form_.between.end());
    if (form_.opened) think(&at_);
    std::string opening;
    for (const TokenId token : form_.opening) opening += tokenizer.token_bytes(token);
    if (!opening.ends_with(form_.open)) form_.opening.clear();  // the vocabulary cannot write the mark
  }

  std::span<const uint32_t> allowed() override {
    switch (at_.phase) {
      case Phase::kThinking: return answer_ == nullptr ? std::span<const uint32_t>() : all_but_ends();
      case Phase::kClosing: return only(closing_[at_.closed]);
      case Phase::kAnswer: return answer_ == nullptr ? std::span<const uint32_t>() : answer_->allowed();
      case Phase::kStart: break;
    }
    if (answer_ == nullptr) return {};
    if (!matches() || must_think()) return only(form_.opening[at_.begun]);
    const std::span<const uint32_t> of_answer = answer_->allowed();
    mask_.assign(of_answer.begin(), of_answer.end());
    if (at_.begun < form_.opening.size()) set(form_.opening[at_.begun]);
    return mask_;
  }

  bool accept(TokenId token) override {
    Place next = at_;
    if (!advance(token, &next)) {
      settle(at_.matched);
      return false;
    }
    past_.push_back(std::exchange(at_, std::move(next)));
    if (past_.size() > kMostRollback) past_.pop_front();
    return true;
  }

  void rollback(int64_t n) override {
    if (n <= 0) return;
    at_ = past_.at(past_.size() - static_cast<size_t>(n));
    past_.resize(past_.size() - static_cast<size_t>(n));
    settle(at_.matched);
    start_.resize(std::min(start_.size(), at_.begun));
  }

  bool ended() const override { return at_.phase == Phase::kAnswer && answer_ != nullptr && answer_->ended(); }
  bool thinking() const override { return at_.phase == Phase::kThinking || at_.phase == Phase::kClosing; }
  int64_t reasoning_tokens() const override { return at_.tokens; }

 private:
  // Whether the tokens that came in kStart may begin the answer.
  bool matches() const { return at_.matched == static_cast<int64_t>(at_.begun); }
  bool must_think() const { return form_.always && !form_.opening.empty(); }

  // Begins the thinking, or ends it at once if no budget is left.
  void think(Place* place) const {
    const bool spent = form_.budget >= 0 && place->tokens >= form_.budget && !closing_.empty();
    place->phase = spent ? Phase::kClosing : Phase::kThinking;
    place->closed = 0;
  }

  // Moves `next` behind the token. Returns false if the token may not come; the grammar's position is then undefined.
  bool advance(TokenId token, Place* next) {
    switch (at_.phase) {
      case Phase::kStart: return start(token, next);
      case Phase::kThinking: return think_on(token, next);
      case Phase::kClosing:
        if (token != closing_[at_.closed]) return false;
        if (++next->closed == closing_.size()) answer(next);
        return true;
      case Phase::kAnswer: break;
    }
    if (answer_ != nullptr) {
      if (!answer_->accept(token)) return false;
      matched_ = ++next->matched;
    } else if (form_.repeats && passed(form_.open, token, &next->seen)) {
      think(next);
    }
    return true;
  }

  bool start(TokenId token, Place* next) {
    const bool may_match = answer_ != nullptr && matches() && !must_think();
    if (may_match && answer_->accept(token)) matched_ = ++next->matched;
    const bool matched = next->matched == static_cast<int64_t>(++next->begun);
    start_.resize(at_.begun);
    start_.push_back(token);
    next->seen += tokenizer_->token_bytes(token);
    next->seen.erase(0, next->seen.find_first_not_of(" \t\r\n"));
    const std::string_view seen(next->seen);
    const size_t n = std::min(seen.size(), form_.open.size());
    const bool opens = seen.substr(0, n) == std::string_view(form_.open).substr(0, n);
    if (opens && n == form_.open.size()) {
      next->seen.erase(0, n);
      next->matched = 0;
      settle(0);
      think(next);
      return true;
    }
    if (!matched && answer_ != nullptr) {  // its grammar can no longer match
      return opens && at_.begun < form_.opening.size() && token == form_.opening[at_.begun];
    }
    if (!opens) answer(next);
    return true;
  }

  bool think_on(TokenId token, Place* next) {
    if (passed(form_.close, token, &next->seen)) {
      const bool begins_answer = next->seen.find_first_not_of(" \t\r\n") != std::string::npos;
      if (begins_answer && answer_ != nullptr) return false;  // the grammar could not judge this text
      answer(next);
      if (answer_ != nullptr && !form_.between.empty()) {
        next->phase = Phase::kClosing;
        next->closed = form_.closing.size();
      }
      return true;
    }
    ++next->tokens;
    think(next);
    return true;
  }

  static void answer(Place* next) {
    next->phase = Phase::kAnswer;
    next->seen.clear();
  }

  // Adds the token's text to `seen`. Returns whether `mark` came; `seen` is then the text after it, and otherwise text
  // that may begin the mark.
  bool passed(const std::string& mark, TokenId token, std::string* seen) const {
    *seen += tokenizer_->token_bytes(token);
    const size_t found = seen->find(mark);
    if (found != std::string::npos) {
      seen->erase(0, found + mark.size());
      return true;
    }
    if (seen->size() >= mark.size()) seen->erase(0, seen->size() - mark.size() + 1);
    return false;
  }

  // Puts the grammar behind its first `n` tokens. If it has to go forward, these came in kStart.
  void settle(int64_t n) {
    if (answer_ == nullptr) return;
    if (matched_ > n) answer_->rollback(matched_ - n);
    for (int64_t i = matched_; i < n; ++i) answer_->accept(start_[static_cast<size_t>(i)]);
    matched_ = n;
  }

  std::span<const uint32_t> only(TokenId token) {
    clear(0);
    set(token);
    return mask_;
  }
  std::span<const uint32_t> all_but_ends() {
    clear(~uint32_t{0});
    for (const TokenId end : ends_) mask_[static_cast<size_t>(end) / 32] &= ~(uint32_t{1} << (end % 32));
    return mask_;
  }
  void clear(uint32_t word) { mask_.assign(static_cast<size_t>((tokenizer_->vocab_size() + 31) / 32), word); }
  void set(TokenId token) { mask_[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32); }

  Thinking form_;
  std::vector<TokenId> closing_;  // Thinking::closing and Thinking::between
  const Tokenizer* tokenizer_;
  std::vector<TokenId> ends_;
  std::unique_ptr<Constraint> answer_;  // the grammar after the thinking; null if any text is allowed
  int64_t matched_ = 0;                 // tokens that answer_ has accepted
  Place at_;
  std::deque<Place> past_;      // places before the last tokens
  std::vector<TokenId> start_;  // tokens that came in kStart
  std::vector<uint32_t> mask_;
};

}  // namespace

std::unique_ptr<Constraint> constrain_thinking(const Thinking& thinking, const Tokenizer& tokenizer,
                                               std::span<const TokenId> ends, std::unique_ptr<Constraint> answer) {
  return std::make_unique<ThinkingConstraint>(thinking, tokenizer, ends, std::move(answer));
}

}  // namespace smartkv
