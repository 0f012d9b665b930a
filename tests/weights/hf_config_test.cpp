#include "engine/weights/hf_weights.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/weights/weight_files.h"

namespace smartkv {
namespace {

using testing::HasSubstr;

TEST(HfConfig, NamesTheKey) {
  const nlohmann::json good = nlohmann::json::parse(read_file(kFixtures / "tiny/config.json"));
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = good;
    changed[key] = value;
    return error_of([&] { parse_hf_config(changed, "config.json"); });
  };
  EXPECT_EQ(with("model_type", "llama"), "no error");
  EXPECT_THAT(with("model_type", "gpt2"), HasSubstr("key \"model_type\": expected one of llama, mistral, "));
  EXPECT_THAT(with("model_type", "mistral"),
              HasSubstr("key \"attention_bias\": expected false for mistral, found true"));
  EXPECT_THAT(with("hidden_size", "big"), HasSubstr("key \"hidden_size\": expected an integer, found \"big\""));
  EXPECT_THAT(with("hidden_size", -5), HasSubstr("hidden_size: expected a number from 1"));
  EXPECT_THAT(with("hidden_size", 1e30), HasSubstr("hidden_size"));
  EXPECT_THAT(with("num_attention_heads", 0), HasSubstr("number of heads"));
  EXPECT_THAT(with("num_key_value_heads", 3), HasSubstr("a multiple of the 3 KV heads, found 4"));
  EXPECT_THAT(with("head_dim", 7), HasSubstr("head_dim: expected an even number"));
  EXPECT_THAT(with("eos_token_id", "x"), HasSubstr("eos_token_id"));
  EXPECT_EQ(with("eos_token_id", -1), "no error");
  EXPECT_THAT(with("eos_token_id", {2, 4294967298}),
              HasSubstr("config.json: key \"eos_token_id\": expected an integer from -1 to 2147483647, or an array of "
                        "them, found [2,4294967298]"));
  EXPECT_THAT(with("eos_token_id", UINT64_MAX), HasSubstr("found 18446744073709551615"));  // -1 in 64 bits
  EXPECT_THAT(with("hidden_act", "gelu"), HasSubstr("hidden_act"));
  EXPECT_THAT(with("rope_scaling", 3), HasSubstr("rope_scaling"));
  EXPECT_THAT(with("rope_scaling", {{"type", "ntk"}, {"factor", 2.0}}), HasSubstr("rope_scaling.type"));
  EXPECT_THAT(with("rope_scaling", {{"type", "longrope"}, {"factor", 2.0}}), HasSubstr("rope_scaling.short_factor"));
  EXPECT_THAT(with("partial_rotary_factor", 0.5), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(with("rope_scaling", {{"type", "linear"}}), HasSubstr("rope_scaling.factor"));
  EXPECT_THAT(with("rope_scaling",
                   {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}}),
              HasSubstr("original_max_position_embeddings"));
  EXPECT_THAT(error_of([] { parse_hf_config(nlohmann::json::array(), "config.json"); }),
              HasSubstr("expected an object"));
}

TEST(HfConfig, NamesTheNearestArchitecture) {
  const auto error = [](const char* name) {
    return error_of([&] { parse_hf_config({{"model_type", name}}, "config.json"); });
  };
  EXPECT_THAT(error("qwen3_next"), HasSubstr("expected \"qwen3\" (the nearest) or another of llama, mistral, "));
  EXPECT_THAT(error("qwen3_moe_next"), HasSubstr("expected \"qwen3moe\" (the nearest) or another of llama"));
  EXPECT_THAT(error("Gemma3n"), HasSubstr("expected \"gemma3\" (the nearest)"));
  EXPECT_THAT(error("granitemoehybrid"), HasSubstr("expected \"granitemoe\" (the nearest)"));
  EXPECT_THAT(error("deepseek_v3"), HasSubstr("expected one of llama, mistral, "));
}

TEST(HfConfig, ReadsExperts) {
  nlohmann::json good = nlohmann::json::parse(read_file(kFixtures / "tiny/config.json"));
  good["attention_bias"] = false;
  const auto with = [&](const nlohmann::json& changes) {
    nlohmann::json changed = good;
    changed.update(changes);
    return parse_hf_config(changed, "config.json");
  };
  const ModelConfig mixtral = with({{"model_type", "mixtral"}, {"num_local_experts", 4}});
  EXPECT_EQ(mixtral.n_experts, 4);
  EXPECT_EQ(mixtral.experts_per_token, 2);
  EXPECT_EQ(mixtral.expert_size, mixtral.intermediate_size);
  EXPECT_TRUE(mixtral.normalized_experts);
  const ModelConfig qwen3 = with({{"model_type", "qwen3_moe"}, {"mlp_only_layers", {1}}});
  EXPECT_EQ(qwen3.architecture, "qwen3moe");
  EXPECT_EQ(qwen3.n_experts, 128);
  EXPECT_EQ(qwen3.expert_size, 768);
  EXPECT_FALSE(qwen3.normalized_experts);
  EXPECT_TRUE(qwen3.has_experts(0));
  EXPECT_FALSE(qwen3.has_experts(1));
  EXPECT_TRUE(
      with(
          {{"model_type", "qwen3_moe"}, {"num_local_experts", 4}, {"num_experts_per_tok", 2}, {"norm_topk_prob", true}})
          .normalized_experts);
  const ModelConfig qwen2 = with({{"model_type", "qwen2_moe"}, {"decoder_sparse_step", 2}, {"sliding_window", 0}});
  EXPECT_EQ(qwen2.shared_expert_size, 5632);
  EXPECT_FALSE(qwen2.has_experts(0));
  EXPECT_TRUE(qwen2.has_experts(1));
  const auto error = [&](const nlohmann::json& changes) { return error_of([&] { with(changes); }); };
  EXPECT_THAT(error({{"model_type", "qwen2_moe"}, {"use_sliding_window", true}}),
              HasSubstr("key \"use_sliding_window\": expected false for qwen2moe, found true"));
  EXPECT_THAT(error({{"model_type", "qwen2_moe"}, {"qkv_bias", false}}),
              HasSubstr("key \"qkv_bias\": expected true for qwen2moe, found false"));
  EXPECT_THAT(error({{"model_type", "mixtral"}, {"num_experts_per_tok", 9}}),
              HasSubstr("number of experts of a token: expected a number from 1 to 8, found 9"));
  EXPECT_THAT(error({{"model_type", "qwen3_moe"}, {"mlp_only_layers", {0, 1}}}), HasSubstr("decoder_sparse_step"));
  EXPECT_THAT(error({{"model_type", "llama"}, {"num_local_experts", 8}}), HasSubstr("num_local_experts"));
}

TEST(HfConfig, ReadsGptOss) {
  const nlohmann::json good = {
      {"model_type", "gpt_oss"},
      {"hidden_size", 64},
      {"intermediate_size", 96},
      {"num_hidden_layers", 4},
      {"num_local_experts", 8},
      {"experts_per_token", 4},
      {"attention_bias", true},
      {"swiglu_limit", 7.0},
      {"initial_context_length", 4096},
      {"quantization_config", {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}}}};
  const ModelConfig c = parse_hf_config(good, "config.json");
  EXPECT_EQ(c.architecture, "gpt-oss");
  EXPECT_EQ(c.activation, Activation::kClampedSilu);
  EXPECT_TRUE(c.attention_sinks && c.attention_bias && c.mlp_bias && c.router_bias && c.normalized_experts);
  EXPECT_EQ(c.expert_size, 96);
  EXPECT_EQ(c.sliding_window, 128);
  EXPECT_EQ(c.window_layers, (std::vector<bool>{true, false, true, false}));
  const auto error = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = good;
    changed[key] = value;
    return error_of([&] { parse_hf_config(changed, "config.json"); });
  };
  EXPECT_THAT(error("swiglu_limit", 10), HasSubstr("key \"swiglu_limit\": expected 7.000000, found 10"));
  EXPECT_THAT(error("experts_per_token", 3),
              HasSubstr("key \"experts_per_token\": expected num_experts_per_tok, 4, found 3"));
  EXPECT_THAT(error("quantization_config", {{"quant_method", "mxfp4"}, {"bits", 4}}),
              HasSubstr("key \"quantization_config.bits\""));
}

