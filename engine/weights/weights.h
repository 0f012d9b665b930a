// An opened model: its configuration, and its tensors under Hugging Face names whatever the format of the file.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/weights/model_config.h"
#include "engine/weights/tensor_view.h"

namespace smartkv {

class GgufFile;

// Thrown for a model file that cannot be used. The message names the file, the key or tensor, what was expected and
// what was found.
class ModelError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Immutable after open(). Thread-safe.
class Weights {
 public:
  // Opens a GGUF file, or a Hugging Face folder: config.json with model.safetensors, with shards and
  // model.safetensors.index.json, or with model.gguf of `smartkv quantize`. Checks that every tensor that the
  // configuration implies is present and has the right shape. Throws ModelError.
  static std::unique_ptr<Weights> open(const std::filesystem::path& path);
  virtual ~Weights() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const GgufFile* gguf() const { return nullptr; }  // The GGUF file, for its tokenizer. Null for a folder.
  virtual std::string format() const = 0;                   // "GGUF v3", "safetensors (2 files)"
  virtual std::vector<std::string> names() const = 0;       // Hugging Face names, sorted
  // Returns the raw tensor with a Hugging Face name ("model.layers.0.self_attn.q_proj.weight"); nullopt if it is
  // absent. Its rows are in the order of the file, see file_row().
  virtual std::optional<TensorView> find(std::string_view name) const = 0;
  // Returns the row of the file that holds row `row` of the Hugging Face tensor. The order differs for q and k
  // projections of GGUF files with interleaved RoPE and of models with a partial rotary embedding, and for the head of
  // a draft with few output tokens.
  virtual int64_t file_row(std::string_view name, int64_t row) const = 0;
  // Returns the storage that `smartkv quantize` made the file for, "int4" or "int8". Empty for files of other programs.
  virtual std::string stored_as() const { return {}; }
  // Returns the token of each row of the head, ascending, if the head has rows for some tokens only. Empty if it has
  // rows for all of vocab_size.
  virtual std::span<const int32_t> output_tokens() const { return {}; }

  // Expands rows [first, first + count) in Hugging Face order to f32. out: [count, row_elements]. Throws ModelError if
  // the tensor is absent.
  virtual void read_rows(std::string_view name, int64_t first, int64_t count, float* out) const;
  // Reads a whole tensor as f32, in Hugging Face order. Throws ModelError if it is absent or its shape is not `shape`.
  std::vector<float> read(std::string_view name, std::span<const int64_t> shape) const;
};

}  // namespace smartkv
