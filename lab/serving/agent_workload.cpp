#include "lab/serving/agent_workload.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>

#include "engine/text/utf8.h"
#include "lab/evaluation/evaluation_texts.h"

namespace smartkv {

namespace {

constexpr size_t kPassageBytes = 900;    // a passage ends with the first paragraph after so many
constexpr int64_t kTemplateTokens = 8;   // about what a chat template adds to a message
constexpr int64_t kLeastOwnTokens = 32;  // of the first message of a session
constexpr const char* kSystemText =
    "You are a coding agent. You work on one task in a repository, with the tools read_file, search, edit_file and "
    "run_tests. Each answer is one short step: what you learnt, and which tool you use next. These notes are from the "
    "people who maintain the repository.\n\n";

struct Passage {
  std::string text;
  int64_t tokens = 0;
};

// Cuts texts at empty lines into passages, each with a line that says where it is from.
std::vector<Passage> make_passages(const Tokenizer& tokenizer) {
  std::vector<Passage> passages;
  for (const EmbeddedFile& file : evaluation_texts()) {
    if (!file.file.ends_with(".txt")) continue;
    const std::string_view text = file.text();
    for (size_t start = 0, part = 1; start < text.size(); ++part) {
      const size_t end = std::min(text.find("\n\n", std::min(start + kPassageBytes, text.size())), text.size());
      std::string passage = "read_file " + std::string(file.file) + ", part " + std::to_string(part) + ":\n" +
                            std::string(text.substr(start, end - start)) + "\n\n";
      const auto tokens = static_cast<int64_t>(tokenizer.encode(passage, {.add_special = false}).size());
      passages.push_back({std::move(passage), tokens});
      start = std::min(text.find_first_not_of('\n', end), text.size());
    }
  }
  return passages;
}

// Writes texts of any length: all passages in an order of its own, again and again in other orders.
class PassageWriter {
 public:
  PassageWriter(const Tokenizer& tokenizer, const std::vector<Passage>& passages, uint64_t seed)
      : tokenizer_(tokenizer), passages_(passages), random_(seed) {}

  // Returns `tokens` tokens of text, beginning with `head`.
  std::string write(std::string head, int64_t tokens) {
    constexpr EncodeOptions kPlain = {.add_special = false, .parse_special = false};
    std::vector<TokenId> ids;
    for (int64_t about = 0; std::ssize(ids) < tokens; ids = tokenizer_.encode(head, kPlain)) {
      do {
        const Passage& passage = next();
        head += passage.text;
        about += passage.tokens;
      } while (about < tokens);
    }
    std::string text = tokenizer_.decode(std::span(ids).first(static_cast<size_t>(tokens)));
    while (!utf8_is_valid(text)) text.pop_back();  // a token may end inside a character
    return text;
  }

 private:
  const Passage& next() {
    if (place_ == order_.size()) {
      order_.resize(passages_.size());
      std::iota(order_.begin(), order_.end(), size_t{0});
      // Not std::shuffle, whose result depends on the library.
      for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random_() % i]);
      place_ = 0;
    }
    return passages_[order_[place_++]];
  }

  const Tokenizer& tokenizer_;
  const std::vector<Passage>& passages_;
  std::mt19937_64 random_;
  std::vector<size_t> order_;
  size_t place_ = 0;
};

struct WrittenSession {
  PassageWriter writer;
  int64_t messages = 0;  // of its conversation, replies included
};

}  // namespace

std::vector<AgentTurn> synthetic_turns(const AgentWorkload& workload) {
  std::vector<AgentTurn> turns;
  for (int64_t turn = 0; turn < workload.turns; ++turn) {
    for (int64_t session = 0; session < workload.sessions; ++session) {
      AgentTurn one;
      one.session = std::to_string(session + 1);
      one.tokens = turn == 0 ? workload.start_tokens : workload.turn_tokens;
      one.output_tokens = workload.reply_tokens;
      turns.push_back(std::move(one));
    }
  }
  return turns;
}

void write_texts(const Tokenizer& tokenizer, int64_t shared_tokens, std::vector<AgentTurn>* turns) {
  const std::vector<Passage> passages = make_passages(tokenizer);
  const std::string system = PassageWriter(tokenizer, passages, 0).write(kSystemText, shared_tokens);
  std::map<std::string, WrittenSession> sessions;
  for (AgentTurn& turn : *turns) {
    const auto place = sessions.try_emplace(turn.session, PassageWriter(tokenizer, passages, sessions.size() + 1));
    WrittenSession& session = place.first->second;
    const int64_t added = added_messages(turn, session.messages);
    session.messages = turn.keep.value_or(session.messages) + added + 1;
    if (turn.tokens == 0) continue;
    std::string head = "The tool returned:\n\n";
    int64_t tokens = turn.tokens;
    if (added == 2) {
      head = "Task of session " + turn.session + ": find out what these files have in common.\n\n";
      tokens -= shared_tokens;
      if (tokens < kLeastOwnTokens) {
        throw std::invalid_argument(
            "session " + turn.session + ": expected at least " + std::to_string(shared_tokens + kLeastOwnTokens) +
            " tokens, of which " + std::to_string(shared_tokens) + " are shared, found " + std::to_string(turn.tokens));
      }
      turn.messages.push_back({"system", system});
    }
    turn.messages.push_back({"user", session.writer.write(std::move(head), tokens)});
    turn.tokens = 0;
  }
}

int64_t longest_conversation(const Tokenizer& tokenizer, const std::vector<AgentTurn>& turns) {
  std::map<std::string, std::vector<int64_t>> sessions;  // tokens of each message
  int64_t longest = 0;
  for (const AgentTurn& turn : turns) {
    std::vector<int64_t>& conversation = sessions[turn.session];
    if (turn.keep) conversation.resize(static_cast<size_t>(*turn.keep));
    for (const AgentMessage& message : turn.messages) {
      const auto tokens = static_cast<int64_t>(tokenizer.encode(message.content, {.add_special = false}).size());
      conversation.push_back(kTemplateTokens + tokens);
    }
    conversation.push_back(kTemplateTokens + turn.output_tokens);
    longest = std::max(longest, std::accumulate(conversation.begin(), conversation.end(), int64_t{0}));
  }
  return longest;
}

}  // namespace smartkv
