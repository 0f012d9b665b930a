#include "engine/model/llama_weights.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "engine/log.h"
#include "engine/weights/packed_integers.h"
#include "engine/weights/projections.h"
#include "engine/weights/quantized_rows.h"
#include "kernels/linear_format.h"

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

// Returns the bits of an integer weight in a layout, 0 for floats.
int bits_of(kernels::WeightType type) { return kernels::levels_of(type).bits(); }

// Rows of tensors as the file has them. Lane group g of the matrix holds rows of one tensor.
class FileRows final : public kernels::EncodedRows {
 public:
  // Copies the rows of the tensor that become the lane groups of `source`.
  void add(const Weights& weights, const Source& source) {
    TensorView view = weights.find(source.name).value();
    auto bytes = std::make_shared<std::vector<std::byte>>();
    if (view.integers == nullptr) {
      bytes->assign(view.data.begin(), view.data.end());
      view.data = *bytes;
    }
    bytes_ += view.bytes();
    Part part{view, std::move(bytes), {}};
    for (int64_t row = 0; row < source.rows; ++row) part.file_rows.push_back(weights.file_row(source.name, row));
    for (int64_t i = 0; i * kLanes < source.rows; ++i) {
      const auto group = static_cast<size_t>(source.first_group + i * source.step);
      if (places_.size() <= group) places_.resize(group + 1);
      places_[group] = {parts_.size(), i * kLanes};
    }
    parts_.push_back(std::move(part));
  }

  int64_t bytes() const override { return bytes_; }
  std::vector<std::span<const std::byte>> memory() const override {
    std::vector<std::span<const std::byte>> parts;
    for (const Part& part : parts_) parts.push_back(part.view.data);
    return parts;
  }
  void expand(int64_t row, float* out) const override {
    const Place& place = places_[static_cast<size_t>(row / kLanes)];
    const Part& part = parts_[place.part];
    expand_rows(part.view, part.file_rows[static_cast<size_t>(place.row + row % kLanes)], 1, out);
  }

 private:
  struct Part {
    TensorView view;
    std::shared_ptr<const std::vector<std::byte>> bytes;
    std::vector<int64_t> file_rows;
  };
  struct Place {
    size_t part = 0;
    int64_t row = 0;  // of the tensor
  };
  std::vector<Part> parts_;
  std::vector<Place> places_;  // of each lane group
  int64_t bytes_ = 0;
};

// Returns the order in which a tensor has its inputs, empty if it is that of the file.
std::vector<int32_t> order_of(const TensorView& view) {
  return view.integers == nullptr ? std::vector<int32_t>() : view.integers->order;
}

class Packer {
 public:
  Packer(const Weights& weights, ThreadPool& pool, const std::function<void(double)>& progress)
      : weights_(weights), pool_(pool), progress_(progress) {
    const ModelConfig& c = weights.config();
    total_ = c.n_layers * c.hidden_size * c.head_dim * 2 * (c.n_heads + c.n_kv_heads) +
             c.vocab_size * c.hidden_size * (c.tie_word_embeddings ? 1 : 2);
    for (int64_t i = 0; i < c.n_layers; ++i) {
      for (const MlpTensors& mlp : mlps_of(c, i)) total_ += 3 * c.hidden_size * mlp.size;
    }
  }

  // Logs how much precision was lost by fitting integers of the file to other ones, if any were.
  void report_loss() const {
    if (power_ == 0) return;
    char percent[32];
    std::snprintf(percent, sizeof percent, "%.2g", 100 * std::sqrt(lost_ / power_));
    log_warning(weights_.config().name +
                ": quantized weights whose shapes are padded are converted to int8, with a relative error of " +
                percent + " %");
  }

