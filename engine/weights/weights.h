// An opened model: its configuration and its tensors under Hugging Face names, whatever file they came from.
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

// A model file that cannot be used; the message names file, key or tensor, what was expected and what was found.
class ModelError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Immutable after open(); reading is safe from several threads.
class Weights {
 public:
  // `path`: a GGUF file, or a Hugging Face folder (config.json with model.safetensors, shards with
  // model.safetensors.index.json, or model.gguf of `smartkv quantize`). Every tensor that the configuration implies is checked for presence and shape here.
  static std::unique_ptr<Weights> open(const std::filesystem::path& path);
  virtual ~Weights() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const GgufFile* gguf() const { return nullptr; }  // for its tokenizer; nullptr for a folder
  virtual std::string format() const = 0;                   // "GGUF v3", "safetensors (2 files)"
  virtual std::vector<std::string> names() const = 0;       // Hugging Face names, sorted
  // The raw tensor of a Hugging Face name ("model.layers.0.self_attn.q_proj.weight"); nullopt when absent.
  // Of a GGUF q/k projection, rows are still in the file's (interleaved RoPE) order.
  virtual std::optional<TensorView> find(std::string_view name) const = 0;
  // Row of the file that holds row `row` of the Hugging Face tensor: identity but for GGUF q/k projections.
  virtual int64_t file_row(std::string_view name, int64_t row) const = 0;
  // The storage that `smartkv quantize` made the file for, "int4" or "int8"; empty: another program's file.
  virtual std::string stored_as() const { return {}; }
  // The tokens that the head's rows stand for, ascending, where it has rows for some only; empty: all of vocab_size.
  virtual std::span<const int32_t> output_tokens() const { return {}; }

  // Expands rows [first, first + count) in Hugging Face order to f32. out: [count, row_elements].
  virtual void read_rows(std::string_view name, int64_t first, int64_t count, float* out) const;
  // A whole tensor; throws ModelError when it is absent or its shape is not `shape`.
  std::vector<float> read(std::string_view name, std::span<const int64_t> shape) const;
};

}  // namespace smartkv
