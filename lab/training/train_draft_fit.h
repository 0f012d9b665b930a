// The network of a draft, its training by distillation, and a measure of how well it predicts its target.
// Sources: distillation: Hinton et al. 2015; starting from the target's layers: Sanh et al. 2019 (DistilBERT).
#pragma once

#include <torch/torch.h>

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/torch/torch_llama.h"
#include "engine/weights/safetensors.h"
#include "lab/training/train_draft_data.h"

namespace smartkv {

// A few trained layers and a trained final norm, between the target's embedding and rows of its head, which stay fixed.
class DraftNetwork {
 public:
  // Starts with copies of the target's `layers`. `output_tokens`, ascending, are the tokens that the draft can propose.
  // The network computes in `dtype`; parameters are f32.
  DraftNetwork(const Weights& target, std::span<const int64_t> layers, std::vector<TokenId> output_tokens,
               torch::Dtype dtype);

  // Returns logits, f32 [n, output_tokens]. `tokens` is int64 [batch, length]. `rows` is int64 [n]: indices of
  // positions in batch * length.
  torch::Tensor logits(const torch::Tensor& tokens, const torch::Tensor& rows) const;

  int64_t vocab_size() const { return config_.vocab_size; }
  const std::vector<TokenId>& output_tokens() const { return output_tokens_; }
  // Returns the trained matrices, or the trained vectors if `matrices` is false.
  std::vector<torch::Tensor> parameters(bool matrices) const;
  // Returns the tensors for the draft's file.
  std::vector<NamedTensor> tensors() const;

 private:
  ModelConfig config_;
  std::vector<TokenId> output_tokens_;
  torch::Dtype dtype_;
  std::map<std::string, torch::Tensor> learned_;  // f32, by Hugging Face name
  torch::Tensor embedding_, head_;                // [vocab_size, hidden_size], [output_tokens, hidden_size]
};

struct DraftFitOptions {
  int64_t epochs = 6;
  int64_t batch = 2048;  // about how many tokens per step
  double learning_rate = 1.2e-3;
  uint64_t seed = 1;
};

// Minimises the divergence KL(target || draft) over the target's most likely tokens with AdamW, a warm-up and a cosine
// decay. Calls `progress` after each step with a running mean of the loss.
void fit_draft(DraftNetwork* network, std::span<const TaughtSequence> sequences, const DraftFitOptions& options,
               const std::function<void(int64_t done, int64_t of, double loss)>& progress);

struct DraftQuality {
  double agreement = 0;  // share of positions where draft and target have the same most likely token
  // Tokens per target pass in greedy decoding with 4 drafted tokens, including the target's own.
  double tokens_per_pass = 0;
  double overlap = 0;   // mean of sum min(p, q): a lower bound of the acceptance at temperature 1
  double coverage = 0;  // lower bound of the target's probability of the tokens that the draft can propose
  int64_t positions = 0;
};

// Measures the network on sequences, in batches of about `tokens` tokens.
DraftQuality measure_draft(const DraftNetwork& network, std::span<const TaughtSequence> sequences, int64_t tokens);

// Returns the `count` tokens to which the target gives the most probability in total, ascending by id.
std::vector<TokenId> frequent_tokens(std::span<const TaughtSequence> answers, std::span<const TaughtSequence> windows,
                                     int64_t vocab_size, int64_t count);

}  // namespace smartkv
