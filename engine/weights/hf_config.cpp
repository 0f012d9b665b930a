#include <algorithm>
#include <cmath>

#include "engine/weights/architecture.h"
#include "engine/weights/check_config.h"
#include "engine/weights/config_fields.h"
#include "engine/weights/hf_weights.h"
#include "engine/weights/quantization_config.h"
#include "kernels/linear.h"

namespace smartkv {
namespace {

// Keys that transformers writes into config.json and that do not affect a causal pass.
constexpr std::string_view kHarmlessConfig[] = {
    // descriptions
    "architectures", "auto_map", "transformers_version", "torch_dtype", "dtype", "tokenizer_class",
    "task_specific_params", "id2label", "label2id", "finetuning_task", "problem_type", "unsloth_version",
    "unsloth_fixed", "transformers.js_config", "is_llama_config", "max_sequence_length", "model_max_length",
    // training
    "initializer_range", "attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "hidden_dropout",
    "residual_dropout", "use_cache", "gradient_checkpointing", "pretraining_tp", "router_aux_loss_coef",
    "router_jitter_noise", "output_router_logits",
    // tokens and sampling, except eos_token_id, which is read
    "bos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "mask_token_id", "decoder_start_token_id",
    "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "begin_suppress_tokens", "suppress_tokens",
    "do_sample", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "diversity_penalty",
    "early_stopping", "min_length", "max_length", "num_beams", "num_beam_groups", "num_return_sequences",
    "remove_invalid_values", "prefix",
    // outputs of a call, and how it runs
    "output_attentions", "output_hidden_states", "output_scores", "return_dict", "return_dict_in_generate",
    "torchscript", "tf_legacy_loss", "use_bfloat16", "attn_implementation", "keys_to_ignore_at_inference",
    "chunk_size_feed_forward", "cache_implementation",
    // other kinds of model
    "is_decoder"};
// Keys that do not affect a causal pass with one value only.
constexpr FixedKey kFixedConfig[] = {{"pruned_heads", "{}"},
                                     {"is_encoder_decoder", "false"},
                                     {"add_cross_attention", "false"},
                                     {"tie_encoder_decoder", "false"},
                                     {"rope_interleaved", "false"},
                                     {"use_mrope", "false"},
                                     {"lm_head_bias", "false"},
                                     {"full_attn_mod", "1"},
                                     {"interpolate_factor", "1"},
                                     {"attention_out_bias", "false"},
                                     {"use_bidirectional_attention", "false"}};

// Returns YaRN's attention factor (section 3.4 of the paper), with the two weights that DeepSeek added.
double yarn_magnitude(const ConfigFields& fields, double factor) {
  const auto scale = [&](double weight) { return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0; };
  const double weight = fields.number("mscale", 0.0), all = fields.number("mscale_all_dim", 0.0);
  return fields.number("attention_factor", weight != 0.0 && all != 0.0 ? scale(weight) / scale(all) : scale(1.0));
}

void read_longrope(const ConfigFields& fields, int64_t context, RopeConfig& rope) {
  rope.scaling = RopeScaling::kLongRope;
  rope.short_factors = fields.numbers("short_factor");
  rope.long_factors = fields.numbers("long_factor");
  const double original = static_cast<double>(rope.original_context);
  rope.factor = fields.number("factor", static_cast<double>(context) / original);
  rope.magnitude = fields.number(
      "attention_factor", rope.factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(rope.factor) / std::log(original)));
}

// Reads a "rope_scaling" or "rope_parameters" object. `original`: the value of "original_max_position_embeddings" if
// the key is beside this object instead of in it, as in Phi-3.
void read_rope_scaling(const nlohmann::json& scaling, const std::string& prefix, const std::string& file,
                       std::optional<int64_t> original, ModelConfig& c) {
  if (!scaling.is_object())
    throw ModelError(file + ": key \"" + prefix + "\": expected an object, found " + scaling.dump());
  const ConfigFields fields(scaling, file, prefix + ".");
  RopeConfig& rope = c.rope;
  rope.theta = fields.number("rope_theta", rope.theta);
  const char* key = fields.has("rope_type") ? "rope_type" : "type";
  std::string type = fields.has(key) ? fields.string(key) : "default";
  if (fields.has("type")) fields.string("type");
  if (c.architecture == "phi3" && (type == "su" || type == "yarn")) type = "longrope";  // older names of longrope
  const auto read_original = [&](std::optional<int64_t> otherwise) {
    const int64_t inside = fields.integer("original_max_position_embeddings", original ? original : otherwise);
    rope.original_context = original.value_or(inside);
    if (rope.original_context < 2) fields.fail("original_max_position_embeddings", "a number of at least 2");
  };
  if (fields.has("partial_rotary_factor")) {
    rope.rotary_dim = static_cast<int64_t>(static_cast<double>(c.head_dim) * fields.number("partial_rotary_factor"));
  }
  if (type == "default") {
    fields.refuse_unread({});
    return;
  }
  if (type == "longrope") {
    read_original(c.context_length);
    read_longrope(fields, c.context_length, rope);
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    read_original(c.context_length);
    rope.factor =
        fields.number("factor", static_cast<double>(c.context_length) / static_cast<double>(rope.original_context));
    rope.beta_fast = fields.number("beta_fast", 32.0);
    rope.beta_slow = fields.number("beta_slow", 1.0);
    rope.truncate = fields.boolean("truncate", find_architecture(c.architecture)->yarn_truncates);
    rope.magnitude = yarn_magnitude(fields, rope.factor);
  } else if (type == "linear" || type == "dynamic" || type == "llama3") {
    rope.scaling = type == "linear"    ? RopeScaling::kLinear
                   : type == "dynamic" ? RopeScaling::kDynamic
                                       : RopeScaling::kLlama3;
    rope.factor = fields.number("factor");
    if (type == "llama3") {
      rope.low_freq_factor = fields.number("low_freq_factor");
      rope.high_freq_factor = fields.number("high_freq_factor");
      read_original(std::nullopt);
    } else if (fields.integer("original_max_position_embeddings", c.context_length) != c.context_length &&
               type == "dynamic") {
      // transformers ignores this key and scales by the model's own context.
      fields.fail("original_max_position_embeddings", "max_position_embeddings, " + std::to_string(c.context_length));
    }
  } else {
    fields.fail(key, "default, linear, dynamic, llama3, yarn or longrope");
  }
  if (!(rope.factor >= 1.0)) fields.fail("factor", "a number of at least 1");
  constexpr std::string_view kRopeHarmless[] = {"finetuned"};
  fields.refuse_unread(kRopeHarmless);
}

// Reads an object with the RoPE of the layers with full attention and of those with a window.
void read_rope_by_kind(const nlohmann::json& kinds, const std::string& prefix, const std::string& file,
                       std::optional<int64_t> original, ModelConfig& c) {
  const ConfigFields fields(kinds, file, prefix + ".");
  read_rope_scaling(fields["full_attention"], prefix + ".full_attention", file, original, c);
  if (fields.has("sliding_attention")) {
    ModelConfig window;
    window.rope.theta = c.window_rope_theta;
    read_rope_scaling(fields["sliding_attention"], prefix + ".sliding_attention", file, original, window);
    if (window.rope.scaling != RopeScaling::kNone) {
      fields.fail("sliding_attention", "rope_type \"default\" for layers with a window");
    }
    c.window_rope_theta = window.rope.theta;
  }
  fields.refuse_unread({});
}

void read_rope(const ConfigFields& fields, const nlohmann::json& config, const std::string& file,
               const Architecture& architecture, ModelConfig& c) {
  c.rope.theta = fields.number("rope_theta", architecture.default_rope_theta);
  std::optional<int64_t> original;
  if (fields.has("original_max_position_embeddings")) original = fields.integer("original_max_position_embeddings");
  if (fields.has("partial_rotary_factor")) {
    c.rope.rotary_dim = static_cast<int64_t>(static_cast<double>(c.head_dim) * fields.number("partial_rotary_factor"));
  }
  if (architecture.default_window_rope_theta > 0) {
    c.window_rope_theta = fields.number("rope_local_base_freq", architecture.default_window_rope_theta);
  }
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!fields.has(key)) continue;
    if (c.window_rope_theta > 0 && config[key].is_object() && config[key].contains("full_attention")) {
      read_rope_by_kind(config[key], key, file, original, c);
    } else {
      read_rope_scaling(config[key], key, file, original, c);
    }
  }
  if (c.rope.original_context == 0) c.rope.original_context = c.context_length;
  if (c.rope.rotary_dim != 0 && c.rope.rotary_dim != c.head_dim && !architecture.partial_rotary) {
    fields.fail("partial_rotary_factor", "1.0 for " + c.architecture);
  }
}

