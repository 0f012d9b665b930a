// What a backend computes of a LLaMA or of a relative: all but the caches and attention over them, which are every
// backend's alike (engine/model/cache_attention.h).
#pragma once

#include <cstdint>
#include <span>

#include "engine/text/tokenizer.h"

namespace smartkv {

// What matrices and the rows that they multiply are of, where a backend leaves the choice. Attention's results are f32 with f32,
// else bf16, as caches are.
enum class ProductType : uint8_t { kBf16, kF16, kF32 };
constexpr const char* name(ProductType type) {
  return type == ProductType::kF32 ? "f32" : type == ProductType::kF16 ? "f16" : "bf16";
}

// Rows [first, first + n) of a pass.
struct RowRange {
  int64_t first = 0, n = 0;
};

// A pass: embed(); for every layer project(), attention by the caller, finish_layer(); head(). The residual stream, one row
// of hidden_size for each token, is the backend's own. One pass at a time. What is computed between two attentions may be asked for
// as one: start(), advance(), finish().
class LlamaBackend {
 public:
  virtual ~LlamaBackend() = default;
  // Begins a pass: the residual stream is the tokens' embeddings.
  virtual void embed(std::span<const TokenId> tokens) = 0;
  // Where `qkv`, `attended` and `logits` are: the host's memory, or that of the device on which the caches are
  // (KvBackend::allocate()), in the order of its legacy default stream.
  virtual bool device_rows() const { return false; }
  // The layer's queries, keys and values before norms of heads and RoPE: f32 [rows, (n_heads + 2 n_kv_heads) head_dim].
  virtual void project(int64_t layer, float* qkv) = 0;
  // Only these rows, ascending, go on; there may be none.
  virtual void keep_rows(std::span<const RowRange> rows) = 0;
  // Adds to the residual stream what the layer makes of attention's result, of the activations' type [rows, n_heads head_dim].
  virtual void finish_layer(int64_t layer, const void* attended) = 0;
  // f32 [rows, vocab_size]; -inf where the head has no row.
  virtual void head(float* logits) = 0;

  // embed() and project() of the first layer.
  virtual void start(std::span<const TokenId> tokens, float* qkv) {
    embed(tokens);
    project(0, qkv);
  }
  // finish_layer() and project() of the next one.
  virtual void advance(int64_t layer, const void* attended, float* qkv) {
    finish_layer(layer, attended);
    project(layer + 1, qkv);
  }
  // finish_layer() of the last one and head().
  virtual void finish(int64_t layer, const void* attended, float* logits) {
    finish_layer(layer, attended);
    head(logits);
  }
  // Rows that `qkv`, `attended` and `logits` have room for at least, where device_rows(): a smaller pass may compute some beside its
  // own, whose results mean nothing.
  virtual int64_t least_rows() const { return 0; }

  virtual int64_t weight_bytes() const = 0;
  // Whether a row's results are the same bits whatever the other rows of the pass.
  virtual bool batch_invariant() const = 0;
};

}  // namespace smartkv
