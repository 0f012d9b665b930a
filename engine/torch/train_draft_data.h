// What a draft learns from: token sequences, with the target's distribution after each token.
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

constexpr int64_t kTaughtTop = 16;  // most likely tokens that are kept of a distribution

struct TaughtSequence {
  std::vector<TokenId> tokens;
  int64_t first = 0;               // the distributions after tokens [first, tokens.size()) are known
  std::vector<TokenId> top;        // [tokens.size() - first, kTaughtTop], the most likely first
  std::vector<float> probability;  // alike; of the whole vocabulary

  int64_t n_taught() const { return static_cast<int64_t>(tokens.size()) - first; }
};

struct DraftData {
  std::vector<TaughtSequence> answers, windows;    // to train on
  std::vector<TaughtSequence> held_answers, held_windows;  // to measure on; held_answers are greedy
};

struct AnswerPrompt {
  std::vector<TokenId> tokens;  // of the rendered chat template
  double temperature = 0;       // of the answer; 0: greedy
};

// The target, on the kernels that serve it.
class Teacher {
 public:
  // `stop`: tokens that end an answer.
  Teacher(const Weights& weights, std::set<TokenId> stop, int threads);

  // Distributions after every token of a text's window.
  TaughtSequence read(std::span<const TokenId> window);
  // The target's answers, in the order of the prompts, `batch` at a time; drawn from its kTaughtTop most likely tokens.
  std::vector<TaughtSequence> answer(std::span<const AnswerPrompt> prompts, int64_t max_tokens, int64_t batch,
                                     uint64_t seed, const std::function<void(int64_t done)>& progress);

 private:
  void take_rows(int64_t n);  // logits_ -> rows_
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

// Throw ModelError.
void save_draft_data(const std::filesystem::path& file, const DraftData& data);
DraftData load_draft_data(const std::filesystem::path& file);

}  // namespace smartkv
