#include "engine/weights/gguf_weights.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/weights/architecture.h"
#include "engine/weights/check_config.h"
#include "engine/weights/gguf.h"
#include "engine/weights/model_name.h"
#include "engine/weights/projections.h"
#include "engine/weights/quantized_rows.h"

namespace smartkv {
namespace {

// The part of a GGUF name after "blk.N.", and the part of the Hugging Face name after "model.layers.N.".
constexpr std::pair<std::string_view, std::string_view> kLayerNames[] = {
    {"attn_norm.", "input_layernorm."},
    {"ffn_norm.", "post_attention_layernorm."},
    {"attn_q.", "self_attn.q_proj."},
    {"attn_k.", "self_attn.k_proj."},
    {"attn_v.", "self_attn.v_proj."},
    {"attn_qkv.", "self_attn.qkv_proj."},
    {"attn_output.", "self_attn.o_proj."},
    {"attn_sinks.weight", "self_attn.sinks"},
    {"attn_q_norm.", "self_attn.q_norm."},
    {"attn_k_norm.", "self_attn.k_norm."},
    {"post_attention_norm.", "post_attention_layernorm."},
    {"post_ffw_norm.", "post_feedforward_layernorm."},
    {"ffn_gate.", "mlp.gate_proj."},
    {"ffn_up.", "mlp.up_proj."},
    {"ffn_down.", "mlp.down_proj."},
    {"ffn_gate_inp.", "mlp.gate."},
    {"ffn_gate_exps.", "mlp.experts.gate_proj."},
    {"ffn_up_exps.", "mlp.experts.up_proj."},
    {"ffn_down_exps.", "mlp.experts.down_proj."},
    {"ffn_gate_up_exps.", "mlp.experts.gate_up_proj."},
    {"ffn_gate_inp_shexp.", "mlp.shared_expert_gate."},
    {"ffn_gate_shexp.", "mlp.shared_expert.gate_proj."},
    {"ffn_up_shexp.", "mlp.shared_expert.up_proj."},
    {"ffn_down_shexp.", "mlp.shared_expert.down_proj."},
};

// Returns the Hugging Face name of a tensor. A name that has no counterpart is returned unchanged.
std::string hugging_face_name(const std::string& name, const Architecture& architecture) {
  if (name == "token_embd.weight") return "model.embed_tokens.weight";
  if (name == "output_norm.weight") return "model.norm.weight";
  if (name == "output.weight") return "lm_head.weight";
  if (!name.starts_with("blk.")) return name;
  const size_t dot = name.find('.', 4);
  if (dot == std::string::npos) return name;
  const std::string layer = "model.layers." + name.substr(4, dot - 4) + ".", rest = name.substr(dot + 1);
  if (architecture.fused_projections && rest == "ffn_up.weight") return layer + "mlp.gate_up_proj.weight";
  if (architecture.norm_placement == NormPlacement::kBoth && rest.starts_with("ffn_norm.")) {
    return layer + norm_names(NormPlacement::kBoth).mlp_input + rest.substr(rest.find('.'));
  }
  for (const auto& [gguf, hugging_face] : kLayerNames) {
    if (rest.starts_with(gguf)) return layer + std::string(hugging_face) + rest.substr(gguf.size());
  }
  return name;
}

// Tensors that belong to the configuration.
constexpr const char* kFreqFactors = "rope_freqs.weight";
constexpr const char* kShortFactors = "rope_factors_short.weight";
constexpr const char* kLongFactors = "rope_factors_long.weight";

// A key that does not affect the computation.
struct HarmlessGgufKey {
  std::string_view name;          // Without the name of the architecture in front.
  std::optional<GgufValue> only;  // The only harmless value; nullopt if every value is harmless.
};
const HarmlessGgufKey kHarmlessGguf[] = {
    {"vocab_size", std::nullopt},  // read from the shape of the embedding
    {"tensor_data_layout", std::nullopt},
    {"rope.scaling.finetuned", std::nullopt},
    {"pooling_type", std::nullopt},  // only for embeddings of whole texts
    {"expert_count", int64_t{0}},
    {"expert_used_count", int64_t{0}},
    {"attention.causal", true},
    {"use_parallel_residual", false},
    {"rope.scaling.yarn_ext_factor", 1.0},
    {"rope.scaling.yarn_attn_factor", 1.0},
};

std::string shown_value(const GgufValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool>) return v ? "true" : "false";
        if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>) return std::to_string(v);
        if constexpr (std::is_same_v<T, std::string>) return '"' + v.substr(0, 100) + '"';
        return "an array";
      },
      value);
}

