// Files of integers against loading with the same weights: the same bits.
#include "engine/model/quantize_model.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/weights/gguf.h"
#include "engine/weights/gguf_writer.h"
#include "engine/weights/quantized_rows.h"
#include "engine/weights/safetensors.h"
#include "kernels/half.h"
#include "tests/engine/model/served_llama.h"
#include "tests/weights/weight_files.h"

namespace smartkv {
namespace {

using kernels::WeightType;
using testing::HasSubstr;

std::vector<NamedTensor> tensors_of(const Weights& weights) {
  std::vector<NamedTensor> tensors;
  for (const std::string& name : weights.names()) {
    const std::vector<int64_t> shape = weights.find(name)->shape;
    tensors.push_back({name, shape, weights.read(name, shape)});
  }
  return tensors;
}

// A random model in `folder`/model.
std::filesystem::path write_folder(const Folder& folder, bool tied, const std::vector<NamedTensor>* other_tensors = nullptr) {
  ModelConfig c = tiny_config();
  c.tie_word_embeddings = tied;
  const nlohmann::json config = {{"model_type", "llama"},          {"hidden_size", c.hidden_size},
                                 {"intermediate_size", c.intermediate_size}, {"num_hidden_layers", c.n_layers},
                                 {"num_attention_heads", c.n_heads}, {"num_key_value_heads", c.n_kv_heads},
                                 {"head_dim", c.head_dim},         {"vocab_size", c.vocab_size},
                                 {"max_position_embeddings", 512}, {"tie_word_embeddings", tied}};
  std::filesystem::create_directories(folder.path() / "model");
  folder.write("model/config.json", config.dump());
  folder.write("model/tokenizer.json", "{}");
  write_safetensors(folder.path() / "model/model.safetensors", other_tensors != nullptr ? *other_tensors : tensors_of(TinyWeights(c)),
                    TensorType::kF32);
  return folder.path() / "model";
}

std::span<const std::byte> bytes_of(const std::vector<float>& values) { return std::as_bytes(std::span(values)); }

// The same in llama.cpp's names, whose attn_v tensors are Q4_0.
std::filesystem::path write_gguf(const Folder& folder) {
  const ModelConfig c = tiny_config();
  GgufWriter file(folder.path() / "model.gguf");
  file.add_string("general.architecture", "llama");
  file.add_string("general.name", "tiny");
  const auto number = [&](const std::string& key, int64_t value) { file.add_uint32("llama." + key, static_cast<uint32_t>(value)); };
  number("embedding_length", c.hidden_size);
  number("feed_forward_length", c.intermediate_size);
  number("block_count", c.n_layers);
  number("attention.head_count", c.n_heads);
  number("attention.head_count_kv", c.n_kv_heads);
  number("attention.key_length", c.head_dim);
  number("attention.value_length", c.head_dim);
  number("context_length", c.context_length);
  std::vector<NamedTensor> tensors = tensors_of(TinyWeights(c));
  for (NamedTensor& tensor : tensors) {
    for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
             {"model.layers.", "blk."}, {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"},
             {"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"}, {"self_attn.q_proj", "attn_q"},
             {"self_attn.k_proj", "attn_k"}, {"self_attn.v_proj", "attn_v"}, {"self_attn.o_proj", "attn_output"},
             {"mlp.gate_proj", "ffn_gate"}, {"mlp.up_proj", "ffn_up"}, {"mlp.down_proj", "ffn_down"}}) {
      if (const size_t at = tensor.name.find(from); at != std::string::npos) tensor.name.replace(at, from.size(), to);
    }
    file.add_tensor(tensor.name, tensor.name.find("attn_v") == std::string::npos ? TensorType::kF32 : TensorType::kQ4_0, tensor.shape);
  }
  file.begin();
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name.find("attn_v") == std::string::npos) {
      file.write(bytes_of(tensor.values));
      continue;
    }
    std::vector<std::byte> blocks(tensor.values.size() / 32 * 18, std::byte{0x5a});
    for (size_t at = 0; at < blocks.size(); at += 18) {
      const uint16_t scale = kernels::float_to_half(0.01f * static_cast<float>(1 + at % 7));
      std::memcpy(blocks.data() + at, &scale, sizeof scale);
    }
    file.write(blocks);
  }
  file.end();
  return folder.path() / "model.gguf";
}

void expect_same_answers(const std::filesystem::path& in, const std::filesystem::path& out, const char* storage) {
  const auto original = Weights::open(in), quantized = Weights::open(out);
  Served expected(*original, "bf16", storage), found(*quantized, "auto");
  const std::vector<TokenId> tokens = some_tokens(40, 259, 1);
  EXPECT_EQ(expected.run(tokens, 512), found.run(tokens, 512));
  EXPECT_EQ(expected.model->weight_bytes(), found.model->weight_bytes());
  EXPECT_EQ(quantized->stored_as(), storage);
}

