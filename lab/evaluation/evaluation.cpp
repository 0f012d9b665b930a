#include "lab/evaluation/evaluation.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace smartkv {

std::vector<TokenId> read_tokens(const std::filesystem::path& text, const Tokenizer& tokenizer) {
  std::ifstream file(text, std::ios::binary);
  std::stringstream content;
  if (!(content << file.rdbuf())) throw EvaluationError(text.string() + ": cannot be read or is empty");
  return tokenizer.encode(content.str(), {false, false});
}

void check_context(const EvaluationModel& model, int64_t context) {
  const int64_t most = model.model.config().context_length;
  if (context > most) {
    throw EvaluationError("context: expected at most the model's " + std::to_string(most) + " tokens, found " +
                          std::to_string(context));
  }
}

std::vector<int64_t> window_starts(const EvaluationModel& model, std::span<const TokenId> tokens, int64_t context,
                                   int64_t windows) {
  check_context(model, context);
  const int64_t fitting = (static_cast<int64_t>(tokens.size()) - 1) / context;
  if (fitting < windows) {
    throw EvaluationError("text: expected at least " + std::to_string(windows * context + 1) + " tokens for " +
                          std::to_string(windows) + " windows of " + std::to_string(context) + ", found " +
                          std::to_string(tokens.size()));
  }
  std::vector<int64_t> starts;
  for (int64_t window = 0; window < windows; ++window) starts.push_back(window * fitting / windows * context);
  return starts;
}

void feed(Model& model, SequenceCache& cache, std::span<const TokenId> tokens, int64_t n_logits, float* logits) {
  const auto total = static_cast<int64_t>(tokens.size());
  for (int64_t done = 0; done < total;) {
    const int64_t room = cache.next_boundary() - cache.tokens();
    if (room <= 0)
      throw EvaluationError("the cache did not advance its compaction boundary at token " +
                            std::to_string(cache.tokens()));
    const int64_t n = std::min({kPassTokens, total - done, room});
    const int64_t wanted = std::clamp<int64_t>(done + n - (total - n_logits), 0, n);
    const SequenceInput input{tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(n)), &cache, wanted};
    model.forward({&input, 1}, logits);
    cache.commit(cache.tokens());
    logits += wanted * model.config().vocab_size;
    done += n;
  }
}

}  // namespace smartkv
