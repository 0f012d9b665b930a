#include "lab/evaluation/answers.h"

#include <cmath>

namespace smartkv {
namespace {

TokenId best_token(std::span<const float> logits, const std::string& label) {
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i]))
      throw EvaluationError("policy \"" + label + "\", recall: expected finite logits, found NaN or infinity");
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<TokenId>(best);
}

}  // namespace

std::vector<GreedyAnswer> answer_greedily(const EvaluationModel& model, const Tokenizer& tokenizer,
                                          std::span<const std::unique_ptr<SequenceCache>> caches,
                                          std::span<const std::string> questions, const AnswerOptions& options,
                                          const std::string& label) {
  const auto vocab = static_cast<size_t>(model.model.config().vocab_size);
  std::vector<GreedyAnswer> answers(questions.size());
  std::vector<float> logits(questions.size() * vocab);
  std::vector<size_t> open;  // answers that have not ended; row i of `logits` belongs to open[i]
  for (size_t i = 0; i < questions.size(); ++i) {
    feed(model.model, *caches[i], tokenizer.encode(questions[i], {false, true}), 1, logits.data() + i * vocab);
    open.push_back(i);
  }
  for (int64_t step = 0; step < options.max_tokens && !open.empty(); ++step) {
    std::vector<size_t> going_on;
    std::vector<SequenceInput> batch;
    for (size_t row = 0; row < open.size(); ++row) {
      GreedyAnswer& answer = answers[open[row]];
      const TokenId token = best_token(std::span(logits).subspan(row * vocab, vocab), label);
      if (options.may_end && tokenizer.end_tokens().contains(token)) continue;
      answer.tokens.push_back(token);
      answer.text = tokenizer.decode(answer.tokens);
      const size_t stop = options.may_end && !options.stop.empty() ? answer.text.find(options.stop) : std::string::npos;
      if (stop != std::string::npos) {
        answer.text.resize(stop);
        continue;
      }
      going_on.push_back(open[row]);
    }
    open = std::move(going_on);
    if (step + 1 == options.max_tokens) break;
    for (const size_t i : open) batch.push_back({{&answers[i].tokens.back(), 1}, caches[i].get(), 1});
    if (!batch.empty()) model.model.forward(batch, logits.data());
    for (const size_t i : open) caches[i]->commit(caches[i]->tokens());
  }
  return answers;
}

}  // namespace smartkv
