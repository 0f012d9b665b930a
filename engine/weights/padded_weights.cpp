#include "engine/weights/padded_weights.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "engine/weights/projections.h"
#include "engine/weights/reshaped_weights.h"

namespace smartkv {
namespace {

constexpr int64_t kLanes = 16;  // Rows that are packed together, and elements of a head that are computed together.

// Returns n if it is a multiple of kLanes, else the next multiple of `unit`.
int64_t rounded_up(int64_t n, int64_t unit) { return n % kLanes == 0 ? n : (n + unit - 1) / unit * unit; }

// Maps the elements of one axis of a tensor to those of the padded tensor.
struct Axis {
  // kRotated: heads of q and k. kHeads: heads of v. kIntermediate: the columns of the MLP.
  enum class Kind : uint8_t { kRotated, kHeads, kIntermediate } kind;
  int64_t from, to;  // Elements of a head (or of the MLP) without and with padding.

  int64_t padded(int64_t size) const { return size / from * to; }
  // Returns the element of the original tensor that becomes element `i`; -1 if `i` is padding.
  int64_t source(int64_t i) const {
    const int64_t head = i / to, at = i % to;
    if (kind != Kind::kRotated) return at < from ? head * from + at : -1;
    const int64_t half = at / (to / 2), pair = at % (to / 2);  // The elements of a RoPE pair are half a head apart.
    return pair < from / 2 ? head * from + half * (from / 2) + pair : -1;
  }
};

struct Padding {
  std::optional<Axis> rows, columns;
};

class PaddedWeights final : public ReshapedWeights {
 public:
  explicit PaddedWeights(const Weights& weights) : ReshapedWeights(weights, padded_config(weights.config())) {}

  std::optional<TensorView> find(std::string_view name) const override {
    std::optional<TensorView> view = weights_.find(name);
    const Padding padding = padding_of(name);
    if (!view || (!padding.rows && !padding.columns)) return view;
    TensorView padded = {view->name, view->type, view->shape, {}};
    if (padding.rows) padded.shape.front() = padding.rows->padded(view->shape.front());
    if (padding.columns) padded.shape.back() = padding.columns->padded(view->shape.back());
    return padded;
  }
  int64_t file_row(std::string_view name, int64_t row) const override {
    return padding_of(name).rows ? row : weights_.file_row(name, row);
  }

  void read_rows(std::string_view name, int64_t first, int64_t count, float* out) const override {
    const Padding padding = padding_of(name);
    const std::optional<TensorView> view = weights_.find(name);
    if (!view || (!padding.rows && !padding.columns)) return weights_.read_rows(name, first, count, out);
    if (view->shape.size() == 1) return read_vector(name, *view, *padding.rows, out);
    const int64_t width = view->row_elements();
    std::vector<float> row(static_cast<size_t>(width));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t source = padding.rows ? padding.rows->source(first + i) : first + i;
      if (source < 0) {
        std::fill_n(row.begin(), width, 0.0f);
      } else {
        weights_.read_rows(name, source, 1, row.data());
      }
      out = padding.columns ? spread(row, *padding.columns, out) : std::copy(row.begin(), row.end(), out);
    }
  }

 private:
  static float* spread(const std::vector<float>& values, const Axis& axis, float* out) {
    const int64_t n = axis.padded(static_cast<int64_t>(values.size()));
    for (int64_t i = 0; i < n; ++i) {
      const int64_t source = axis.source(i);
      *out++ = source < 0 ? 0.0f : values[static_cast<size_t>(source)];
    }
    return out;
  }
  void read_vector(std::string_view name, const TensorView& view, const Axis& axis, float* out) const {
    std::vector<float> values = weights_.read(name, view.shape);
    if (is_norm(name)) {
      const double ratio = static_cast<double>(axis.from) / static_cast<double>(axis.to);
      for (float& value : values) value = static_cast<float>(value * std::sqrt(ratio));
    }
    spread(values, axis, out);
  }

  static bool is_norm(std::string_view name) {
    return name.find(".q_norm.") != std::string_view::npos || name.find(".k_norm.") != std::string_view::npos;
  }

  Padding padding_of(std::string_view name) const {
    const ModelConfig& c = weights_.config();
    const Axis heads = {Axis::Kind::kHeads, c.head_dim, config_.head_dim};
    const Axis rotated = {Axis::Kind::kRotated, c.head_dim, config_.head_dim};
    const Axis inter = {Axis::Kind::kIntermediate, mlp_size(c, name), mlp_size(config_, name)};
    const auto is = [&](std::string_view projection) { return name.find(projection) != std::string_view::npos; };
    const bool bias = name.ends_with(".bias");
    Padding padding;
    if (is_rotated(name) || is_norm(name)) padding.rows = rotated;
    if (is(".v_proj.")) padding.rows = heads;
    if (is(".o_proj.") && !bias) padding.columns = heads;
    if (is(".gate_proj.") || is(".up_proj.")) padding.rows = inter;
    if (is(".down_proj.") && !bias) padding.columns = inter;
    if (padding.rows && padding.rows->from == padding.rows->to) padding.rows.reset();
    if (padding.columns && padding.columns->from == padding.columns->to) padding.columns.reset();
    return padding;
  }
};

}  // namespace

ModelConfig padded_config(ModelConfig config) {
  // The size of all heads together and the intermediate size become multiples of 32, the size of a group of integers.
  const int64_t head_dim = rounded_up(config.head_dim, config.n_heads % 2 == 0 ? 16 : 32);
  if (head_dim > 256) throw ModelError("head_dim: expected at most 256, found " + std::to_string(config.head_dim));
  for (int64_t* size : {&config.intermediate_size, &config.expert_size, &config.shared_expert_size}) {
    *size = rounded_up(*size, 32);
  }
  if (head_dim == config.head_dim) return config;
  // The added zeros make the mean of squares smaller by this ratio.
  config.qk_norm_eps = config.rms_norm_eps * static_cast<double>(config.head_dim) / static_cast<double>(head_dim);
  if (config.rope.rotary_dim == 0) config.rope.rotary_dim = config.head_dim;
  if (config.attention_multiplier == 0.0)
    config.attention_multiplier = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  config.head_dim = head_dim;
  return config;
}

std::unique_ptr<Weights> pad_weights(const Weights& weights) {
  const ModelConfig& c = weights.config();
  const ModelConfig padded = padded_config(c);
  const auto sizes = [](const ModelConfig& config) {
    return std::tie(config.head_dim, config.intermediate_size, config.expert_size, config.shared_expert_size);
  };
  if (sizes(padded) == sizes(c)) return nullptr;
  return std::make_unique<PaddedWeights>(weights);
}

}  // namespace smartkv