// Returns which layers have a window. In Qwen models the first max_window_layers layers have none. In SmolLM3 the
// layers without RoPE have one.
std::vector<bool> read_window_layers(const ConfigFields& fields, const Architecture& architecture, ModelConfig& c) {
  std::vector<bool> layers;
  const bool patterned = architecture.window == WindowRule::kPattern;
  const bool used = !patterned && fields.boolean("use_sliding_window", false);
  constexpr int64_t kDefaultWithout = 28;  // default of transformers for Qwen
  const int64_t without = patterned ? 0 : fields.integer("max_window_layers", kDefaultWithout);
  const char* const key = fields.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  const int64_t pattern = patterned ? fields.integer(key, architecture.window_pattern) : 0;
  if (patterned && pattern < 1) fields.fail(key, "a positive number");
  if (fields.has("layer_types")) {
    for (const nlohmann::json& type : fields["layer_types"]) {
      if (type != "full_attention" && type != "sliding_attention") {
        fields.fail("layer_types", "full_attention or sliding_attention for each layer");
      }
      layers.push_back(type == "sliding_attention");
    }
    if (static_cast<int64_t>(layers.size()) != c.n_layers) {
      fields.fail("layer_types", std::to_string(c.n_layers) + " entries, each full_attention or sliding_attention");
    }
    return layers;
  }
  for (int64_t i = 0; i < c.n_layers; ++i) {
    const bool chosen = c.rope_layers.empty() ? i >= without : !c.has_rope(i);
    layers.push_back(patterned ? (i + 1) % pattern != 0 : used && chosen);
  }
  return layers;
}

