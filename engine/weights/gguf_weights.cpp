#include "engine/weights/gguf_weights.h"

#include <algorithm>
#include <map>

#include "engine/weights/check_config.h"
#include "engine/weights/gguf.h"

namespace smartkv {
namespace {

// Rest of a GGUF name behind "blk.N." and its Hugging Face counterpart behind "model.layers.N.".
constexpr std::pair<std::string_view, std::string_view> kLayerNames[] = {
    {"attn_norm.", "input_layernorm."},   {"ffn_norm.", "post_attention_layernorm."},
    {"attn_q.", "self_attn.q_proj."},     {"attn_k.", "self_attn.k_proj."},
    {"attn_v.", "self_attn.v_proj."},     {"attn_output.", "self_attn.o_proj."},
    {"ffn_gate.", "mlp.gate_proj."},      {"ffn_up.", "mlp.up_proj."},
    {"ffn_down.", "mlp.down_proj."},
};

// Empty: a tensor that a LLaMA does not use.
std::string hugging_face_name(const std::string& name) {
  if (name == "token_embd.weight") return "model.embed_tokens.weight";
  if (name == "output_norm.weight") return "model.norm.weight";
  if (name == "output.weight") return "lm_head.weight";
  if (!name.starts_with("blk.")) return "";
  const size_t dot = name.find('.', 4);
  if (dot == std::string::npos) return "";
  const std::string rest = name.substr(dot + 1);
  for (const auto& [gguf, hugging_face] : kLayerNames) {
    if (rest.starts_with(gguf)) {
      return "model.layers." + name.substr(4, dot - 4) + "." + std::string(hugging_face) + rest.substr(gguf.size());
    }
  }
  return "";
}

class ConfigReader {
 public:
  explicit ConfigReader(const GgufFile& file) : file_(file) {}

  ModelConfig read(const std::filesystem::path& path) {
    const std::string* architecture = file_.get_string("general.architecture");
    if (architecture == nullptr || *architecture != "llama") {
      throw ModelError(file_.name() + ": key \"general.architecture\": expected \"llama\", found " +
                       (architecture == nullptr ? "nothing" : "\"" + *architecture + "\""));
    }
    ModelConfig c;
    c.name = path.stem().string();
    // The file's stem without its quantisation: "SmolLM2-135M-Instruct.Q4_1" is a SmolLM2-135M-Instruct.
    if (const size_t dot = c.name.rfind('.'); dot != std::string::npos && dot > 0) c.name.resize(dot);
    c.hidden_size = size("llama.embedding_length");
    c.intermediate_size = size("llama.feed_forward_length");
    c.n_layers = size("llama.block_count");
    c.n_heads = size("llama.attention.head_count");
    c.n_kv_heads = file_.metadata().contains("llama.attention.head_count_kv") ? size("llama.attention.head_count_kv") : c.n_heads;
    c.head_dim = file_.get_int("llama.attention.key_length").value_or(c.hidden_size / c.n_heads);
    c.context_length = size("llama.context_length");
    c.rms_norm_eps = file_.get_float("llama.attention.layer_norm_rms_epsilon").value_or(1e-5);
    c.rope.theta = file_.get_float("llama.rope.freq_base").value_or(10000.0);
    read_rope_scaling(c.rope);
    const auto embedding = file_.tensors().find("token_embd.weight");
    if (embedding == file_.tensors().end()) throw ModelError(file_.name() + ": tensor \"token_embd.weight\" is missing");
    c.vocab_size = embedding->second.shape.front();
    c.tie_word_embeddings = !file_.tensors().contains("output.weight");
    c.attention_bias = file_.tensors().contains("blk.0.attn_q.bias");
    c.mlp_bias = file_.tensors().contains("blk.0.ffn_gate.bias");
    if (const auto eos = file_.get_int("tokenizer.ggml.eos_token_id")) c.eos_token_ids = {static_cast<int32_t>(*eos)};
    check_config(c, file_.name());
    if (const auto rotated = file_.get_int("llama.rope.dimension_count"); rotated && *rotated != c.head_dim) {
      throw ModelError(file_.name() + ": key \"llama.rope.dimension_count\": expected the head dimension " + std::to_string(c.head_dim) +
                       ", found " + std::to_string(*rotated));
    }
    return c;
  }

 private:
  // A positive number. Some files give one per layer, all equal.
  int64_t size(const std::string& key) {
    std::optional<int64_t> value;
    const auto found = file_.metadata().find(key);
    if (found != file_.metadata().end() && std::holds_alternative<GgufArray>(found->second)) {
      const std::vector<int64_t>& values = *file_.get_ints(key);
      if (!values.empty() && std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == values[0]; })) value = values[0];
    } else {
      value = file_.get_int(key);
    }
    if (!value || *value <= 0) {
      throw ModelError(file_.name() + ": key \"" + key + "\": expected a positive number, found " +
                       (value ? std::to_string(*value) : "none"));
    }
    return *value;
  }

  void read_rope_scaling(RopeConfig& rope) {
    if (const auto factors = file_.tensors().find("rope_freqs.weight"); factors != file_.tensors().end()) {
      rope.freq_factors.resize(static_cast<size_t>(factors->second.elements()));
      expand_rows(factors->second, 0, factors->second.rows(), rope.freq_factors.data());
    }
    const std::string* type = file_.get_string("llama.rope.scaling.type");
    if (type == nullptr || *type == "none") return;
    rope.factor = file_.get_float("llama.rope.scaling.factor").value_or(1.0);
    rope.original_context = file_.get_int("llama.rope.scaling.original_context_length").value_or(0);
    if (*type == "linear") {
      rope.scaling = RopeScaling::kLinear;
    } else if (*type == "yarn") {
      rope.scaling = RopeScaling::kYarn;
    } else {
      throw ModelError(file_.name() + ": key \"llama.rope.scaling.type\": expected none, linear or yarn, found \"" + *type + "\"");
    }
  }

  const GgufFile& file_;
};

class GgufWeights final : public Weights {
 public:
  explicit GgufWeights(const std::filesystem::path& path) : file_(GgufFile::open(path)), config_(ConfigReader(file_).read(path)) {
    for (const auto& [name, tensor] : file_.tensors()) {
      const std::string renamed = hugging_face_name(name);
      if (!renamed.empty()) tensors_.emplace(renamed, &tensor);
    }
  }

  const ModelConfig& config() const override { return config_; }
  const GgufFile* gguf() const override { return &file_; }
  std::string format() const override { return "GGUF v" + std::to_string(file_.version()); }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  std::optional<TensorView> find(std::string_view name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? std::nullopt : std::optional(*found->second);
  }

  // GGUF holds q and k rows of a head as (0, d/2, 1, d/2 + 1, ...), for RoPE on neighbouring elements.
  int64_t file_row(std::string_view name, int64_t row) const override {
    if (name.find(".q_proj.") == std::string_view::npos && name.find(".k_proj.") == std::string_view::npos) return row;
    const int64_t dim = config_.head_dim, head = row / dim, i = row % dim;
    return head * dim + (i < dim / 2 ? 2 * i : 2 * (i - dim / 2) + 1);
  }

 private:
  GgufFile file_;
  ModelConfig config_;
  std::map<std::string, const TensorView*, std::less<>> tensors_;
};

}  // namespace

std::unique_ptr<Weights> open_gguf_weights(const std::filesystem::path& path) { return std::make_unique<GgufWeights>(path); }

}  // namespace smartkv