  kernels::PackedMatrix pack(LlamaStorage storage, int64_t out_features, int64_t in_features,
                             const std::vector<Source>& sources) {
    kernels::PackedMatrix matrix;
    std::vector<std::string> names;
    for (const Source& source : sources) names.push_back(source.name);
    const MatrixFormat format = llama_format(weights_, storage, names);
    if (format.type == kernels::WeightType::kEncoded) {
      auto rows = std::make_shared<FileRows>();
      for (const Source& source : sources) rows->add(weights_, source);
      matrix = kernels::make_encoded(std::move(rows), out_features, in_features);
    } else {
      matrix = packed(format, storage, out_features, in_features, sources);
    }
    done_ += out_features * in_features;
    if (progress_) progress_(static_cast<double>(done_) / static_cast<double>(total_));
    return matrix;
  }

 private:
  kernels::PackedMatrix packed(const MatrixFormat& format, LlamaStorage storage, int64_t out_features,
                               int64_t in_features, const std::vector<Source>& sources) {
    kernels::PackedMatrix matrix;
    try {
      matrix = kernels::make_packed(format.type, out_features, in_features, format.minimums);
    } catch (const std::invalid_argument& error) {
      throw ModelError("tensor \"" + sources.front().name + "\": " + error.what());
    }
    std::vector<Part> parts;
    int64_t tasks = 0;
    for (const Source& source : sources) {
      const std::optional<TensorView> view = weights_.find(source.name);
      const bool keep = view && keeps_integers(*view, storage) && kept_format(*view)->type == format.type;
      if (keep && view->integers != nullptr) matrix.input_order = view->integers->order;
      if (keep && view->scales != nullptr) {  // One factor for the tensor.
        matrix.row_factors.resize(static_cast<size_t>(out_features), 1.0f);
        for (int64_t row = 0; row < source.rows; ++row) {
          const int64_t group = source.first_group + row / kLanes * source.step;
          matrix.row_factors[static_cast<size_t>(group * kLanes + row % kLanes)] = view->scales->values.front();
        }
      }
      parts.push_back({source, view.value_or(TensorView{}), keep, storage.as_file && view && !is_float(*view), tasks});
      tasks += (source.rows + kLanes - 1) / kLanes;
    }
    pool_.parallel_for(tasks, [&](int64_t task) {
      const Part& part = *(std::ranges::upper_bound(parts, task, {}, &Part::first_task) - 1);
      try {
        pack_lane_group(matrix, format, part, task - part.first_task);
      } catch (const std::invalid_argument& error) {  // Thrown by kernels, which do not know the name of the tensor.
        throw ModelError("tensor \"" + part.source.name + "\": " + error.what());
      }
    });
    return matrix;
  }

  // A source of a matrix.
  struct Part {
    const Source& source;
    TensorView view;
    bool keep;   // The integers of the file are kept.
    bool lossy;  // The weights of the file are integers, and are fitted to others.
    int64_t first_task;
  };

  // Packs lane group i of a source.
  void pack_lane_group(kernels::PackedMatrix& matrix, const MatrixFormat& format, const Part& part, int64_t i) {
    const Source& source = part.source;
    const int64_t group = source.first_group + i * source.step, count = std::min(kLanes, source.rows - i * kLanes);
    if (format.coded()) {
      keep_blocks(matrix, group, part.view, source.name, i * kLanes, count);
    } else if (part.keep) {
      keep_lanes(matrix, group, part.view, source.name, i * kLanes, count);
    } else {
      expand_lanes(matrix, group, source.name, i * kLanes, count, part.lossy);
    }
  }

  // lossy: the weights of the file are integers already.
  void expand_lanes(kernels::PackedMatrix& matrix, int64_t group, const std::string& name, int64_t first, int64_t count,
                    bool lossy) {
    thread_local std::vector<float> rows;
    rows.assign(static_cast<size_t>(kLanes * matrix.in_features), 0.0f);
    weights_.read_rows(name, first, count, rows.data());
    kernels::pack_lanes(matrix, group, rows.data());
    if (lossy) measure_loss(matrix, group, rows, count);
  }

