// A LlamaBackend computes all of a LLaMA-like model except attention over the KV cache, which is common to all backends
// (engine/model/cache_attention.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>

#include "engine/text/tokenizer.h"

namespace smartkv {

// Element type of matrices and activations, for backends that offer a choice. Attention results and KV caches are f32
// with kF32, and bf16 with kBf16 and kF16.
enum class ProductType : uint8_t { kBf16, kF16, kF32 };
constexpr const char* name(ProductType type) {
  return type == ProductType::kF32 ? "f32" : type == ProductType::kF16 ? "f16" : "bf16";
}

// Rows [first, first + n) of a pass. Each row is a token.
struct RowRange {
  int64_t first = 0, n = 0;
};

// A pass calls
//  1. embed();
//  2. for each layer project(), then finish_layer() with the attention that the caller has computed;
//  3. between these two calls of the last layer, keep_rows();
//  4. head().
// start(), advance() and finish() combine the calls between two attentions.
//
// The backend owns the residual stream, one row of hidden_size values for each token. One thread at a time uses a
// backend, and only one pass can be in progress. An exception ends the pass. The next pass begins as usual.
class LlamaBackend {
 public:
  virtual ~LlamaBackend() = default;
  // Begins a pass: sets the residual stream to the embeddings of the tokens.
  virtual void embed(std::span<const TokenId> tokens) = 0;
  // Whether `qkv`, `attended` and `logits` are device memory (KvBackend::allocate()) rather than host memory. Work on
  // them is then ordered by the device's legacy default stream.
  virtual bool device_rows() const { return false; }
  // Computes the layer's queries, keys and values, in this order in each row, before qk-norm and the rotary embedding:
  // f32 [rows, (n_heads + 2 n_kv_heads) head_dim].
  virtual void project(int64_t layer, float* qkv) = 0;
  // Returns the input of the latest project(), after the layer's norm: [rows, hidden_size], f32 for kF32 and bf16
  // otherwise. It is valid until the next call. REQUIRES: shows_input().
  virtual const void* attention_input() const { throw std::logic_error("this backend does not show hidden states"); }
  virtual bool shows_input() const { return false; }
  // Restricts the rest of the pass, `attended` and `logits` included, to these rows. REQUIRES: they are in ascending
  // order. If there are none, the pass ends here.
  virtual void keep_rows(std::span<const RowRange> rows) = 0;
  // Applies the output projection and the MLP of the layer to the attention result, [rows, n_heads head_dim], f32 for
  // kF32 and bf16 otherwise, and adds the results to the residual stream.
  virtual void finish_layer(int64_t layer, const void* attended) = 0;
  // Computes logits: f32 [rows, vocab_size], -inf for tokens for which the output matrix has no row. Tensor-parallel
  // ranks other than 0 write none, and `logits` may be null there.
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

  // See Model::watch_residual().
  virtual void watch_residual(std::function<void(int64_t layer, float squares)> watch) = 0;

  virtual int64_t weight_bytes() const = 0;  // in memory
  // Whether the results of a row have the same bits whatever other rows are in the pass.
  virtual bool batch_invariant() const = 0;
};

}  // namespace smartkv
