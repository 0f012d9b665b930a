#include "engine/weights/check_config.h"
#include "engine/weights/hf_weights.h"

namespace smartkv {
namespace {

class Fields {
 public:
  Fields(const nlohmann::json& object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  const nlohmann::json& operator[](const char* key) const { return object_[key]; }
  [[noreturn]] void fail(const char* key, const std::string& expected) const {
    throw ModelError(file_ + ": key \"" + prefix_ + key + "\": expected " + expected + ", found " +
                     (object_.contains(key) ? object_[key].dump().substr(0, 100) : "nothing"));
  }
  int64_t integer(const char* key, std::optional<int64_t> otherwise = std::nullopt) const {
    if (!has(key) && otherwise) return *otherwise;
    // Out-of-range numbers parse as unsigned or float.
    if (!has(key) || !object_[key].is_number_integer() ||
        (object_[key].is_number_unsigned() && object_[key].get<uint64_t>() > uint64_t{1} << 62)) {
      fail(key, "an integer");
    }
    return object_[key].get<int64_t>();
  }
  double number(const char* key, std::optional<double> otherwise = std::nullopt) const {
    if (!has(key) && otherwise) return *otherwise;
    if (!has(key) || !object_[key].is_number()) fail(key, "a number");
    return object_[key].get<double>();
  }
  bool boolean(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!object_[key].is_boolean()) fail(key, "true or false");
    return object_[key].get<bool>();
  }
  std::string string(const char* key) const {
    if (!has(key) || !object_[key].is_string()) fail(key, "a string");
    return object_[key].get<std::string>();
  }

 private:
  const nlohmann::json& object_;
  std::string file_, prefix_;
};

void read_rope_scaling(const nlohmann::json& scaling, const std::string& prefix, const std::string& file, RopeConfig& rope) {
  if (!scaling.is_object()) throw ModelError(file + ": key \"" + prefix + "\": expected an object, found " + scaling.dump());
  const Fields fields(scaling, file, prefix + ".");
  rope.theta = fields.number("rope_theta", rope.theta);
  const char* key = fields.has("rope_type") ? "rope_type" : "type";
  const std::string type = fields.has(key) ? fields.string(key) : "default";
  if (type == "default") return;
  rope.factor = fields.number("factor");
  if (!(rope.factor >= 1.0)) fields.fail("factor", "a number of at least 1");
  rope.original_context = fields.integer("original_max_position_embeddings", 0);
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
  } else if (type == "dynamic") {
    rope.scaling = RopeScaling::kDynamic;
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    rope.low_freq_factor = fields.number("low_freq_factor");
    rope.high_freq_factor = fields.number("high_freq_factor");
    rope.original_context = fields.integer("original_max_position_embeddings");
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    rope.beta_fast = fields.number("beta_fast", 32.0);
    rope.beta_slow = fields.number("beta_slow", 1.0);
    rope.attention_factor = fields.number("attention_factor", 0.0);
  } else {
    fields.fail(key, "default, linear, dynamic, llama3 or yarn");
  }
}

}  // namespace

ModelConfig parse_hf_config(const nlohmann::json& config, const std::string& file) {
  if (!config.is_object()) throw ModelError(file + ": expected an object");
  const Fields fields(config, file);
  const std::string type = fields.string("model_type");
  const bool windowless_mistral = type == "mistral" && !fields.has("sliding_window");
  if (type != "llama" && !windowless_mistral) {
    fields.fail("model_type", "\"llama\" (or \"mistral\" without sliding_window)");
  }
  if (fields.has("hidden_act") && fields["hidden_act"] != "silu") fields.fail("hidden_act", "\"silu\"");
  ModelConfig c;
  c.architecture = type;
  c.hidden_size = fields.integer("hidden_size");
  c.intermediate_size = fields.integer("intermediate_size");
  c.n_layers = fields.integer("num_hidden_layers");
  c.n_heads = fields.integer("num_attention_heads");
  c.n_kv_heads = fields.integer("num_key_value_heads", c.n_heads);
  c.head_dim = fields.integer("head_dim", c.n_heads > 0 ? c.hidden_size / c.n_heads : 0);
  c.vocab_size = fields.integer("vocab_size");
  c.context_length = fields.integer("max_position_embeddings", 2048);
  c.rms_norm_eps = fields.number("rms_norm_eps", 1e-6);
  c.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  c.attention_bias = fields.boolean("attention_bias", false);
  c.mlp_bias = fields.boolean("mlp_bias", false);
  c.rope.theta = fields.number("rope_theta", 10000.0);
  if (fields.has("rope_parameters")) read_rope_scaling(fields["rope_parameters"], "rope_parameters", file, c.rope);
  if (fields.has("rope_scaling")) read_rope_scaling(fields["rope_scaling"], "rope_scaling", file, c.rope);
  if (fields.has("eos_token_id")) {
    const nlohmann::json& eos = fields["eos_token_id"];
    for (const nlohmann::json& id : eos.is_array() ? eos : nlohmann::json::array({eos})) {
      if (!id.is_number_integer()) fields.fail("eos_token_id", "an integer or an array of them");
      c.eos_token_ids.push_back(id.get<int32_t>());
    }
  }
  check_config(c, file);
  return c;
}

}  // namespace smartkv
