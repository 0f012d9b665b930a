#include "engine/model/llama_weights.h"

#include "engine/weights/quantized_rows.h"
#include "kernels/task_errors.h"

namespace smartkv {
namespace {

// The rows of a packed matrix that come from one tensor. Rows [16 i, 16 i + 16) of the tensor become lane group
// first_group + i * step.
struct Source {
  std::string name;
  int64_t rows;
  int64_t first_group;
  int64_t step = 1;
};

// Returns whether the integers of the tensor are kept: they are no wider than `type`. Nothing is lost, except that Q4_K
// rounds its scales and minimums to f16 if it shares the matrix with tensors of other formats.
bool keeps_groups(const std::optional<TensorView>& view, kernels::WeightType type) {
  return view && group_bits(*view) > 0 && group_bits(*view) <= bits_of(type);
}

class Packer {
 public:
  Packer(const Weights& weights, ThreadPool& pool, const std::function<void(double)>& progress)
      : weights_(weights), pool_(pool), progress_(progress) {
    const ModelConfig& c = weights.config();
    total_ = c.n_layers * (c.hidden_size * c.head_dim * 2 * (c.n_heads + c.n_kv_heads) +
                           3 * c.hidden_size * c.intermediate_size) +
             c.vocab_size * c.hidden_size * (c.tie_word_embeddings ? 1 : 2);
  }