  void measure_loss(const kernels::PackedMatrix& matrix, int64_t group, const std::vector<float>& rows, int64_t count) {
    const auto k = static_cast<size_t>(matrix.in_features);
    std::vector<float> row(k);
    double error = 0, power = 0;
    for (int64_t lane = 0; lane < count; ++lane) {
      kernels::unpack_row(matrix, group * kLanes + lane, row.data());
      for (size_t i = 0; i < k; ++i) {
        const double weight = rows[static_cast<size_t>(lane) * k + i], difference = row[i] - weight;
        error += difference * difference;
        power += weight * weight;
      }
    }
    const std::lock_guard lock(loss_mutex_);
    lost_ += error;
    power_ += power;
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
  std::mutex loss_mutex_;
  double lost_ = 0, power_ = 0;  // Squares of the weights that were fitted to other integers, and of their errors.
};

std::vector<float> read_vector(const Weights& weights, const std::string& name, int64_t size) {
  const int64_t shape[] = {size};
  return weights.read(name, shape);
}

void append(std::vector<float>& to, const std::vector<float>& from) { to.insert(to.end(), from.begin(), from.end()); }

// See stack_gate_up() and stack_down().
std::vector<StackedMlps> stack_mlps(const Weights& weights, LlamaStorage storage, int64_t layer, bool down) {
  const ModelConfig& c = weights.config();
  std::vector<StackedMlps> parts;
  MatrixFormat last;
  std::vector<int32_t> last_order;
  const std::vector<MlpTensors> mlps = mlps_of(c, layer);
  for (size_t i = 0; i < mlps.size(); ++i) {
    const auto& [prefix, size] = mlps[i];
    std::vector<std::string> names = {prefix + "down_proj.weight"};
    if (!down) names = {prefix + "gate_proj.weight", prefix + "up_proj.weight"};
    const MatrixFormat format = llama_format(weights, storage, names);
    const std::vector<int32_t> order = order_of(weights.find(names.front()).value_or(TensorView{}));
    const int64_t rows = down ? c.hidden_size : 2 * size, columns = down ? size : c.hidden_size;
    const bool fits = !parts.empty() && format == last && order == last_order && rows == parts.back().rows_each &&
                      columns == parts.back().columns;
    if (!fits) parts.push_back({.first = i, .tensors = {}, .rows_each = rows, .columns = columns});
    last = format;
    last_order = order;
    ++parts.back().n;
    parts.back().tensors.insert(parts.back().tensors.end(), names.begin(), names.end());
  }
  return parts;
}

// Packs the MLPs of a layer.
void pack_mlps(const Weights& weights, LlamaStorage storage, int64_t layer, Packer& packer, LlamaLayerWeights& w) {
  const ModelConfig& c = weights.config();
  const std::string mlp = "model.layers." + std::to_string(layer) + ".mlp.";
  for (const MlpTensors& part : mlps_of(c, layer)) w.mlps.push_back({.size = part.size});
  for (const StackedMlps& part : stack_gate_up(weights, storage, layer)) {
    std::vector<Source> sources;
    for (size_t i = 0; i < part.n; ++i) {
      MlpPlace& place = w.mlps[part.first + i];
      place.gate_up = w.gate_up.size();
      place.gate_up_row = static_cast<int64_t>(i) * part.rows_apart();
      sources.push_back({part.tensors[2 * i], place.size, place.gate_up_row / kLanes, 2});
      sources.push_back({part.tensors[2 * i + 1], place.size, place.gate_up_row / kLanes + 1, 2});
    }
    w.gate_up.push_back(packer.pack(storage, part.rows(), part.columns, sources));
  }
  for (const StackedMlps& part : stack_down(weights, storage, layer)) {
    std::vector<Source> sources;
    for (size_t i = 0; i < part.n; ++i) {
      MlpPlace& place = w.mlps[part.first + i];
      place.down = w.down.size();
      place.down_row = static_cast<int64_t>(i) * part.rows_apart();
      sources.push_back({part.tensors[i], c.hidden_size, place.down_row / kLanes});
    }
    w.down.push_back(packer.pack(storage, part.rows(), part.columns, sources));
  }
  if (!c.has_experts(layer)) return;
  const LlamaStorage router = llama_router_storage(storage);
  w.router = packer.pack(router, c.n_experts, c.hidden_size, {{mlp + "gate.weight", c.n_experts, 0}});
  if (c.shared_expert_size == 0) return;
  w.shared_gate = packer.pack(router, 1, c.hidden_size, {{mlp + "shared_expert_gate.weight", 1, 0}});
}

}  // namespace

