// Gates that score tokens by the hidden states of each layer: the input of its attention, after its norm. They learn
// the scores of KVzip (Kim et al. 2025), which stand for how much a repetition of the text looks at a token.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/policies/gated_eviction/gate.h"

namespace smartkv {

class ThreadPool;

// A score is used as it is: it does not fall as a token ages. Scores of all layers and KV heads can be compared.
class HiddenGate : public Gate, public std::enable_shared_from_this<HiddenGate> {
 public:
  HiddenGate(int64_t hidden_size, int64_t n_kv_heads) : hidden_size_(hidden_size), n_kv_heads_(n_kv_heads) {}

  int64_t hidden_size() const { return hidden_size_; }
  int64_t n_kv_heads() const { return n_kv_heads_; }
  // Scores n tokens of a layer by their hidden states. x: bf16 [n, hidden_size]; scores: f32 [n, n_kv_heads]. The
  // scores of a token have the same bits whatever the other rows and the number of threads are.
  virtual void score(ThreadPool& threads, int64_t layer, const uint16_t* x, int64_t n, float* scores) const = 0;

  bool scores_hidden() const override { return true; }
  // REQUIRES: the gate is owned by a shared_ptr. Throws CacheError for a context with only some of the KV heads.
  TokenScorer scorer(const PolicyContext& context) const override;

 private:
  int64_t hidden_size_, n_kv_heads_;
};

// A layer of KVzap (Jegou and Jeblick 2026, arXiv:2601.07891), in f32. An MLP has the maps [inner, hidden_size] and
// [n_kv_heads, inner] with GELU between them. A linear gate has the map [n_kv_heads, hidden_size] only.
struct KvzapLayer {
  struct Map {
    std::vector<float> weight, bias;
  };
  std::vector<Map> maps;
};
// Weights are held in bf16. inner: width of the MLPs, even; 0 for linear gates. REQUIRES: the sizes are right.
std::shared_ptr<const HiddenGate> make_kvzap_gate(int64_t hidden_size, int64_t n_kv_heads, int64_t inner,
                                                  const std::vector<KvzapLayer>& layers);

struct FastKvzipShape {
  int64_t hidden_size = 0, n_kv_heads = 0;
  int64_t n_queries = 0;  // of a KV head
  int64_t dim = 0;        // of queries and keys
  int64_t n_bases = 0;    // learned keys of a KV head, with which the token's own key competes
};
// A layer of Fast KVzip (Kim, Han and Yun 2026, arXiv:2601.17668), in f32. A token's score is the mean over its queries
// of the softmax that its own key gets among the learned keys.
struct FastKvzipLayer {
  std::vector<float> q, q_bias;       // [n_kv_heads n_queries dim, hidden_size], [n_kv_heads n_queries dim]
  std::vector<float> k;               // [n_kv_heads dim, hidden_size]
  std::vector<float> q_norm, k_norm;  // [dim]: weights of RMS norms with epsilon 1e-6
  std::vector<float> bases;           // [n_kv_heads, n_bases, dim]
  std::vector<float> logit_bias;      // [n_kv_heads, n_queries], added to the logit of the token's own key
};
// The projections are held in bf16. REQUIRES: the sizes are right.
std::shared_ptr<const HiddenGate> make_fast_kvzip_gate(const FastKvzipShape& shape,
                                                       const std::vector<FastKvzipLayer>& layers);

}  // namespace smartkv
