// A LlamaBackend computes all of a LLaMA-like model except attention over the KV cache, which is common to all backends
// (engine/model/cache_attention.h).
#pragma once

#include <cstdint>
#include <span>

#include "engine/text/tokenizer.h"

namespace smartkv {

// Element type of matrices and activations, for backends that offer a choice. Attention results and caches are f32 for
// kF32 and bf16 otherwise.
enum class ProductType : uint8_t { kBf16, kF16, kF32 };
constexpr const char* name(ProductType type) {
  return type == ProductType::kF32 ? "f32" : type == ProductType::kF16 ? "f16" : "bf16";
}

// Rows [first, first + n) of a pass. Each row is a token.
struct RowRange {
  int64_t first = 0, n = 0;
};

// A pass calls embed(); for each layer project(), then finish_layer() with the attention computed by the caller; and
// head(). Once, between project() and finish_layer() of the last layer, it calls keep_rows(). start(), advance() and
// finish() combine the steps between two attentions.
//
// The backend owns the residual stream, one row of hidden_size values for each token. One thread at a time uses a
// backend, and only one pass can be in progress. An exception ends the pass; the next one begins as usual.
class LlamaBackend {
 public:
  virtual ~LlamaBackend() = default;
  // Begins a pass: sets the residual stream to the embeddings of the tokens.
  virtual void embed(std::span<const TokenId> tokens) = 0;
  // Whether `qkv`, `attended` and `logits` are memory of the device that holds the caches (KvBackend::allocate()),
  // ordered by its legacy default stream. Otherwise they are host memory.
  virtual bool device_rows() const { return false; }
  // Computes the layer's queries, keys and values, in this order in each row, before qk-norm and the rotary embedding:
  // f32 [rows, (n_heads + 2 n_kv_heads) head_dim].
  virtual void project(int64_t layer, float* qkv) = 0;
  // Restricts the rest of the pass, `attended` and `logits` included, to these rows, in ascending order. If there are
  // none, the pass ends here.
  virtual void keep_rows(std::span<const RowRange> rows) = 0;
  // Applies the output projection and the MLP of the layer to the attention result, [rows, n_heads head_dim], f32 for
  // kF32 and bf16 otherwise, and adds the results to the residual stream.
  virtual void finish_layer(int64_t layer, const void* attended) = 0;
  // Computes logits: f32 [rows, vocab_size], -inf for tokens without a row in the head. Tensor-parallel ranks other
  // than 0 write none, and `logits` may be null there.
  virtual void head(float* logits) = 0;

  // Calls embed() and project() of the first layer.
  virtual void start(std::span<const TokenId> tokens, float* qkv) {
    embed(tokens);
    project(0, qkv);
  }
  // Calls finish_layer() and project() of the next layer.
  virtual void advance(int64_t layer, const void* attended, float* qkv) {
    finish_layer(layer, attended);
    project(layer + 1, qkv);
  }
  // Calls finish_layer() of the last layer and head().
  virtual void finish(int64_t layer, const void* attended, float* logits) {
    finish_layer(layer, attended);
    head(logits);
  }
  // Returns the least number of rows for which `qkv`, `attended` and `logits` must have room, even in smaller passes.
  // The additional rows receive undefined results. 0 unless device_rows().
  virtual int64_t least_rows() const { return 0; }

  virtual int64_t weight_bytes() const = 0;  // in memory
  // Whether the results of a row are bit-identical for all combinations of other rows in the pass.
  virtual bool batch_invariant() const = 0;
};

}  // namespace smartkv