// Reads the keys that belong to the architecture of the file. Throws ModelError for keys that it does not know.
class ConfigReader {
 public:
  explicit ConfigReader(const GgufFile& file) : file_(file) {
    const std::string* name = file_.get_string("general.architecture");
    const bool experts = name != nullptr && file_.get_int(*name + ".expert_count").value_or(0) > 0;
    architecture_ = name == nullptr ? nullptr : find_gguf_architecture(*name, experts);
    if (architecture_ == nullptr) {
      throw ModelError(file_.name() + ": key \"general.architecture\": expected " +
                       expected_architecture(name == nullptr ? "" : *name) + ", found " +
                       (name == nullptr ? "nothing" : "\"" + *name + "\""));
    }
    gguf_name_ = *name;
  }

  const Architecture& architecture() const { return *architecture_; }

  ModelConfig read(const std::filesystem::path& path) {
    const Architecture& a = *architecture_;
    ModelConfig c;
    c.architecture = a.name;
    const std::string* title = file_.get_string("general.name");
    c.name = model_names(path, title == nullptr ? "" : *title).front();
    c.hidden_size = size("embedding_length");
    c.intermediate_size = size("feed_forward_length");
    c.n_layers = size("block_count");
    c.n_heads = size("attention.head_count");
    c.n_kv_heads = has("attention.head_count_kv") ? size("attention.head_count_kv") : c.n_heads;
    c.head_dim = integer("attention.key_length", c.hidden_size / c.n_heads);
    c.context_length = size("context_length");
    c.rms_norm_eps = number("attention.layer_norm_rms_epsilon", 1e-5);
    c.qk_norm = a.qk_norm;
    c.norm_placement = a.norm_placement;
    c.activation = a.activation;
    if (a.scaled_embeddings) c.embedding_multiplier = std::sqrt(static_cast<double>(c.hidden_size));
    if (a.hidden_scalar_layers > 0 && c.n_layers == a.hidden_scalar_layers) {
      c.attention_multiplier = std::sqrt(static_cast<double>(c.n_heads) / static_cast<double>(c.hidden_size));
    }
    if (a.default_attention_soft_cap > 0) {
      c.attention_soft_cap = number("attn_logit_softcapping", a.default_attention_soft_cap);
      c.logit_soft_cap = number("final_logit_softcapping", a.default_logit_soft_cap);
    }
    read_window(c);
    read_experts(c);
    if (a.multipliers) {
      c.embedding_multiplier = number("embedding_scale", 1.0);
      c.attention_multiplier = number("attention.scale", 0.0);
      c.residual_multiplier = number("residual_scale", 1.0);
      c.logits_divisor = number("logit_scale", 1.0);
    }
    for (int64_t i = 0; i < c.n_layers && a.rope_free_interval > 0; ++i) {
      c.rope_layers.push_back((i + 1) % a.rope_free_interval != 0);
    }
    read_rope(c);
    const auto embedding = file_.tensors().find("token_embd.weight");
    if (embedding == file_.tensors().end())
      throw ModelError(file_.name() + ": tensor \"token_embd.weight\" is missing");
    c.vocab_size = embedding->second.shape.front();
    c.tie_word_embeddings = !file_.tensors().contains("output.weight");
    c.attention_bias = a.qkv_bias || file_.tensors().contains("blk.0.attn_q.bias");
    c.mlp_bias = a.gpt_oss_experts || file_.tensors().contains("blk.0.ffn_gate.bias");
    c.router_bias = a.gpt_oss_experts;
    c.attention_sinks = a.attention_sinks;
    read_end_token(c);
    check_config(c, file_.name());
    if (integer("attention.value_length", c.head_dim) != c.head_dim) {
      fail("attention.value_length", "the key length, " + std::to_string(c.head_dim));
    }
    refuse_unread();
    return c;
  }