class QuantizeModel : public testing::TestWithParam<const char*> {
 protected:
  void quantize(const std::filesystem::path& in, const std::filesystem::path& out) {
    quantize_model(in, out, std::string(GetParam()) == "int4" ? WeightType::kInt4 : WeightType::kInt8, pool_);
  }
  ThreadPool pool_{2};
};

TEST_P(QuantizeModel, AFolderAnswersAsTheOriginalWithTheseWeights) {
  for (const bool tied : {true, false}) {
    const Folder folder;
    const auto in = write_folder(folder, tied), out = folder.path() / "out";
    quantize(in, out);
    expect_same_answers(in, out, GetParam());
    EXPECT_EQ(read_file(out / "tokenizer.json"), "{}");
    EXPECT_EQ(Weights::open(out)->format(), "GGUF v3 in a folder");
  }
}

TEST_P(QuantizeModel, AGgufFileAnswersAsTheOriginalWithTheseWeights) {
  const Folder folder;
  const auto in = write_gguf(folder), out = folder.path() / "out.gguf";
  quantize(in, out);
  expect_same_answers(in, out, GetParam());
  const GgufFile file = GgufFile::open(out);
  EXPECT_EQ(*file.get_string("general.name"), "tiny");
  EXPECT_EQ(file.tensors().at("blk.0.attn_v.weight").type, TensorType::kQ4_0);  // kept
  EXPECT_EQ(file.tensors().at("token_embd.weight").type, TensorType::kQ8_0);
  EXPECT_EQ(file.tensors().at("blk.0.ffn_up.weight").type, std::string(GetParam()) == "int4" ? TensorType::kQ4_1 : TensorType::kQ8_0);
  EXPECT_EQ(file.tensors().at("blk.0.attn_norm.weight").type, TensorType::kF32);
}

TEST(QuantizeModelIntegers, GptqAndAwqAreKept) {
  ThreadPool pool(2);
  const Folder folder;
  for (const char* name : {"gptq", "gptq_act", "awq"}) {
    const auto in = kFixtures / "integers" / name, out = folder.path() / name;
    quantize_model(in, out, WeightType::kInt4, pool);
    const auto original = Weights::open(in), quantized = Weights::open(out);
    Served expected(*original, "bf16", "int4"), found(*quantized, "auto");
    const std::vector<TokenId> tokens = some_tokens(20, 40, 1);
    EXPECT_EQ(expected.run(tokens, 512), found.run(tokens, 512)) << name;
  }
  // of 8 bits with zeros that Q8_0 does not have
  EXPECT_THAT(error_of([&] { quantize_model(kFixtures / "integers/gptq_8", folder.path() / "8", WeightType::kInt8, pool); }),
              HasSubstr("_proj.weight\": 8-bit integers: expected all zeros to be 128"));
}

INSTANTIATE_TEST_SUITE_P(Types, QuantizeModel, testing::Values("int8", "int4"));

TEST(QuantizeModelErrors, NameWhatIsWrongAndLeaveNothing) {
  const Folder folder;
  ThreadPool pool(2);
  const auto in = write_gguf(folder), taken = folder.path() / "taken.gguf", out = folder.path() / "out";
  const auto error = [&](const std::filesystem::path& from, const std::filesystem::path& to) {
    return error_of([&] { quantize_model(from, to, WeightType::kInt4, pool); });
  };
  folder.write("taken.gguf", "mine");
  EXPECT_THAT(error(in, taken), HasSubstr("taken.gguf: exists already"));
  EXPECT_EQ(read_file(taken), "mine");
  EXPECT_THAT(error(in, out), HasSubstr("expected a name that ends in .gguf"));
  // tiny's down_proj has rows of 48
  EXPECT_THAT(error(kFixtures / "tiny.gguf", folder.path() / "out.gguf"),
              HasSubstr("tensor \"blk.0.ffn_down.weight\": expected rows of a multiple of 32 weights, found 48"));
  std::vector<NamedTensor> tensors = tensors_of(TinyWeights(tiny_config()));
  for (NamedTensor& tensor : tensors) {
    if (tensor.name == "model.layers.1.mlp.up_proj.weight") tensor.values[70] = std::nanf("");
  }
  const auto broken = write_folder(folder, true, &tensors);
  EXPECT_THAT(error(broken, out), HasSubstr("tensor \"model.layers.1.mlp.up_proj.weight\": packed matrix: expected"));
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out.gguf"));
}

TEST(LoadLlama, NamesATensorThatIntegersCannotHold) {
  const Folder folder;
  std::vector<NamedTensor> tensors = tensors_of(TinyWeights(tiny_config()));
  for (NamedTensor& tensor : tensors) {
    if (tensor.name == "model.layers.2.self_attn.k_proj.weight") tensor.values[5] = 1e9f;
  }
  const auto weights = Weights::open(write_folder(folder, true, &tensors));
  EXPECT_THAT(error_of([&] { Served(*weights, "bf16", "int4"); }), HasSubstr("tensor \"model.layers.2.self_attn.k_proj.weight\""));
}

}  // namespace
}  // namespace smartkv
