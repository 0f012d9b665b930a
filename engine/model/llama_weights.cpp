#include "engine/model/llama_weights.h"

#include <algorithm>
#include <string>

#include "engine/weights/quantized_rows.h"
#include "kernels/task_errors.h"

namespace smartkv {
namespace {

constexpr int64_t kLanes = 16;  // rows that are packed together

// Rows of a packed matrix that come from one tensor: 16 rows of the tensor go to lane group first_group + i * step.
struct Source {
  std::string name;
  int64_t rows;
  int64_t first_group;
  int64_t step = 1;
};

int bits_of(kernels::WeightType type) {
  return type == kernels::WeightType::kInt4 ? 4 : type == kernels::WeightType::kInt8 ? 8 : 0;
}

// Integers of the same width or less are kept as they are, without loss.
bool keeps_integers(const std::optional<TensorView>& view, kernels::WeightType type) {
  return view && group_bits(*view) > 0 && group_bits(*view) <= bits_of(type);
}

class Packer {
 public:
  Packer(const Weights& weights, ThreadPool& pool, const std::function<void(double)>& progress)
      : weights_(weights), pool_(pool), progress_(progress) {
    const ModelConfig& c = weights.config();
    total_ = c.n_layers * (c.hidden_size * c.head_dim * 2 * (c.n_heads + c.n_kv_heads) + 3 * c.hidden_size * c.intermediate_size) +
             c.vocab_size * c.hidden_size * (c.tie_word_embeddings ? 1 : 2);
  }

  kernels::PackedMatrix pack(kernels::WeightType type, int64_t out_features, int64_t in_features,
                             const std::vector<Source>& sources) {
    kernels::PackedMatrix matrix;
    std::vector<std::string> names;
    for (const Source& source : sources) names.push_back(source.name);
    try {
      matrix = kernels::make_packed(type, out_features, in_features, llama_minimums(weights_, type, names));
    } catch (const std::invalid_argument& error) {
      throw ModelError("tensor \"" + sources.front().name + "\": " + error.what());
    }
    for (const Source& source : sources) {
      const std::optional<TensorView> view = weights_.find(source.name);
      const bool keep = keeps_integers(view, type);
      TaskErrors errors;
      pool_.parallel_for((source.rows + kLanes - 1) / kLanes, [&](int64_t i) {
        const int64_t group = source.first_group + i * source.step, count = std::min(kLanes, source.rows - i * kLanes);
        errors.run([&] {
          if (keep) {
            keep_lanes(matrix, group, *view, source.name, i * kLanes, count);
          } else {
            expand_lanes(matrix, group, source.name, i * kLanes, count);
          }
        });
      });
      rethrow(errors, source.name);
    }
    done_ += out_features * in_features;
    if (progress_) progress_(static_cast<double>(done_) / static_cast<double>(total_));
    return matrix;
  }

 private:
  static void rethrow(const TaskErrors& errors, const std::string& name) {
    try {
      errors.rethrow();
    } catch (const std::invalid_argument& error) {  // of the kernels, which know no names
      throw ModelError("tensor \"" + name + "\": " + error.what());
    }
  }

  void expand_lanes(kernels::PackedMatrix& matrix, int64_t group, const std::string& name, int64_t first, int64_t count) {
    thread_local std::vector<float> rows;
    rows.assign(static_cast<size_t>(kLanes * matrix.in_features), 0.0f);
    weights_.read_rows(name, first, count, rows.data());
    kernels::pack_lanes(matrix, group, rows.data());
  }

  void keep_lanes(kernels::PackedMatrix& matrix, int64_t group, const TensorView& view, const std::string& name, int64_t first,
                  int64_t count) {
    constexpr int64_t kGroup = 32;
    thread_local QuantizedRow row;
    for (int64_t lane = 0; lane < count; ++lane) {
      read_quantized_row(view, weights_.file_row(name, first + lane), row);
      for (int64_t k = 0; k < matrix.in_features / kGroup; ++k) {
        kernels::pack_group(matrix, group, k, lane, row.q.data() + k * kGroup, row.scale[k], row.minimum[k]);
      }
    }
  }