 private:
  std::string key(std::string_view name) {
    read_.emplace(name);
    return gguf_name_ + "." + std::string(name);
  }
  bool has(std::string_view name) { return file_.metadata().contains(key(name)); }
  int64_t integer(std::string_view name, int64_t otherwise) {
    constexpr int64_t kMost = int64_t{1} << 32;
    const std::optional<int64_t> value = file_.get_int(key(name));
    if (value && (*value < 0 || *value > kMost)) fail(name, "an integer from 0 to " + std::to_string(kMost));
    return value.value_or(otherwise);
  }
  double number(std::string_view name, double otherwise) { return file_.get_float(key(name)).value_or(otherwise); }
  [[noreturn]] void fail(std::string_view name, const std::string& expected) {
    const auto found = file_.metadata().find(key(name));
    throw ModelError(file_.name() + ": key \"" + key(name) + "\": expected " + expected + ", found " +
                     (found == file_.metadata().end() ? "none" : shown_value(found->second)));
  }

  // Returns a positive number. Accepts an array with one number per layer if all are equal, which some files have.
  int64_t size(std::string_view name) {
    std::optional<int64_t> value;
    const auto found = file_.metadata().find(key(name));
    if (found != file_.metadata().end() && std::holds_alternative<GgufArray>(found->second)) {
      const std::vector<int64_t>& values = *file_.get_ints(key(name));
      if (!values.empty() && std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == values[0]; }))
        value = values[0];
    } else {
      value = file_.get_int(key(name));
    }
    if (!value || *value <= 0) fail(name, "a positive number");
    return *value;
  }

  std::vector<float> factors(const char* tensor) {
    const auto found = file_.tensors().find(tensor);
    if (found == file_.tensors().end()) return {};
    std::vector<float> values(static_cast<size_t>(found->second.elements()));
    expand_rows(found->second, 0, found->second.rows(), values.data());
    return values;
  }

  // Some converters write -1 for no token, as a signed or an unsigned 32-bit integer.
  void read_end_token(ModelConfig& c) {
    constexpr const char* kKey = "tokenizer.ggml.eos_token_id";
    const std::optional<int64_t> id = file_.get_int(kKey);
    if (!id) return;
    if (*id < -1 || (*id > INT32_MAX && *id != UINT32_MAX)) {
      throw ModelError(file_.name() + ": key \"" + kKey +
                       "\": expected a token from 0 to 2147483647, or -1 for none, found " + std::to_string(*id));
    }
    c.eos_token_ids = {static_cast<int32_t>(*id)};
  }

  void read_window(ModelConfig& c) {
    const Architecture& a = *architecture_;
    c.sliding_window = integer("attention.sliding_window", a.window == WindowRule::kPattern ? a.default_window : 0);
    if (a.window == WindowRule::kPattern) {
      const int64_t pattern = integer("attention.sliding_window_pattern", a.window_pattern);
      if (pattern < 1) fail("attention.sliding_window_pattern", "a positive number");
      for (int64_t i = 0; i < c.n_layers; ++i) c.window_layers.push_back((i + 1) % pattern != 0);
    } else if (a.window != WindowRule::kAlways && c.sliding_window != 0) {  // No key says which layers have the window.
      fail("attention.sliding_window", "0 for " + c.architecture);
    }
  }

  void read_experts(ModelConfig& c) {
    const Architecture& a = *architecture_;
    if (a.experts == ExpertRule::kNone) return;
    c.n_experts = size("expert_count");
    c.experts_per_token = size("expert_used_count");
    c.expert_size = has("expert_feed_forward_length") ? size("expert_feed_forward_length") : c.intermediate_size;
    if (a.experts == ExpertRule::kQwenShared) c.shared_expert_size = size("expert_shared_feed_forward_length");
    c.normalized_experts = file_.get_bool(key("expert_weights_norm")).value_or(a.normalized_in_gguf);
    constexpr int64_t kSoftmax = 1;
    if (integer("expert_gating_func", kSoftmax) != kSoftmax) fail("expert_gating_func", "1, softmax");
    if (number("expert_weights_scale", 1.0) != 1.0) fail("expert_weights_scale", "1");
  }

  void read_rope(ModelConfig& c) {
    RopeConfig& rope = c.rope;
    const bool own_default = architecture_->window == WindowRule::kPattern;  // others have llama.cpp's
    rope.theta = number("rope.freq_base", own_default ? architecture_->default_rope_theta : 10000.0);
    if (architecture_->default_window_rope_theta > 0) {
      c.window_rope_theta = number("rope.freq_base_swa", architecture_->default_window_rope_theta);
    }
    const int64_t rotary = integer("rope.dimension_count", c.head_dim);
    if (rotary != c.head_dim && !architecture_->partial_rotary) {
      fail("rope.dimension_count", "the head dimension, " + std::to_string(c.head_dim));
    }
    rope.rotary_dim = rotary;
    rope.original_context = integer("rope.scaling.original_context_length", c.context_length);
    rope.freq_factors = factors(kFreqFactors);
    rope.short_factors = factors(kShortFactors);
    rope.long_factors = factors(kLongFactors);
    rope.beta_fast = number("rope.scaling.yarn_beta_fast", 32.0);
    rope.beta_slow = number("rope.scaling.yarn_beta_slow", 1.0);
    rope.magnitude = number("rope.scaling.attn_factor", 1.0);
    if (!rope.short_factors.empty() || !rope.long_factors.empty()) {
      rope.scaling = RopeScaling::kLongRope;
      rope.factor = number("rope.scaling.factor", 1.0);  // The file has attn_factor, which follows from it.
    }
    // A factor without a type is a linear one. Its older key, scale_linear, came without a type.
    const std::string type_key = key("rope.scaling.type");
    const std::string* type = file_.get_string(type_key);
    const double factor = number("rope.scaling.factor", number("rope.scale_linear", 1.0));
    if (type == nullptr ? factor != 1.0 && factor != 0.0 : *type == "linear") {
      if (rope.scaling != RopeScaling::kLongRope) {
        rope.scaling = RopeScaling::kLinear;
        rope.factor = factor == 0.0 ? 1.0 : factor;
      }
    } else if (type != nullptr && *type == "yarn") {
      rope.scaling = RopeScaling::kYarn;
      rope.truncate = architecture_->yarn_truncates;
      rope.factor = factor == 0.0 ? 1.0 : factor;
      rope.magnitude *= 0.1 * std::log(rope.factor) + 1.0;
    } else if (type != nullptr && *type != "none" && !(*type == "longrope" && rope.scaling == RopeScaling::kLongRope)) {
      fail("rope.scaling.type", "none, linear, yarn, or longrope with its factors");
    }
  }

  // Throws ModelError for the first unknown key of the architecture. Keys with other prefixes describe the file or the
  // tokenizer.
  void refuse_unread() {
    const std::string prefix = gguf_name_ + ".";
    for (const auto& [name, value] : file_.metadata()) {
      if (!name.starts_with(prefix)) continue;
      const std::string rest = name.substr(prefix.size());
      if (read_.contains(rest)) continue;
      const auto* known = std::find_if(std::begin(kHarmlessGguf), std::end(kHarmlessGguf),
                                       [&](const auto& h) { return h.name == rest; });
      if (known == std::end(kHarmlessGguf)) fail(rest, "no such key: it is neither supported nor known to be harmless");
      if (known->only && value != *known->only) fail(rest, shown_value(*known->only));
    }
  }

  const GgufFile& file_;
  const Architecture* architecture_ = nullptr;
  std::string gguf_name_;  // before the names of the keys
  std::set<std::string, std::less<>> read_;
};