std::vector<StackedMlps> stack_gate_up(const Weights& weights, LlamaStorage storage, int64_t layer) {
  return stack_mlps(weights, storage, layer, false);
}
std::vector<StackedMlps> stack_down(const Weights& weights, LlamaStorage storage, int64_t layer) {
  return stack_mlps(weights, storage, layer, true);
}

std::vector<const kernels::PackedMatrix*> matrices_of(const LlamaLayerWeights& layer) {
  std::vector<const kernels::PackedMatrix*> matrices = {&layer.output, &layer.router, &layer.shared_gate};
  for (const auto* list : {&layer.qkv, &layer.gate_up, &layer.down}) {
    for (const kernels::PackedMatrix& matrix : *list) matrices.push_back(&matrix);
  }
  return matrices;
}

void LlamaWeights::lock() const {
  std::vector<const kernels::PackedMatrix*> matrices = {&head, &embedding};
  for (const LlamaLayerWeights& layer : layers) {
    const std::vector<const kernels::PackedMatrix*> of_layer = matrices_of(layer);
    matrices.insert(matrices.end(), of_layer.begin(), of_layer.end());
  }
  for (const kernels::PackedMatrix* matrix : matrices) {
    for (const std::span<const std::byte> part : matrix->memory()) {
      if (part.empty() || ::mlock(part.data(), part.size()) == 0) continue;
      const int error = errno;
      rlimit limit{};
      ::getrlimit(RLIMIT_MEMLOCK, &limit);
      throw ModelError("weights_lock: the " + std::to_string(bytes()) + " bytes of weights cannot be locked: " +
                       std::strerror(error) + "; the limit of locked memory (RLIMIT_MEMLOCK, ulimit -l) is " +
                       (limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur) + " bytes"));
    }
  }
}

int64_t LlamaWeights::bytes() const {
  int64_t bytes = head.bytes() + embedding.bytes() + static_cast<int64_t>(final_norm.size() * sizeof(float));
  for (const LlamaLayerWeights& layer : layers) {
    for (const kernels::PackedMatrix* matrix : matrices_of(layer)) bytes += matrix->bytes();
    for (const auto* floats :
         {&layer.attention_norm, &layer.attention_output_norm, &layer.mlp_norm, &layer.mlp_output_norm, &layer.qkv_bias,
          &layer.output_bias, &layer.gate_up_bias, &layer.down_bias, &layer.router_bias}) {
      bytes += static_cast<int64_t>(floats->size() * sizeof(float));
    }
  }
  return bytes;
}

// The head decides the most likely token, so 4 bits cost more accuracy there than the memory is worth.
LlamaStorage llama_head_storage(LlamaStorage storage) {
  if (storage.type == kernels::WeightType::kInt4) storage.type = kernels::WeightType::kInt8;
  return storage;
}

LlamaStorage llama_router_storage(LlamaStorage storage) {
  if (bits_of(storage.type) > 0) storage.type = kernels::WeightType::kBf16;
  return storage;
}

bool keeps_integers(const TensorView& tensor, LlamaStorage storage) {
  const std::optional<MatrixFormat> format = kept_format(tensor);
  return format && !tensor.data.empty() && (storage.as_file || bits_of(format->type) <= bits_of(storage.type));
}

