// The data that a draft learns from: token sequences with the target's distribution after each token.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "cache/policy.h"
#include "engine/model/model.h"
#include "engine/weights/weights.h"
#include "kernels/thread_pool.h"

namespace smartkv {

constexpr int64_t kTaughtTop = 16;  // number of most likely tokens stored of each distribution

struct TaughtSequence {
  std::vector<TokenId> tokens;
  int64_t first = 0;               // the distributions after tokens [first, tokens.size()) are known
  std::vector<TokenId> top;        // [tokens.size() - first, kTaughtTop], the most likely first
  std::vector<float> probability;  // [tokens.size() - first, kTaughtTop], normalised over the whole vocabulary

  // Returns the number of known distributions.
  int64_t n_taught() const { return static_cast<int64_t>(tokens.size()) - first; }
};

struct DraftData {
  std::vector<TaughtSequence> answers, windows;            // for training
  std::vector<TaughtSequence> held_answers, held_windows;  // for measuring; held_answers are sampled greedily
};

struct AnswerPrompt {
  std::vector<TokenId> tokens;  // the rendered chat template
  double temperature = 0;       // temperature of the answer; 0 for greedy
};

// The target model, on the kernels that serve it. Not thread-safe.
class Teacher {
 public:
  // `stop` are the tokens that end an answer.
  Teacher(const Weights& weights, std::set<TokenId> stop, int threads);

  // Returns the distributions after every token of a window of text.
  TaughtSequence read(std::span<const TokenId> window);
  // Returns the target's answers, in the order of the prompts. Computes `batch` answers at a time and samples from the
  // kTaughtTop most likely tokens. Calls `progress` with the number of finished answers.
  std::vector<TaughtSequence> answer(std::span<const AnswerPrompt> prompts, int64_t max_tokens, int64_t batch,
                                     uint64_t seed, const std::function<void(int64_t done)>& progress);

 private:
  void take_rows(int64_t n);  // fills rows_ from the first n rows of logits_
  struct Row {
    TokenId top[kTaughtTop];
    float probability[kTaughtTop];
  };

  std::set<TokenId> stop_;
  ThreadPool pool_;
  std::unique_ptr<Model> model_;
  PolicyContext context_;
  std::unique_ptr<KvCachePolicy> policy_;
  std::vector<float> logits_;
  std::vector<Row> rows_;
};

// Both throw ModelError.
void save_draft_data(const std::filesystem::path& file, const DraftData& data);
DraftData load_draft_data(const std::filesystem::path& file);

}  // namespace smartkv
