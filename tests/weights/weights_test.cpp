#include "engine/weights/weights.h"

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  EXPECT_EQ(std::tie(a.hidden_size, a.intermediate_size, a.n_layers, a.n_heads, a.n_kv_heads, a.head_dim, a.vocab_size, a.context_length),
            std::tie(b.hidden_size, b.intermediate_size, b.n_layers, b.n_heads, b.n_kv_heads, b.head_dim, b.vocab_size, b.context_length));
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

TEST(HfWeights, Fp8IsExpandedWithItsScales) {
  const auto expected = Weights::open(kFixtures / "tiny"), found = Weights::open(kFixtures / "tiny_fp8");
  EXPECT_EQ(expected->names(), found->names());
  for (const std::string& name : expected->names()) {
    const TensorView tensor = *expected->find(name);
    const std::vector<float> x = expected->read(name, tensor.shape), y = found->read(name, tensor.shape);
    const bool rounded = found->find(name)->type == TensorType::kF8E4m3;
    EXPECT_EQ(rounded, name.find("_proj.weight") != std::string::npos) << name;
    // Half a unit of 3 mantissa bits; below the normal numbers, of the smallest step at a scale of max / 448.
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i], x[i], rounded ? std::abs(x[i]) / 16 + 1e-4 : 0) << name << " " << i;
  }
}

TEST(HfWeights, Fp8ScalesThatDoNotFitAreNamed) {
  const Folder folder;
  for (const char* name : {"config.json", "model.safetensors"}) folder.write(name, read_file(kFixtures / "tiny_fp8" / name));
  std::string config = read_file(kFixtures / "tiny_fp8/config.json");
  config.replace(config.find("[16, 16]"), 8, "[16, 32]");
  folder.write("config.json", config);
  EXPECT_THAT(error_of([&] { Weights::open(folder.path()); }), HasSubstr("_proj.weight_scale_inv\": expected shape ["));
}

TEST(Weights, NamesWhatIsMissing) {
  EXPECT_THAT(error_of([] { Weights::open("/no/such/model.gguf"); }), HasSubstr("no such file"));
  EXPECT_THAT(error_of([] { Weights::open(kFixtures / "make.py"); }), HasSubstr("expected a .gguf file or a folder"));
  const Folder folder;
  EXPECT_THAT(error_of([&] { Weights::open(folder.path()); }), HasSubstr("config.json: cannot be opened"));
  folder.write("config.json", read_file(kFixtures / "tiny/config.json"));
  EXPECT_THAT(error_of([&] { Weights::open(folder.path()); }), HasSubstr("expected model.safetensors or model.safetensors.index.json, found neither"));
  write_safetensors(folder.path() / "model.safetensors", {{"model.embed_tokens.weight", {40, 32}, std::vector<float>(1280)}}, TensorType::kF32);
  EXPECT_THAT(error_of([&] { Weights::open(folder.path()); }), HasSubstr("tensor \"model.layers.0.input_layernorm.weight\": expected shape [32], found no such tensor"));
  write_safetensors(folder.path() / "model.safetensors", {{"model.embed_tokens.weight", {40, 33}, std::vector<float>(1320)}}, TensorType::kF32);
  EXPECT_THAT(error_of([&] { Weights::open(folder.path()); }), HasSubstr("tensor \"model.embed_tokens.weight\": expected shape [40, 32], found [40, 33]"));
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
  EXPECT_THAT(with("\x05\0\0\0\0\0\0\0llama" + std::string(), "x"), testing::AnyOf(HasSubstr("m.gguf"), HasSubstr("general")));
  EXPECT_THAT(with("llama.block_count", "llama.block_kount"), HasSubstr("key \"llama.block_count\": expected a positive number, found none"));
  EXPECT_THAT(with("blk.1.ffn_up.weight", "blk.1.ffn_xp.weight"), HasSubstr("tensor \"model.layers.1.mlp.up_proj.weight\": expected shape [48, 32], found no such tensor"));
  EXPECT_THAT(with("token_embd.weight", "token_emxd.weight"), HasSubstr("token_embd.weight"));
  EXPECT_THAT(with("llama.rope.freq_base", "llama.rope.freq_bass"), HasSubstr("key \"llama.rope.freq_bass\": expected no such key"));
}