MatrixFormat llama_format(const Weights& weights, LlamaStorage storage, std::span<const std::string> tensors) {
  using kernels::Minimums;
  using kernels::WeightType;
  std::vector<TensorView> views;
  for (const std::string& name : tensors) views.push_back(weights.find(name).value_or(TensorView{}));
  const auto all = [&](const auto& is) { return std::all_of(views.begin(), views.end(), is); };
  const auto keeps = [&](const TensorView& view) { return keeps_integers(view, storage); };
  if (all(keeps) && all([&](const TensorView& view) { return order_of(view) == order_of(views.front()); })) {
    const MatrixFormat first = *kept_format(views.front());
    const auto is_first = [&](const TensorView& view) { return *kept_format(view) == first; };
    // The integers of a group may have any minimum if it is stored.
    const auto can_be_stored = [&](const TensorView& view) {
      return kept_format(view)->type == first.type && !kept_format(view)->coded();
    };
    if (all(is_first)) return first;
    if (all(can_be_stored)) return {first.type, Minimums::kStored};
  }
  if (storage.as_file && !all(is_float)) {
    // Padded rows have no bytes.
    const bool in_file = all([](const TensorView& view) { return !view.data.empty(); });
    return in_file ? MatrixFormat{WeightType::kEncoded} : MatrixFormat{WeightType::kInt8, Minimums::kCentred};
  }
  if (storage.type != WeightType::kInt8) return {storage.type};
  // Floats fitted to 8 bits are centred.
  const auto centred = [&](const TensorView& view) {
    return !keeps(view) || kept_format(view)->type != WeightType::kInt8 ||
           *kept_format(view) == MatrixFormat{WeightType::kInt8, Minimums::kCentred};
  };
  return {WeightType::kInt8, all(centred) ? Minimums::kCentred : Minimums::kStored};
}

std::vector<Stacked> stack_qkv(const Weights& weights, LlamaStorage storage, const std::string& attention) {
  const ModelConfig& c = weights.config();
  std::vector<Stacked> parts;
  MatrixFormat last;
  std::vector<int32_t> last_order;
  for (const char projection : {'q', 'k', 'v'}) {
    const std::string name = attention + projection + "_proj.weight";
    const int64_t rows = (projection == 'q' ? c.n_heads : c.n_kv_heads) * c.head_dim;
    const MatrixFormat format = llama_format(weights, storage, std::span(&name, 1));
    const std::vector<int32_t> order = order_of(weights.find(name).value_or(TensorView{}));
    if (parts.empty() || format != last || order != last_order) parts.emplace_back();
    last = format;
    last_order = order;
    parts.back().tensors.push_back(name);
    parts.back().rows.push_back(rows);
    parts.back().all_rows += rows;
  }
  return parts;
}

LlamaWeights pack_llama(const Weights& weights, LlamaStorage storage, ThreadPool& pool,
                        const std::function<void(double)>& progress) {
  const ModelConfig& c = weights.config();
  const int64_t hidden = c.hidden_size;
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
    pack_mlps(weights, storage, i, packer, w);
    if (c.attention_bias) {
      append(w.qkv_bias, read_vector(weights, layer + "self_attn.q_proj.bias", q_rows));
      append(w.qkv_bias, read_vector(weights, layer + "self_attn.k_proj.bias", c.n_kv_heads * c.head_dim));
      append(w.qkv_bias, read_vector(weights, layer + "self_attn.v_proj.bias", c.n_kv_heads * c.head_dim));
      if (weights.find(layer + "self_attn.o_proj.bias")) {
        w.output_bias = read_vector(weights, layer + "self_attn.o_proj.bias", hidden);
      }
    }
    for (const MlpTensors& mlp : c.mlp_bias ? mlps_of(c, i) : std::vector<MlpTensors>()) {
      const std::vector<float> gate = read_vector(weights, mlp.prefix + "gate_proj.bias", mlp.size);
      const std::vector<float> up = read_vector(weights, mlp.prefix + "up_proj.bias", mlp.size);
      for (int64_t row = 0; row < mlp.size; row += kLanes) {
        w.gate_up_bias.insert(w.gate_up_bias.end(), gate.begin() + row, gate.begin() + row + kLanes);
        w.gate_up_bias.insert(w.gate_up_bias.end(), up.begin() + row, up.begin() + row + kLanes);
      }
      append(w.down_bias, read_vector(weights, mlp.prefix + "down_proj.bias", hidden));
    }
    if (c.has_experts(i) && c.router_bias) {
      w.router_bias = read_vector(weights, layer + "mlp.gate.bias", c.n_experts);
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
  packer.report_loss();
  return packed;
}

}  // namespace smartkv