TEST(HfConfig, NoKeyIsIgnoredSilently) {
  const nlohmann::json good = nlohmann::json::parse(read_file(kFixtures / "tiny/config.json"));
  const auto with = [&](const nlohmann::json& changes) {
    nlohmann::json changed = good;
    changed.update(changes);
    return error_of([&] { parse_hf_config(changed, "config.json"); });
  };
  EXPECT_EQ(with({{"torch_dtype", "bfloat16"},
                  {"transformers_version", "5.0"},
                  {"use_cache", false},
                  {"pretraining_tp", 1},
                  {"bos_token_id", 1},
                  {"_name_or_path", "x"},
                  {"new_key", nullptr}}),
            "no error");
  EXPECT_THAT(with({{"new_key", 3}}), HasSubstr("config.json: key \"new_key\": expected no such key"));
  EXPECT_THAT(with({{"pretraining_tp", 2}}), HasSubstr("key \"pretraining_tp\": expected 1, found 2"));
  EXPECT_THAT(with({{"embedding_multiplier", 12.0}}), HasSubstr("key \"embedding_multiplier\""));
  EXPECT_THAT(with({{"sliding_window", 4096}}), HasSubstr("key \"sliding_window\""));
  EXPECT_THAT(with({{"quantization_config", {{"bits", 4}}}}), HasSubstr("key \"quantization_config.quant_method\""));
  EXPECT_THAT(with({{"quantization_config", {{"quant_method", "bitsandbytes"}, {"bits", 4}}}}),
              HasSubstr("quant_method\": expected \"fp8\", \"gptq\", \"awq\" or \"mxfp4\", found \"bitsandbytes\""));
  EXPECT_THAT(with({{"quantization_config", {{"quant_method", "fp8"}, {"activation_scheme", "static"}}}}),
              HasSubstr("activation_scheme"));
  const auto scaled = [&](const nlohmann::json& scaling) { return with({{"rope_scaling", scaling}}); };
  EXPECT_EQ(scaled({{"type", "linear"}, {"factor", 2.0}, {"finetuned", true}}), "no error");
  EXPECT_THAT(scaled({{"type", "linear"}, {"factor", 2.0}, {"alpha", 3}}), HasSubstr("key \"rope_scaling.alpha\""));
  EXPECT_THAT(scaled({{"type", "linear"}, {"factor", 2.0}, {"mscale", 2}}), HasSubstr("key \"rope_scaling.mscale\""));
  EXPECT_THAT(
      scaled({{"type", "dynamic"}, {"factor", 2.0}, {"original_max_position_embeddings", 64}}),
      HasSubstr(
          "key \"rope_scaling.original_max_position_embeddings\": expected max_position_embeddings, 128, found 64"));
}

