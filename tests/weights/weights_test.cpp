#include "engine/weights/weights.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/weights/packed_integers.h"
#include "engine/weights/quantized_rows.h"
#include "engine/weights/safetensors.h"
#include "tests/weights/gguf_keys.h"
#include "tests/weights/weight_files.h"

namespace smartkv {
namespace {

using testing::HasSubstr;

class SameModel : public testing::TestWithParam<const char*> {};

TEST_P(SameModel, GgufAndFoldersGiveTheSameTensors) {
  const auto expected = Weights::open(kFixtures / "tiny"), found = Weights::open(kFixtures / GetParam());
  const ModelConfig &a = expected->config(), &b = found->config();
  EXPECT_EQ(std::tie(a.hidden_size, a.intermediate_size, a.n_layers, a.n_heads, a.n_kv_heads, a.head_dim, a.vocab_size,
                     a.context_length),
            std::tie(b.hidden_size, b.intermediate_size, b.n_layers, b.n_heads, b.n_kv_heads, b.head_dim, b.vocab_size,
                     b.context_length));
  EXPECT_EQ(a.rope.theta, b.rope.theta);
  EXPECT_NEAR(a.rms_norm_eps, b.rms_norm_eps, 1e-9);
  EXPECT_TRUE(b.attention_bias);
  EXPECT_FALSE(b.tie_word_embeddings);
  EXPECT_EQ(expected->names(), found->names());
  for (const std::string& name : expected->names()) {
    const TensorView tensor = *expected->find(name);
    EXPECT_EQ(expected->read(name, tensor.shape), found->read(name, tensor.shape)) << name;
    if (tensor.shape.size() < 2) continue;
    std::vector<float> x(static_cast<size_t>(3 * tensor.row_elements())), y = x;
    expected->read_rows(name, 5, 3, x.data());
    found->read_rows(name, 5, 3, y.data());
    EXPECT_EQ(x, y) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, SameModel, testing::Values("tiny.gguf", "tiny_sharded"));

TEST(HfWeights, EndOfSequenceTokensComeFromBothFiles) {
  EXPECT_EQ(Weights::open(kFixtures / "tiny")->config().eos_token_ids, (std::vector<int32_t>{2, 3, 4}));
  EXPECT_EQ(Weights::open(kFixtures / "tiny_sharded")->format(), "safetensors (2 files)");
}

TEST(HfWeights, NeitherFileNeedsToNameAnEndOfSequenceToken) {
  const Folder folder;
  for (const char* name : {"config.json", "model.safetensors"})
    folder.write(name, read_file(kFixtures / "tiny" / name));
  folder.write("generation_config.json", R"({"eos_token_id": null})");
  const std::vector<int32_t> of_config = Weights::open(folder.path())->config().eos_token_ids;
  nlohmann::json config = nlohmann::json::parse(read_file(kFixtures / "tiny/config.json"));
  EXPECT_EQ(nlohmann::json(of_config),
            config["eos_token_id"].is_array() ? config["eos_token_id"] : nlohmann::json{config["eos_token_id"]});
  config["eos_token_id"] = nullptr;
  folder.write("config.json", config.dump());
  EXPECT_TRUE(Weights::open(folder.path())->config().eos_token_ids.empty());
  folder.write("generation_config.json", R"({"eos_token_id": [7, null]})");
  const auto error = [&] { return error_of([&] { Weights::open(folder.path()); }); };
  const std::string expected =
      "generation_config.json: key \"eos_token_id\": expected an integer from -1 to 2147483647, or an array of them, "
      "found ";
  EXPECT_THAT(error(), HasSubstr(expected + "[7,null]"));
  folder.write("generation_config.json", R"({"eos_token_id": 4294967298})");  // 2 in 32 bits
  EXPECT_THAT(error(), HasSubstr(expected + "4294967298"));
}

// tie_weights() of transformers 5 does the same.
TEST(HfWeights, ATiedModelKeepsAHeadOfItsOwnThatDiffers) {
  const auto untied = Weights::open(kFixtures / "tiny");
  const Folder folder;
  std::string config = read_file(kFixtures / "tiny/config.json");
  config.replace(config.find("\"tie_word_embeddings\": false"), 28, "\"tie_word_embeddings\": true ");
  folder.write("config.json", config);
  const auto opened = [&](const std::function<void(std::vector<NamedTensor>&)>& edit,
                          TensorType type = TensorType::kF32) {
    std::vector<NamedTensor> tensors;
    for (const std::string& name : untied->names()) {
      const std::vector<int64_t> shape = untied->find(name)->shape;
      tensors.push_back({name, shape, untied->read(name, shape)});
    }
    edit(tensors);
    write_safetensors(folder.path() / "model.safetensors", tensors, type);
    return Weights::open(folder.path());
  };
  const auto tensor = [](std::vector<NamedTensor>& tensors, const std::string& name) -> NamedTensor& {
    return *std::ranges::find(tensors, name, &NamedTensor::name);
  };
  const std::vector<int64_t> shape = untied->find("lm_head.weight")->shape;
  const std::vector<float> head = untied->read("lm_head.weight", shape),
                           embedding = untied->read("model.embed_tokens.weight", shape);

  const auto own = opened([](auto&) {});
  EXPECT_FALSE(own->config().tie_word_embeddings);
  EXPECT_EQ(own->read("lm_head.weight", shape), head);
  const auto last_differs = opened([&](auto& tensors) {
    tensor(tensors, "lm_head.weight").values = embedding;
    tensor(tensors, "lm_head.weight").values.back() += 1;
  });
  EXPECT_FALSE(last_differs->config().tie_word_embeddings);

  const auto equal = opened([&](auto& tensors) { tensor(tensors, "lm_head.weight").values = embedding; });
  EXPECT_TRUE(equal->config().tie_word_embeddings);
  EXPECT_FALSE(equal->find("lm_head.weight"));

  const auto head_only = opened([&](auto& tensors) {
    std::erase_if(tensors, [](const auto& t) { return t.name == "model.embed_tokens.weight"; });
  });
  EXPECT_TRUE(head_only->config().tie_word_embeddings);
  EXPECT_EQ(head_only->read("model.embed_tokens.weight", shape), head);

  EXPECT_THAT(error_of([&] {
                opened([&](auto& tensors) {
                  NamedTensor& short_head = tensor(tensors, "lm_head.weight");
                  short_head.values.resize(short_head.values.size() - static_cast<size_t>(shape[1]));
                  --short_head.shape[0];
                });
              }),
              HasSubstr("tensor \"lm_head.weight\": expected shape ["));
}

TEST(HfWeights, Fp8IsExpandedWithItsScales) {
  const auto expected = Weights::open(kFixtures / "tiny"), found = Weights::open(kFixtures / "tiny_fp8");
  EXPECT_EQ(expected->names(), found->names());
  for (const std::string& name : expected->names()) {
    const TensorView tensor = *expected->find(name);
    const std::vector<float> x = expected->read(name, tensor.shape), y = found->read(name, tensor.shape);
    const bool rounded = found->find(name)->type == TensorType::kF8E4m3;
    EXPECT_EQ(rounded, name.find("_proj.weight") != std::string::npos) << name;
    // Half a unit of 3 mantissa bits. Below the normal numbers, half of the smallest step at a scale of max / 448.
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_NEAR(y[i], x[i], rounded ? std::abs(x[i]) / 16 + 1e-4 : 0) << name << " " << i;
  }
}

TEST(HfWeights, Fp8ScalesThatDoNotFitAreNamed) {
  const Folder folder;
  for (const char* name : {"config.json", "model.safetensors"})
    folder.write(name, read_file(kFixtures / "tiny_fp8" / name));
  std::string config = read_file(kFixtures / "tiny_fp8/config.json");
  config.replace(config.find("[16, 16]"), 8, "[16, 32]");
  folder.write("config.json", config);
  EXPECT_THAT(error_of([&] { Weights::open(folder.path()); }), HasSubstr("_proj.weight_scale_inv\": expected shape ["));
}

struct IntegerCase {
  const char *folder, *expanded;
  // Bits of the integer groups of every projection, and of down_proj, which alone has several groups. 0: no groups.
  int bits, down_bits;
};

class IntegerWeights : public testing::TestWithParam<IntegerCase> {};

TEST_P(IntegerWeights, AreWhatTheyStandFor) {
  const auto [folder, expanded, bits, down_bits] = GetParam();
  const auto expected = Weights::open(kFixtures / "integers" / expanded),
             found = Weights::open(kFixtures / "integers" / folder);
  EXPECT_EQ(expected->names(), found->names());
  for (const std::string& name : expected->names()) {
    const TensorView tensor = *found->find(name);
    const std::vector<float> x = expected->read(name, tensor.shape);
    EXPECT_EQ(x, found->read(name, tensor.shape)) << name;
    if (name.find("_proj.") == std::string::npos) continue;
    const std::optional<MatrixFormat> format = kept_format(tensor);
    const int found_bits = !format ? 0 : format->type == kernels::WeightType::kInt4 ? 4 : 8;
    ASSERT_EQ(found_bits, name.find("down_proj") == std::string::npos ? bits : down_bits) << name;
    const std::vector<int32_t>& order = tensor.integers->order;
    EXPECT_EQ(!order.empty(), std::string(folder) == "gptq_act" && tensor.row_elements() > 32) << name;
    for (int64_t row = 0; format && row < tensor.rows(); ++row) {
      QuantizedRow integers;
      read_quantized_row(tensor, row, integers);
      for (size_t i = 0; i < integers.q.size(); ++i) {
        ASSERT_NEAR(integers.scale[i / 32] * integers.q[i] + integers.minimum[i / 32],
                    x[row * tensor.row_elements() + (order.empty() ? static_cast<int32_t>(i) : order[i])], 1e-6)
            << name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, IntegerWeights,
                         testing::Values(IntegerCase{"gptq", "plain", 4, 4}, IntegerCase{"gptq_v2", "plain", 4, 4},
                                         IntegerCase{"awq", "plain", 4, 4}, IntegerCase{"gptq_act", "plain_act", 4, 4},
                                         IntegerCase{"gptq_8", "plain_8", 8, 8}),
                         [](const auto& name) { return std::string(name.param.folder); });

TEST(HfWeights, IntegersThatDoNotFitAreNamed) {
  const Folder folder;
  const auto with = [&](const char* of, const std::string& from, const std::string& to) {
    folder.write("model.safetensors", read_file(kFixtures / "integers" / of / "model.safetensors"));
    std::string config = read_file(kFixtures / "integers" / of / "config.json");
    EXPECT_NE(config.find(from), std::string::npos) << from;
    folder.write("config.json", config.replace(config.find(from), from.size(), to));
    return error_of([&] { Weights::open(folder.path()); });
  };
  EXPECT_THAT(with("gptq", "\"bits\": 4", "\"bits\": 3"),
              HasSubstr("key \"quantization_config.bits\": expected 4 or 8, found 3"));
  EXPECT_THAT(with("gptq", "\"bits\": 4", "\"bits\": 8"), HasSubstr("_proj.qzeros\": expected shape ["));
  EXPECT_THAT(with("gptq", "\"group_size\": 32", "\"group_size\": 16"),
              HasSubstr("_proj.qzeros\": expected shape [4, 4], found [2, 4]"));
  EXPECT_THAT(with("gptq", "\"group_size\": 32", "\"group_size\": 0"), HasSubstr("quantization_config.group_size"));
  EXPECT_THAT(with("gptq", "\"desc_act\"", "\"desc_akt\""), HasSubstr("quantization_config.desc_akt"));
  EXPECT_THAT(with("gptq_v2", "gptq_v2", "marlin"),
              HasSubstr("key \"quantization_config.checkpoint_format\": expected \"gptq\" or \"gptq_v2\""));
  EXPECT_THAT(with("awq", "\"gemm\"", "\"gemv\""),
              HasSubstr("key \"quantization_config.version\": expected \"gemm\", found \"gemv\""));
  EXPECT_THAT(with("awq", "true", "false"), testing::AnyOf(HasSubstr("zero_point"), HasSubstr("lm_head")));
  EXPECT_THAT(with("awq", "\"awq\"", "\"aqlm\""),
              HasSubstr("quant_method\": expected \"fp8\", \"gptq\", \"awq\" or \"mxfp4\", found \"aqlm\""));
  EXPECT_THAT(with("gptq", "quantization_config", "_quantization_config"),
              HasSubstr("expected floats, found I32, and no quantization_config"));
}

TEST(Weights, NamesWhatIsMissing) {
  EXPECT_THAT(error_of([] { Weights::open("/no/such/model.gguf"); }), HasSubstr("no such file"));
  EXPECT_THAT(error_of([] { Weights::open(kFixtures / "make.py"); }), HasSubstr("expected a GGUF file or a folder"));
  const Folder folder;
  EXPECT_THAT(error_of([&] { Weights::open(folder.path()); }), HasSubstr("config.json: cannot be opened"));
  folder.write("config.json", read_file(kFixtures / "tiny/config.json"));
  EXPECT_THAT(error_of([&] { Weights::open(folder.path()); }),
              HasSubstr("expected model.safetensors, model.safetensors.index.json or model.gguf, found none"));
  write_safetensors(folder.path() / "model.safetensors",
                    {{"model.embed_tokens.weight", {40, 32}, std::vector<float>(1280)}}, TensorType::kF32);
  EXPECT_THAT(error_of([&] { Weights::open(folder.path()); }),
              HasSubstr("tensor \"model.layers.0.input_layernorm.weight\": expected shape [32], found no such tensor"));
  write_safetensors(folder.path() / "model.safetensors",
                    {{"model.embed_tokens.weight", {40, 33}, std::vector<float>(1320)}}, TensorType::kF32);
  EXPECT_THAT(error_of([&] { Weights::open(folder.path()); }),
              HasSubstr("tensor \"model.embed_tokens.weight\": expected shape [40, 32], found [40, 33]"));
}

TEST(Gguf, ConfigurationErrorsNameTheKey) {
  const Folder folder;
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string bytes = read_file(kFixtures / "tiny.gguf");
    const size_t at = bytes.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    bytes.replace(at, from.size(), to);
    folder.write("m.gguf", bytes);
    return error_of([&] { Weights::open(folder.path() / "m.gguf"); });
  };
  EXPECT_EQ(with("llama", "llama"), "no error");
  EXPECT_THAT(with("\x05\0\0\0\0\0\0\0llama" + std::string(), "x"),
              testing::AnyOf(HasSubstr("m.gguf"), HasSubstr("general")));
  EXPECT_THAT(with("llama.block_count", "llama.block_kount"),
              HasSubstr("key \"llama.block_count\": expected a positive number, found none"));
  EXPECT_THAT(with("blk.1.ffn_up.weight", "blk.1.ffn_xp.weight"),
              HasSubstr("tensor \"model.layers.1.mlp.up_proj.weight\": expected shape [48, 32], found no such tensor"));
  EXPECT_THAT(with("token_embd.weight", "token_emxd.weight"), HasSubstr("token_embd.weight"));
  EXPECT_THAT(with("llama.rope.freq_base", "llama.rope.freq_bass"),
              HasSubstr("key \"llama.rope.freq_bass\": expected no such key"));
}

TEST(Gguf, NoKeyIsIgnoredSilently) {
  const Folder folder;
  const auto with = [&](const GgufKeys& keys) {
    folder.write("m.gguf", keys.in(read_file(kFixtures / "tiny.gguf")));
    return error_of([&] { Weights::open(folder.path() / "m.gguf"); });
  };
  EXPECT_EQ(
      with(GgufKeys().integer("llama.vocab_size", 40).integer("llama.expert_count", 0).string("general.name", "x")),
      "no error");
  EXPECT_THAT(with(GgufKeys().integer("llama.expert_count", 8)),
              HasSubstr("key \"llama.expert_used_count\": expected a positive number, found none"));
  EXPECT_THAT(with(GgufKeys().number("llama.attention.max_alibi_bias", 8)),
              HasSubstr("key \"llama.attention.max_alibi_bias\": expected no such key"));
  EXPECT_THAT(with(GgufKeys().number("llama.logit_scale", 8)),
              HasSubstr("key \"llama.logit_scale\": expected no such key"));
  EXPECT_THAT(with(GgufKeys().integer("llama.attention.sliding_window", 16)),
              HasSubstr("key \"llama.attention.sliding_window\": expected 0 for llama, found 16"));
  EXPECT_EQ(with(GgufKeys().integer("llama.rope.scaling.original_context_length", 64)), "no error");
  EXPECT_THAT(with(GgufKeys().wide("llama.rope.scaling.original_context_length", -64)),
              HasSubstr("original_context_length\": expected an integer from 0 to 4294967296, found -64"));
  EXPECT_THAT(with(GgufKeys().wide("llama.attention.sliding_window", int64_t{1} << 40)),
              HasSubstr("sliding_window\": expected an integer from 0 to 4294967296, found 1099511627776"));
  EXPECT_THAT(with(GgufKeys().integer("llama.rope.dimension_sections", 16)),
              HasSubstr("llama.rope.dimension_sections"));
  EXPECT_THAT(with(GgufKeys().string("llama.rope.scaling.type", "ntk")),
              HasSubstr("key \"llama.rope.scaling.type\": expected none, linear, yarn"));
  EXPECT_THAT(with(GgufKeys().number("llama.rope.scaling.yarn_log_multiplier", 0.1f)),
              HasSubstr("yarn_log_multiplier"));
}

TEST(Gguf, AnEndTokenIsATokenOrMinusOne) {
  const Folder folder;
  const auto open = [&](int64_t eos) {
    folder.write("m.gguf", GgufKeys().wide("tokenizer.ggml.eos_token_id", eos).in(read_file(kFixtures / "tiny.gguf")));
    return Weights::open(folder.path() / "m.gguf");
  };
  EXPECT_EQ(open(7)->config().eos_token_ids, std::vector<int32_t>{7});
  EXPECT_EQ(open(-1)->config().eos_token_ids, std::vector<int32_t>{-1});
  EXPECT_EQ(open(4294967295)->config().eos_token_ids, std::vector<int32_t>{-1});  // -1 in 32 bits
  for (const int64_t wrong : {int64_t{-2}, int64_t{4294967298}}) {
    EXPECT_THAT(error_of([&] { open(wrong); }),
                HasSubstr("key \"tokenizer.ggml.eos_token_id\": expected a token from 0 to 2147483647, or -1 for none, "
                          "found " +
                          std::to_string(wrong)));
  }
}

TEST(Weights, TensorsWithoutAPlaceAreNamed) {
  const Folder folder;
  std::string bytes = read_file(kFixtures / "tiny.gguf");
  // The bias of q is renamed in the second layer. Without the check, the model would compute without it.
  bytes.replace(bytes.find("blk.1.attn_q.bias"), 17, "blk.1.attn_x.bias");
  folder.write("m.gguf", bytes);
  EXPECT_THAT(error_of([&] { Weights::open(folder.path() / "m.gguf"); }), HasSubstr("self_attn.q_proj.bias"));
  folder.write("config.json",
               R"({"model_type": "llama", "hidden_size": 2, "intermediate_size": 2, "num_hidden_layers": 1,
    "num_attention_heads": 1, "vocab_size": 2, "tie_word_embeddings": true})");
  std::vector<NamedTensor> tensors = {{"model.embed_tokens.weight", {2, 2}, std::vector<float>(4)},
                                      {"model.norm.weight", {2}, {1, 1}}};
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
    tensors.push_back({"model.layers.0." + std::string(norm) + ".weight", {2}, {1, 1}});
  }
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
    tensors.push_back({"model.layers.0." + std::string(name) + ".weight", {2, 2}, std::vector<float>(4)});
  }
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {1}, {1}});
  write_safetensors(folder.path() / "model.safetensors", tensors, TensorType::kF32);
  EXPECT_EQ(error_of([&] { Weights::open(folder.path()); }), "no error");
  tensors.push_back({"model.layers.0.self_attn.q_norm.weight", {2}, {1, 1}});
  write_safetensors(folder.path() / "model.safetensors", tensors, TensorType::kF32);
  EXPECT_THAT(error_of([&] { Weights::open(folder.path()); }),
              HasSubstr("tensor \"model.layers.0.self_attn.q_norm.weight\": expected no such tensor"));
}

}  // namespace
}  // namespace smartkv