// Throws ModelError if a key switches windows on.
void refuse_window(const ConfigFields& fields, const ModelConfig& c) {
  if (fields.boolean("use_sliding_window", false)) fields.fail("use_sliding_window", "false for " + c.architecture);
  for (const char* unused : {"sliding_window", "max_window_layers"}) {
    if (fields.has(unused)) fields.integer(unused);
  }
  if (!fields.has("layer_types")) return;
  for (const nlohmann::json& type : fields["layer_types"]) {
    if (type != "full_attention") fields.fail("layer_types", "full_attention for each layer of " + c.architecture);
  }
}

void read_window(const ConfigFields& fields, const Architecture& architecture, ModelConfig& c) {
  if (architecture.window == WindowRule::kNone) return;
  if (architecture.window == WindowRule::kRefused) return refuse_window(fields, c);
  int64_t window = architecture.default_window;
  if (fields.has("sliding_window")) {
    window = fields.integer("sliding_window");
    if (window < 1) fields.fail("sliding_window", "a positive number or null");
  } else if (fields.is_null("sliding_window")) {
    window = 0;
  }
  if (architecture.window == WindowRule::kAlways) {
    c.sliding_window = window;
    return;
  }
  c.window_layers = read_window_layers(fields, architecture, c);
  const auto with = std::count(c.window_layers.begin(), c.window_layers.end(), true);
  if (with == 0) window = 0;
  if (with == 0 || with == c.n_layers) c.window_layers.clear();
  c.sliding_window = window;
}

void read_rope_layers(const ConfigFields& fields, const Architecture& architecture, ModelConfig& c) {
  if (architecture.rope_free_interval == 0) return;
  const int64_t interval = fields.integer("no_rope_layer_interval", architecture.rope_free_interval);
  if (interval < 1) fields.fail("no_rope_layer_interval", "a positive number");
  if (fields.has("no_rope_layers")) {  // The name is misleading: 1 means that the layer has RoPE.
    for (const int64_t has_rope : fields.integers("no_rope_layers", 0, 1)) c.rope_layers.push_back(has_rope != 0);
    if (static_cast<int64_t>(c.rope_layers.size()) != c.n_layers) {
      fields.fail("no_rope_layers", std::to_string(c.n_layers) + " numbers");
    }
    return;
  }
  for (int64_t i = 0; i < c.n_layers; ++i) c.rope_layers.push_back((i + 1) % interval != 0);
}