TEST(HfConfig, SeedOssHasItsDefaultsAndNoBiasOnTheOutputOfAttention) {
  nlohmann::json good = nlohmann::json::parse(read_file(kFixtures / "tiny/config.json"));
  good.update({{"model_type", "seed_oss"}, {"attention_bias", true}, {"residual_dropout", 0.1}});
  for (const char* key : {"head_dim", "max_position_embeddings"}) good.erase(key);
  const auto with = [&](bool bias) {
    nlohmann::json changed = good;
    changed["attention_out_bias"] = bias;
    return parse_hf_config(changed, "config.json");
  };
  const ModelConfig config = with(false);
  EXPECT_TRUE(config.attention_bias);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.context_length, 524288);
  EXPECT_THAT(error_of([&] { with(true); }), HasSubstr("key \"attention_out_bias\": expected false, found true"));
}

// The published configuration of a model of texts and images leaves out what transformers knows.
TEST(HfConfig, GemmasTextModelIsRead) {
  const nlohmann::json text = {
      {"model_type", "gemma3_text"}, {"hidden_size", 2560},
      {"intermediate_size", 10240},  {"num_hidden_layers", 34},
      {"sliding_window", 1024},      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}};
  const nlohmann::json whole = {{"model_type", "gemma3"},
                                {"eos_token_id", {1, 106}},
                                {"mm_tokens_per_image", 256},
                                {"vision_config", {{"model_type", "siglip_vision_model"}}},
                                {"text_config", text}};
  const ModelConfig c = parse_hf_config(whole, "config.json");
  EXPECT_EQ(c.architecture, "gemma3");
  EXPECT_EQ(std::vector({c.n_heads, c.n_kv_heads, c.head_dim, c.vocab_size, c.context_length}),
            (std::vector<int64_t>{8, 4, 256, 262208, 131072}));
  EXPECT_EQ(c.eos_token_ids, (std::vector<int32_t>{1, 106}));
  EXPECT_EQ(c.n_full_layers(), 5);
  EXPECT_EQ(std::vector({c.window(4), c.window(5)}), (std::vector<int64_t>{1024, 0}));
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.rope.factor, 8.0);
  EXPECT_EQ(c.window_rope().theta, 10000.0);
  EXPECT_EQ(c.window_rope().scaling, RopeScaling::kNone);
  EXPECT_NEAR(c.attention_multiplier, 1.0 / 16, 1e-12);
  EXPECT_NEAR(c.embedding_multiplier, 50.5964425627, 1e-9);
  EXPECT_EQ(c.activation, Activation::kGelu);
  EXPECT_TRUE(c.tie_word_embeddings);

  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = text;
    changed[key] = value;
    return error_of([&] { parse_hf_config(changed, "config.json"); });
  };
  EXPECT_EQ(with("final_logit_softcapping", nullptr), "no error");
  EXPECT_THAT(with("final_logit_softcapping", 30.0), HasSubstr("key \"final_logit_softcapping\""));
  EXPECT_THAT(with("use_bidirectional_attention", true), HasSubstr("key \"use_bidirectional_attention\""));
  EXPECT_THAT(with("hidden_activation", "gelu"), HasSubstr("expected \"gelu_pytorch_tanh\", found \"gelu\""));
  EXPECT_THAT(with("query_pre_attn_scalar", 0), HasSubstr("query_pre_attn_scalar"));
  EXPECT_THAT(with("layer_types", nlohmann::json::array({"chunked_attention"})),
              HasSubstr("full_attention or sliding"));
  EXPECT_THAT(error_of([] {
                parse_hf_config({{"model_type", "gemma3"}}, "config.json");
              }),
              HasSubstr("key \"text_config\": expected an object"));
}