class GgufWeights final : public Weights {
 public:
  explicit GgufWeights(const std::filesystem::path& path) : file_(GgufFile::open(path)) {
    ConfigReader reader(file_);
    config_ = reader.read(path);
    architecture_ = &reader.architecture();
    for (const auto& [name, tensor] : file_.tensors()) {
      if (name == kFreqFactors || name == kShortFactors || name == kLongFactors) continue;
      const auto [at, added] = tensors_.emplace(hugging_face_name(name, *architecture_), tensor);
      if (!added) {
        throw ModelError(file_.name() + ": tensors \"" + at->second.name + "\" and \"" + name +
                         "\" are the same tensor");
      }
    }
    // The gate of a shared expert is a vector in these files.
    for (int64_t i = 0; i < config_.n_layers && config_.shared_expert_size > 0; ++i) {
      const auto gate = tensors_.find("model.layers." + std::to_string(i) + ".mlp.shared_expert_gate.weight");
      if (gate != tensors_.end() && gate->second.shape.size() == 1)
        gate->second.shape.insert(gate->second.shape.begin(), 1);
    }
    split_experts(config_, tensors_);
    attach_factors();
    if (architecture_->fused_projections) split_fused_projections(config_, tensors_);
  }

  const ModelConfig& config() const override { return config_; }
  const GgufFile* gguf() const override { return &file_; }
  std::string stored_as() const override { return smartkv::stored_as(file_); }
  std::string format() const override {
    return "GGUF v" + std::to_string(file_.version()) +
           (file_.parts() > 1 ? " (" + std::to_string(file_.parts()) + " files)" : "");
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  std::optional<TensorView> find(std::string_view name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? std::nullopt : std::optional(found->second);
  }

  int64_t file_row(std::string_view name, int64_t row) const override {
    if (!is_rotated(name)) return row;
    return architecture_->interleaved_in_gguf ? interleaved_row(config_, row) : half_split_row(config_, row);
  }

 private:
  // NVFP4 tensors may have a factor each: "X.scale" beside "X.weight".
  void attach_factors() {
    std::vector<std::string> used;
    for (auto& [name, tensor] : tensors_) {
      if (tensor.type != TensorType::kNvfp4 || !name.ends_with(".weight")) continue;
      const auto found = tensors_.find(name.substr(0, name.size() - std::string(".weight").size()) + ".scale");
      if (found == tensors_.end()) continue;
      if (found->second.elements() != 1 || !is_float(found->second)) {
        throw ModelError(file_.name() + ": tensor \"" + found->second.name + "\": expected one float, found " +
                         std::to_string(found->second.elements()) + " values of " +
                         std::string(tensor_type_info(found->second.type).name));
      }
      auto scales = std::make_shared<WeightScales>();
      scales->values.resize(1);
      scales->block_rows = tensor.rows();
      scales->block_columns = tensor.row_elements();
      expand_rows(found->second, 0, 1, scales->values.data());
      tensor.scales = std::move(scales);
      used.push_back(found->first);
    }
    for (const std::string& name : used) tensors_.erase(name);
  }

  GgufFile file_;
  ModelConfig config_;
  const Architecture* architecture_ = nullptr;
  TensorMap tensors_;
};

}  // namespace

std::unique_ptr<Weights> open_gguf_weights(const std::filesystem::path& path) {
  return std::make_unique<GgufWeights>(path);
}

}  // namespace smartkv