// Reads which layers have experts. Without keys all have.
void read_expert_layers(const ConfigFields& fields, ModelConfig& c) {
  const int64_t step = fields.integer("decoder_sparse_step", 1);
  if (step < 1) fields.fail("decoder_sparse_step", "a positive number");
  std::vector<bool> layers;
  for (int64_t i = 0; i < c.n_layers; ++i) layers.push_back((i + 1) % step == 0);
  if (fields.has("mlp_only_layers") && !fields["mlp_only_layers"].empty()) {
    for (const int64_t dense : fields.integers("mlp_only_layers", 0, c.n_layers - 1)) {
      layers[static_cast<size_t>(dense)] = false;
    }
  }
  const auto with = std::count(layers.begin(), layers.end(), true);
  if (with == 0) fields.fail("decoder_sparse_step", "a number that gives at least one layer experts");
  if (with < c.n_layers) c.expert_layers = std::move(layers);
}

void read_experts(const ConfigFields& fields, const Architecture& a, ModelConfig& c) {
  if (a.experts == ExpertRule::kNone) return;
  const bool qwen = a.experts != ExpertRule::kMixtral;
  // transformers 5 has one name for both keys.
  const char* const count = qwen && fields.has("num_experts") ? "num_experts" : "num_local_experts";
  c.n_experts = fields.integer(count, a.default_experts);
  if (c.n_experts < 1) fields.fail(count, "a positive number");
  c.experts_per_token = fields.integer("num_experts_per_tok", a.default_experts_per_token);
  if (a.gpt_oss_experts) {
    if (fields.integer("experts_per_token", c.experts_per_token) != c.experts_per_token) {
      fields.fail("experts_per_token", "num_experts_per_tok, " + std::to_string(c.experts_per_token));
    }
    const auto require = [&fields](const char* key, float value) {
      if (static_cast<float>(fields.number(key, value)) != value) fields.fail(key, std::to_string(value));
    };
    require("swiglu_limit", kernels::kClampedSwiGluLimit);
    require("swiglu_alpha", kernels::kClampedSwiGluAlpha);
    fields.integer("initial_context_length", 4096);
  }
  c.expert_size = qwen ? fields.integer("moe_intermediate_size", a.default_expert_size) : c.intermediate_size;
  c.normalized_experts = !qwen || fields.boolean("norm_topk_prob", false);
  if (a.experts == ExpertRule::kQwenShared) {
    c.shared_expert_size = fields.integer("shared_expert_intermediate_size", a.default_shared_expert_size);
  }
  if (qwen) read_expert_layers(fields, c);
}

// Reads the model of texts of a model of texts and images.
ModelConfig parse_text_config(const nlohmann::json& config, const std::string& file, const Architecture& architecture) {
  const ConfigFields fields(config, file);
  if (!fields.has("text_config") || !config["text_config"].is_object()) {
    fields.fail("text_config", "an object with the configuration of the text model");
  }
  nlohmann::json text = config["text_config"];
  text["model_type"] = architecture.text_name;
  for (const char* key : {"eos_token_id", "quantization_config", "tie_word_embeddings"}) {
    if (!text.contains(key) && config.contains(key)) text[key] = config[key];
  }
  return parse_hf_config(text, file);
}

}  // namespace

