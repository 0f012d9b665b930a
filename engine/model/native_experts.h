// The experts of a layer, on the CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/llama_weights.h"
#include "engine/weights/model_config.h"
#include "kernels/aligned_buffer.h"
#include "kernels/attention.h"
#include "kernels/linear.h"

namespace smartkv {

kernels::Epilogue gated_epilogue(Activation activation);

// Computes the experts of a pass. One list of tasks computes gate and up of all experts over their rows, another one
// the down projections. A row's result has the same bits in any batch: products are batch-invariant, and the outputs of
// a row's experts are added in the order of their weights.
class NativeExperts {
 public:
  // type: of the rows.
  NativeExperts(const ModelConfig& config, kernels::KvType type, ThreadPool& pool);

  // Writes the outputs of the experts, each times its weight, for x [rows, hidden_size]. out: f32 [rows, hidden_size].
  void run(const LlamaLayerWeights& weights, const void* x, int64_t rows, float* out);

 private:
  // The rows of an MLP.
  struct Group {
    size_t mlp;     // index in LlamaLayerWeights::mlps
    int64_t first;  // The first of its rows in gated_ and outputs_.
    int64_t rows;
  };

  void choose(const LlamaLayerWeights& weights, const void* x, int64_t rows);
  void sort_rows(int64_t rows);
  void combine(int64_t rows, float* out);
  // Returns the part of gated_ that begins with the first row of a group.
  std::byte* gated_of(const Group& group);

  const ModelConfig config_;
  ThreadPool& pool_;
  int64_t element_bytes_;
  kernels::Epilogue epilogue_;
  int64_t each_;  // MLPs of a row: its experts and the shared one.

  // State of a call. Buffers are never shrunk.
  std::vector<float> logits_;                 // [rows, n_experts]
  std::vector<float> shared_;                 // [rows]: the logit of the shared expert's gate
  std::vector<int32_t> experts_;              // [rows, experts_per_token]
  std::vector<float> weights_;                // [rows, experts_per_token]
  std::vector<int32_t> group_of_;             // [n_experts]: index in groups_, of experts that rows chose
  std::vector<Group> groups_;                 // by expert, the shared one last
  std::vector<kernels::LinearPlace> places_;  // [rows, each_]
  std::vector<kernels::LinearGroup> products_;
  AlignedBuffer gated_;    // the experts' [rows, expert_size], then the shared one's [rows, shared_expert_size]
  AlignedBuffer outputs_;  // f32 [rows of all groups, hidden_size]
  kernels::LinearScratch scratch_;
};

}  // namespace smartkv