  kernels::PackedMatrix pack(LlamaStorage storage, int64_t out_features, int64_t in_features,
                             const std::vector<Source>& sources) {
    kernels::PackedMatrix matrix;
    std::vector<std::string> names;
    for (const Source& source : sources) names.push_back(source.name);
    const MatrixFormat format = llama_format(weights_, storage, names);
    try {
      matrix = kernels::make_packed(format.type, out_features, in_features, format.minimums);
    } catch (const std::invalid_argument& error) {
      throw ModelError("tensor \"" + sources.front().name + "\": " + error.what());
    }
    for (const Source& source : sources) {
      const std::optional<TensorView> view = weights_.find(source.name);
      const bool coded = format.minimums == kernels::Minimums::kCoded, keep = keeps_groups(view, format.type);
      TaskErrors errors;
      pool_.parallel_for((source.rows + kLanes - 1) / kLanes, [&](int64_t i) {
        const int64_t group = source.first_group + i * source.step, count = std::min(kLanes, source.rows - i * kLanes);
        errors.run([&] {
          if (coded) {
            keep_blocks(matrix, group, *view, source.name, i * kLanes, count);
          } else if (keep) {
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
    } catch (const std::invalid_argument& error) {  // Thrown by kernels, which do not know the name of the tensor.
      throw ModelError("tensor \"" + name + "\": " + error.what());
    }
  }

  void expand_lanes(kernels::PackedMatrix& matrix, int64_t group, const std::string& name, int64_t first,
                    int64_t count) {
    thread_local std::vector<float> rows;
    rows.assign(static_cast<size_t>(kLanes * matrix.in_features), 0.0f);
    weights_.read_rows(name, first, count, rows.data());
    kernels::pack_lanes(matrix, group, rows.data());
  }

  void keep_lanes(kernels::PackedMatrix& matrix, int64_t group, const TensorView& view, const std::string& name,
                  int64_t first, int64_t count) {
    thread_local QuantizedRow row;
    for (int64_t lane = 0; lane < count; ++lane) {
      read_quantized_row(view, weights_.file_row(name, first + lane), row);
      for (int64_t k = 0; k < matrix.in_features / kRowGroup; ++k) {
        kernels::pack_group(matrix, group, k, lane, row.q.data() + k * kRowGroup, row.scale[k], row.minimum[k]);
      }
    }
  }

  void keep_blocks(kernels::PackedMatrix& matrix, int64_t group, const TensorView& view, const std::string& name,
                   int64_t first, int64_t count) {
    thread_local std::vector<kernels::CodedBlock> row;
    for (int64_t lane = 0; lane < count; ++lane) {
      read_coded_row(view, weights_.file_row(name, first + lane), row);
      for (size_t block = 0; block < row.size(); ++block) {
        kernels::pack_block(matrix, group, static_cast<int64_t>(block), lane, row[block]);
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
    for (const kernels::PackedMatrix& part : layer.qkv) bytes += part.bytes();
    bytes += layer.output.bytes() + layer.gate_up.bytes() + layer.down.bytes();
    for (const auto* floats :
         {&layer.attention_norm, &layer.attention_output_norm, &layer.mlp_norm, &layer.mlp_output_norm, &layer.qkv_bias,
          &layer.output_bias, &layer.gate_up_bias, &layer.down_bias}) {
      bytes += static_cast<int64_t>(floats->size() * sizeof(float));
    }
  }
  return bytes;
}

// The head decides the most likely token, so 4 bits cost more accuracy there than the memory is worth.
int bits_of(kernels::WeightType type) {
  return type == kernels::WeightType::kInt4 ? 4 : type == kernels::WeightType::kInt8 ? 8 : 0;
}

LlamaStorage llama_head_storage(LlamaStorage storage) {
  if (storage.type == kernels::WeightType::kInt4) storage.type = kernels::WeightType::kInt8;
  return storage;
}

MatrixFormat llama_format(const Weights& weights, LlamaStorage storage, std::span<const std::string> tensors) {
  const auto all = [&](const auto& is) {
    return std::all_of(tensors.begin(), tensors.end(), [&](const std::string& name) { return is(weights.find(name)); });
  };
  kernels::WeightType type = storage.type;
  if (storage.as_file && !all([](const auto& view) { return !view || is_float(*view); })) {
    type = all([](const auto& view) { return keeps_groups(view, kernels::WeightType::kInt4); })
               ? kernels::WeightType::kInt4
               : kernels::WeightType::kInt8;
  }
  const int bits = bits_of(type);
  for (const int coded : {4, 6}) {
    if (coded > bits || !all([&](const auto& view) { return view && coded_bits(*view) == coded; })) continue;
    return {coded == 4 ? kernels::WeightType::kInt4 : kernels::WeightType::kInt6, kernels::Minimums::kCoded};
  }
  const bool centred = bits > 0 && all([&](const auto& view) {
                         // Floats fitted to 8 bits are centred.
                         return keeps_groups(view, type) ? has_centred_groups(*view, bits) : bits == 8;
                       });
  return {type, centred ? kernels::Minimums::kCentred : kernels::Minimums::kStored};
}

std::vector<Stacked> stack_qkv(const Weights& weights, LlamaStorage storage, const std::string& attention) {
  const ModelConfig& c = weights.config();
  std::vector<Stacked> parts;
  MatrixFormat last;
  for (const char projection : {'q', 'k', 'v'}) {
    const std::string name = attention + projection + "_proj.weight";
    const int64_t rows = (projection == 'q' ? c.n_heads : c.n_kv_heads) * c.head_dim;
    const MatrixFormat format = llama_format(weights, storage, std::span(&name, 1));
    if (parts.empty() || format != last) parts.emplace_back();
    last = format;
    parts.back().tensors.push_back(name);
    parts.back().rows.push_back(rows);
    parts.back().all_rows += rows;
  }
  return parts;
}

LlamaWeights pack_llama(const Weights& weights, LlamaStorage storage, ThreadPool& pool,
                        const std::function<void(double)>& progress) {
  const ModelConfig& c = weights.config();
  const int64_t hidden = c.hidden_size, inter = c.intermediate_size;
  const int64_t q_rows = c.n_heads * c.head_dim;
  Packer packer(weights, pool, progress);
  LlamaWeights packed;
  for (int64_t i = 0; i < c.n_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    LlamaLayerWeights& w = packed.layers.emplace_back();
    const NormNames norms = norm_names(c.norm_placement);
    const auto norm = [&](const std::string& name) {
      return name.empty() ? std::vector<float>() : read_vector(weights, layer + name + ".weight", hidden);
    };
    w.attention_norm = norm(norms.attention_input);
    w.attention_output_norm = norm(norms.attention_output);
    w.mlp_norm = norm(norms.mlp_input);
    w.mlp_output_norm = norm(norms.mlp_output);
    for (const Stacked& part : stack_qkv(weights, storage, layer + "self_attn.")) {
      std::vector<Source> sources;
      int64_t row = 0;
      for (size_t t = 0; t < part.tensors.size(); row += part.rows[t++]) {
        sources.push_back({part.tensors[t], part.rows[t], row / kLanes});
      }
      w.qkv.push_back(packer.pack(storage, part.all_rows, hidden, sources));
    }
    w.output = packer.pack(storage, hidden, q_rows, {{layer + "self_attn.o_proj.weight", hidden, 0}});
    w.gate_up =
        packer.pack(storage, 2 * inter, hidden,
                    {{layer + "mlp.gate_proj.weight", inter, 0, 2}, {layer + "mlp.up_proj.weight", inter, 1, 2}});
    w.down = packer.pack(storage, hidden, inter, {{layer + "mlp.down_proj.weight", hidden, 0}});
    if (c.attention_bias) {
      append(w.qkv_bias, read_vector(weights, layer + "self_attn.q_proj.bias", q_rows));
      append(w.qkv_bias, read_vector(weights, layer + "self_attn.k_proj.bias", c.n_kv_heads * c.head_dim));
      append(w.qkv_bias, read_vector(weights, layer + "self_attn.v_proj.bias", c.n_kv_heads * c.head_dim));
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
  const LlamaStorage head = llama_head_storage(storage);
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