ModelConfig parse_hf_config(const nlohmann::json& config, const std::string& file) {
  if (!config.is_object()) throw ModelError(file + ": expected an object");
  const ConfigFields fields(config, file);
  ModelConfig c;
  c.architecture = fields.string("model_type");
  const Architecture* architecture = find_architecture(c.architecture);
  if (architecture == nullptr) fields.fail("model_type", expected_architecture(c.architecture));
  const Architecture& a = *architecture;
  if (c.architecture == a.name && !a.text_name.empty()) return parse_text_config(config, file, a);
  c.architecture = a.name;
  // Only LLaMA computes in slices if this key says so. Elsewhere the key is a leftover.
  if (c.architecture == "llama" && fields.integer("pretraining_tp", 1) != 1) fields.fail("pretraining_tp", "1");
  c.activation = a.activation;
  const bool gelu = a.activation == Activation::kGelu;
  const std::string activation = gelu ? "gelu_pytorch_tanh" : "silu";
  // Gemma's published files have "hidden_act": "gelu" or the like, which transformers does not read.
  const char* const activation_key = gelu ? "hidden_activation" : "hidden_act";
  if (gelu && fields.has("hidden_act")) fields.string("hidden_act");
  if (fields.has(activation_key) && fields[activation_key] != activation) {
    fields.fail(activation_key, '"' + activation + '"');
  }
  c.hidden_size = fields.integer("hidden_size");
  c.intermediate_size = fields.integer("intermediate_size");
  c.n_layers = fields.integer("num_hidden_layers");
  const auto or_default = [](int64_t value) { return value > 0 ? std::optional(value) : std::nullopt; };
  c.n_heads = fields.integer("num_attention_heads", or_default(a.default_heads));
  c.n_kv_heads = fields.integer("num_key_value_heads", a.default_kv_heads > 0 ? a.default_kv_heads : c.n_heads);
  c.head_dim = fields.integer("head_dim", a.default_head_dim > 0 ? a.default_head_dim
                                          : c.n_heads > 0        ? c.hidden_size / c.n_heads
                                                                 : 0);
  c.vocab_size = fields.integer("vocab_size", or_default(a.default_vocab));
  c.context_length = fields.integer("max_position_embeddings", a.default_context);
  c.rms_norm_eps = fields.number("rms_norm_eps", a.default_rms_norm_eps);
  c.tie_word_embeddings = fields.boolean("tie_word_embeddings", a.default_tied);
  c.attention_bias = fields.boolean("attention_bias", false);
  if (c.attention_bias && !a.attention_bias_key && !a.qkv_bias)
    fields.fail("attention_bias", "false for " + c.architecture);
  c.attention_bias = c.attention_bias || a.qkv_bias;
  if (a.qkv_bias && !fields.boolean("qkv_bias", true)) fields.fail("qkv_bias", "true for " + c.architecture);
  c.attention_sinks = a.attention_sinks;
  c.router_bias = a.gpt_oss_experts;
  c.mlp_bias = a.gpt_oss_experts || fields.boolean("mlp_bias", false);
  if (c.mlp_bias && !a.mlp_bias_key && !a.gpt_oss_experts) fields.fail("mlp_bias", "false for " + c.architecture);
  c.qk_norm = a.qk_norm;
  c.norm_placement = a.norm_placement;
  if (a.multipliers) {
    c.embedding_multiplier = fields.number("embedding_multiplier", 1.0);
    c.attention_multiplier = fields.number("attention_multiplier", 1.0);
    c.residual_multiplier = fields.number("residual_multiplier", 1.0);
    c.logits_divisor = fields.number("logits_scaling", 1.0);
  }
  if (a.scaled_embeddings) c.embedding_multiplier = std::sqrt(static_cast<double>(c.hidden_size));
  if (a.default_query_scalar > 0) {
    const double scalar = fields.number("query_pre_attn_scalar", static_cast<double>(a.default_query_scalar));
    if (!(scalar > 0)) fields.fail("query_pre_attn_scalar", "a positive number");
    c.attention_multiplier = 1.0 / std::sqrt(scalar);
  }
  if (a.default_attention_soft_cap > 0) {
    const auto cap = [&fields](const char* key, double otherwise) {
      return fields.is_null(key) ? 0.0 : fields.number(key, otherwise);
    };
    c.attention_soft_cap = cap("attn_logit_softcapping", a.default_attention_soft_cap);
    c.logit_soft_cap = cap("final_logit_softcapping", a.default_logit_soft_cap);
  }
  read_rope(fields, config, file, a, c);
  read_rope_layers(fields, a, c);
  read_window(fields, a, c);
  read_experts(fields, a, c);
  if (fields.has("eos_token_id")) c.eos_token_ids = fields.token_ids("eos_token_id");
  // HfWeights applies it.
  if (fields.has("quantization_config")) check_quantization(fields["quantization_config"], file);
  fields.refuse_unread(kHarmlessConfig, kFixedConfig);
  check_config(c, file);
  return c;
}

}  // namespace smartkv
