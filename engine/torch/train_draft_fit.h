// The network of a draft, its training by distillation, and how well it foresees its target.
// Sources: distillation: Hinton et al. 2015; a draft made of its target's layers: Sanh et al. 2019 (DistilBERT).
#pragma once

#include <torch/torch.h>

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/torch/torch_llama.h"
#include "engine/torch/train_draft_data.h"
#include "engine/weights/safetensors.h"

namespace smartkv {

// A few layers and a final norm, which learn, between the target's embedding and rows of its head, which do not.
class DraftNetwork {
 public:
  // Starts as copies of these of the target's layers. output_tokens: ascending. Computes in `dtype`, learns in f32.
  DraftNetwork(const Weights& target, std::span<const int64_t> layers, std::vector<TokenId> output_tokens,
               torch::Dtype dtype);

  // tokens: int64 [batch, length]; rows: int64 [n], indices into batch * length. f32 [n, output_tokens].
  torch::Tensor logits(const torch::Tensor& tokens, const torch::Tensor& rows) const;

  int64_t vocab_size() const { return config_.vocab_size; }
  const std::vector<TokenId>& output_tokens() const { return output_tokens_; }
  std::vector<torch::Tensor> parameters(bool matrices) const;  // or the vectors
  std::vector<NamedTensor> tensors() const;                    // what a draft's file holds

 private:
  ModelConfig config_;
  std::vector<TokenId> output_tokens_;
  torch::Dtype dtype_;
  std::map<std::string, torch::Tensor> learned_;  // f32, Hugging Face names
  torch::Tensor embedding_, head_;                // [vocab_size, hidden_size], [output_tokens, hidden_size]
};

struct DraftFitOptions {
  int64_t epochs = 6;
  int64_t batch = 2048;  // tokens of a step
  double learning_rate = 1.2e-3;
  uint64_t seed = 1;
};

// AdamW on the divergence KL(target || draft) over the target's most likely tokens, with a warm-up and a cosine decay.
// progress: after a step, with a running mean of the loss.
void fit_draft(DraftNetwork* network, std::span<const TaughtSequence> sequences, const DraftFitOptions& options,
               const std::function<void(int64_t done, int64_t of, double loss)>& progress);

struct DraftQuality {
  double agreement = 0;        // share of positions where draft and target find the same token most likely
  double tokens_per_pass = 0;  // of greedy decoding with 4 drafted tokens, the target's own included
  double overlap = 0;          // mean of sum min(p, q): the acceptance at temperature 1, from below
  double coverage = 0;         // the target's probability of the tokens that the draft has rows for, from below
  int64_t positions = 0;
};

// `tokens`: of a batch.
DraftQuality measure_draft(const DraftNetwork& network, std::span<const TaughtSequence> sequences, int64_t tokens);

// The `count` tokens that the target gives the most probability, ascending.
std::vector<TokenId> frequent_tokens(std::span<const TaughtSequence> answers, std::span<const TaughtSequence> windows,
                                     int64_t vocab_size, int64_t count);

}  // namespace smartkv