TEST(Gguf, NoKeyIsIgnoredSilently) {
  const Folder folder;
  const auto with = [&](const GgufKeys& keys) {
    folder.write("m.gguf", keys.in(read_file(kFixtures / "tiny.gguf")));
    return error_of([&] { Weights::open(folder.path() / "m.gguf"); });
  };
  EXPECT_EQ(with(GgufKeys().integer("llama.vocab_size", 40).integer("llama.expert_count", 0).string("general.name", "x")), "no error");
  EXPECT_THAT(with(GgufKeys().integer("llama.expert_count", 8)), HasSubstr("key \"llama.expert_count\": expected 0, found 8"));
  EXPECT_THAT(with(GgufKeys().number("llama.attention.max_alibi_bias", 8)), HasSubstr("key \"llama.attention.max_alibi_bias\": expected no such key"));
  EXPECT_THAT(with(GgufKeys().number("llama.logit_scale", 8)), HasSubstr("key \"llama.logit_scale\": expected no such key"));
  EXPECT_THAT(with(GgufKeys().integer("llama.attention.sliding_window", 16)), HasSubstr("key \"llama.attention.sliding_window\": expected 0 for llama, found 16"));
  EXPECT_THAT(with(GgufKeys().integer("llama.rope.dimension_sections", 16)), HasSubstr("llama.rope.dimension_sections"));
  EXPECT_THAT(with(GgufKeys().string("llama.rope.scaling.type", "ntk")), HasSubstr("key \"llama.rope.scaling.type\": expected none, linear, yarn"));
  EXPECT_THAT(with(GgufKeys().number("llama.rope.scaling.yarn_log_multiplier", 0.1f)), HasSubstr("yarn_log_multiplier"));
}

TEST(Weights, TensorsWithoutAPlaceAreNamed) {
  const Folder folder;
  std::string bytes = read_file(kFixtures / "tiny.gguf");
  // q's bias renamed in the second layer: the model would compute without it.
  bytes.replace(bytes.find("blk.1.attn_q.bias"), 17, "blk.1.attn_x.bias");
  folder.write("m.gguf", bytes);
  EXPECT_THAT(error_of([&] { Weights::open(folder.path() / "m.gguf"); }), HasSubstr("self_attn.q_proj.bias"));
  folder.write("config.json", R"({"model_type": "llama", "hidden_size": 2, "intermediate_size": 2, "num_hidden_layers": 1,
    "num_attention_heads": 1, "vocab_size": 2, "tie_word_embeddings": true})");
  std::vector<NamedTensor> tensors = {{"model.embed_tokens.weight", {2, 2}, std::vector<float>(4)}, {"model.norm.weight", {2}, {1, 1}}};
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
    tensors.push_back({"model.layers.0." + std::string(norm) + ".weight", {2}, {1, 1}});
  }
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
    tensors.push_back({"model.layers.0." + std::string(name) + ".weight", {2, 2}, std::vector<float>(4)});
  }
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {1}, {1}});
  write_safetensors(folder.path() / "model.safetensors", tensors, TensorType::kF32);
  EXPECT_EQ(error_of([&] { Weights::open(folder.path()); }), "no error");
  tensors.push_back({"model.layers.0.self_attn.q_norm.weight", {2}, {1, 1}});
  write_safetensors(folder.path() / "model.safetensors", tensors, TensorType::kF32);
  EXPECT_THAT(error_of([&] { Weights::open(folder.path()); }), HasSubstr("tensor \"model.layers.0.self_attn.q_norm.weight\": expected no such tensor"));
}

}  // namespace
}  // namespace smartkv