TEST(HfConfig, SlidingWindowsAreReadAsTransformersReadsThem) {
  nlohmann::json good = nlohmann::json::parse(read_file(kFixtures / "tiny/config.json"));
  good.erase("attention_bias");
  const auto window = [&](const nlohmann::json& changes) {
    nlohmann::json changed = good;
    changed.update(changes);
    return parse_hf_config(changed, "config.json").sliding_window;
  };
  EXPECT_EQ(window({{"model_type", "mistral"}}), 4096);
  EXPECT_EQ(window({{"model_type", "mistral"}, {"sliding_window", nullptr}}), 0);
  EXPECT_EQ(window({{"model_type", "mistral"}, {"sliding_window", 64}}), 64);
  EXPECT_EQ(window({{"model_type", "qwen2"}, {"sliding_window", 64}}), 0);
  EXPECT_EQ(
      window({{"model_type", "qwen2"}, {"sliding_window", 64}, {"use_sliding_window", true}, {"max_window_layers", 1}}),
      64);
  EXPECT_EQ(
      window({{"model_type", "qwen2"}, {"sliding_window", 64}, {"use_sliding_window", true}, {"max_window_layers", 2}}),
      0);
  EXPECT_EQ(window({{"model_type", "qwen3"},
                    {"sliding_window", 64},
                    {"use_sliding_window", true},
                    {"layer_types", {"full_attention", "sliding_attention"}}}),
            64);
  // By default, only layers from 28 on have a window.
  EXPECT_EQ(window({{"model_type", "qwen2"}, {"sliding_window", 64}, {"use_sliding_window", true}}), 0);
  EXPECT_EQ(window({{"model_type", "phi3"}}), 0);
  EXPECT_EQ(window({{"model_type", "phi3"}, {"sliding_window", 64}}), 64);

  const auto windows = [&](const nlohmann::json& changes) {
    nlohmann::json changed = good;
    changed.update({{"sliding_window", 64}, {"use_sliding_window", true}});
    changed.update(changes);
    const ModelConfig config = parse_hf_config(changed, "config.json");
    return std::pair(config.window(0), config.window(1));
  };
  const std::pair<int64_t, int64_t> second{0, 64}, both{64, 64};
  EXPECT_EQ(windows({{"model_type", "qwen2"}, {"max_window_layers", 1}}), second);
  EXPECT_EQ(windows({{"model_type", "qwen2"}, {"max_window_layers", 0}}), both);
  EXPECT_EQ(windows({{"model_type", "qwen3"}, {"layer_types", {"full_attention", "sliding_attention"}}}), second);
  EXPECT_EQ(windows({{"model_type", "smollm3"}, {"no_rope_layers", {1, 0}}}), second);
  EXPECT_THAT(error_of([&] {
                windows({{"model_type", "qwen3"}, {"layer_types", {"full_attention"}}});
              }),
              HasSubstr("key \"layer_types\": expected 2 entries, each full_attention or sliding_attention"));
}

TEST(HfConfig, ReadsEveryRopeScaling) {
  const nlohmann::json good = nlohmann::json::parse(read_file(kFixtures / "tiny/config.json"));
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = good;
    changed[key] = value;
    return parse_hf_config(changed, "config.json").rope;
  };
  EXPECT_EQ(with("rope_scaling", nullptr).scaling, RopeScaling::kNone);
  EXPECT_EQ(with("rope_scaling", {{"type", "linear"}, {"factor", 2.0}}).scaling, RopeScaling::kLinear);
  EXPECT_EQ(with("rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}).scaling, RopeScaling::kDynamic);
  const RopeConfig llama3 = with("rope_scaling", {{"rope_type", "llama3"},
                                                  {"factor", 8.0},
                                                  {"low_freq_factor", 1.0},
                                                  {"high_freq_factor", 4.0},
                                                  {"original_max_position_embeddings", 8192}});
  EXPECT_EQ(llama3.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(llama3.original_context, 8192);
  EXPECT_EQ(llama3.factor, 8.0);
  const RopeConfig yarn =
      with("rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 7.0}, {"factor", 4.0}, {"beta_fast", 16}});
  EXPECT_EQ(yarn.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn.theta, 7.0);
  EXPECT_EQ(yarn.beta_fast, 16.0);
}

}  // namespace
}  // namespace smartkv