  const Weights& weights_;
  ThreadPool& pool_;
  const std::function<void(double)>& progress_;
  int64_t total_ = 0, done_ = 0;
};

std::vector<float> read_vector(const Weights& weights, const std::string& name, int64_t size) {
  const int64_t shape[] = {size};
  return weights.read(name, shape);
}

void append(std::vector<float>& to, const std::vector<float>& from) { to.insert(to.end(), from.begin(), from.end()); }

}  // namespace

int64_t LlamaWeights::bytes() const {
  int64_t bytes = head.bytes() + embedding.bytes() + static_cast<int64_t>(final_norm.size() * sizeof(float));
  for (const LlamaLayerWeights& layer : layers) {
    bytes += layer.qkv.bytes() + layer.output.bytes() + layer.gate_up.bytes() + layer.down.bytes();
    bytes += static_cast<int64_t>((layer.attention_norm.size() + layer.mlp_norm.size() + layer.qkv_bias.size() +
                                   layer.output_bias.size() + layer.gate_up_bias.size() + layer.down_bias.size()) *
                                  sizeof(float));
  }
  return bytes;
}

// It decides the most likely token: 4 bits cost more there than they save.
kernels::WeightType llama_head_type(kernels::WeightType type) {
  return type == kernels::WeightType::kInt4 ? kernels::WeightType::kInt8 : type;
}

kernels::Minimums llama_minimums(const Weights& weights, kernels::WeightType type, std::span<const std::string> tensors) {
  const int bits = bits_of(type);
  const bool centred = bits > 0 && std::all_of(tensors.begin(), tensors.end(), [&](const std::string& name) {
    const std::optional<TensorView> view = weights.find(name);
    return keeps_integers(view, type) ? has_centred_groups(*view, bits) : bits == 8;  // floats are fitted so in 8 bits
  });
  return centred ? kernels::Minimums::kCentred : kernels::Minimums::kStored;
}

LlamaWeights pack_llama(const Weights& weights, kernels::WeightType type, ThreadPool& pool,
                        const std::function<void(double)>& progress) {
  const ModelConfig& c = weights.config();
  const int64_t hidden = c.hidden_size, inter = c.intermediate_size;
  const int64_t q_rows = c.n_heads * c.head_dim, kv_rows = c.n_kv_heads * c.head_dim;
  Packer packer(weights, pool, progress);
  LlamaWeights packed;
  for (int64_t i = 0; i < c.n_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    LlamaLayerWeights& w = packed.layers.emplace_back();
    const bool on_input = c.norm_placement == NormPlacement::kInput;
    const char* const attention_norm = on_input ? "input_layernorm.weight" : "post_attention_layernorm.weight";
    const char* const mlp_norm = on_input ? "post_attention_layernorm.weight" : "post_feedforward_layernorm.weight";
    w.attention_norm = read_vector(weights, layer + attention_norm, hidden);
    w.mlp_norm = read_vector(weights, layer + mlp_norm, hidden);
    w.qkv = packer.pack(type, q_rows + 2 * kv_rows, hidden,
                        {{layer + "self_attn.q_proj.weight", q_rows, 0},
                         {layer + "self_attn.k_proj.weight", kv_rows, q_rows / kLanes},
                         {layer + "self_attn.v_proj.weight", kv_rows, (q_rows + kv_rows) / kLanes}});
    w.output = packer.pack(type, hidden, q_rows, {{layer + "self_attn.o_proj.weight", hidden, 0}});
    w.gate_up = packer.pack(type, 2 * inter, hidden,
                            {{layer + "mlp.gate_proj.weight", inter, 0, 2}, {layer + "mlp.up_proj.weight", inter, 1, 2}});
    w.down = packer.pack(type, hidden, inter, {{layer + "mlp.down_proj.weight", hidden, 0}});
    if (c.attention_bias) {
      append(w.qkv_bias, read_vector(weights, layer + "self_attn.q_proj.bias", q_rows));
      append(w.qkv_bias, read_vector(weights, layer + "self_attn.k_proj.bias", kv_rows));
      append(w.qkv_bias, read_vector(weights, layer + "self_attn.v_proj.bias", kv_rows));
      if (weights.find(layer + "self_attn.o_proj.bias")) {
        w.output_bias = read_vector(weights, layer + "self_attn.o_proj.bias", hidden);
      }
    }
    if (c.mlp_bias) {
      const std::vector<float> gate = read_vector(weights, layer + "mlp.gate_proj.bias", inter);
      const std::vector<float> up = read_vector(weights, layer + "mlp.up_proj.bias", inter);
      for (int64_t row = 0; row < inter; row += kLanes) {
        w.gate_up_bias.insert(w.gate_up_bias.end(), gate.begin() + row, gate.begin() + row + kLanes);
        w.gate_up_bias.insert(w.gate_up_bias.end(), up.begin() + row, up.begin() + row + kLanes);
      }
      w.down_bias = read_vector(weights, layer + "mlp.down_proj.bias", hidden);
    }
  }
  packed.final_norm = read_vector(weights, "model.norm.weight", hidden);
  const kernels::WeightType head = llama_head_type(type);
  const std::string embedding = "model.embed_tokens.weight";
  if (c.tie_word_embeddings) {
    packed.head = packer.pack(head, c.vocab_size, hidden, {{embedding, c.vocab_size, 0}});
  } else {
    const std::span<const int32_t> tokens = weights.output_tokens();
    packed.output_tokens.assign(tokens.begin(), tokens.end());
    const int64_t n_outputs = tokens.empty() ? c.vocab_size : static_cast<int64_t>(tokens.size());
    packed.head = packer.pack(head, n_outputs, hidden, {{"lm_head.weight", n_outputs, 0}});
    packed.embedding = packer.pack(head, c.vocab_size, hidden, {{embedding, c.vocab_size, 0}});
  }
  return packed;
}

}  // namespace smartkv
