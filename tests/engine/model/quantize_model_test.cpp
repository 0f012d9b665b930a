// A file that was quantized before must give the same bits as a model that is quantized when it is loaded.
#include "engine/model/quantize_model.h"

#include <cmath>
#include <functional>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/model/llama_footprint.h"
#include "engine/text/chat_template_files.h"
#include "engine/weights/gguf.h"
#include "engine/weights/gguf_writer.h"
#include "engine/weights/projections.h"
#include "engine/weights/quantized_rows.h"
#include "engine/weights/safetensors.h"
#include "kernels/half.h"
#include "tests/engine/model/served_llama.h"
#include "tests/engine/model/served_policy.h"
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

// Writes a random model to `folder`/model and returns its path.
std::filesystem::path write_folder(const Folder& folder, bool tied,
                                   const std::vector<NamedTensor>* other_tensors = nullptr) {
  ModelConfig c = tiny_config();
  c.tie_word_embeddings = tied;
  const nlohmann::json config = {
      {"model_type", "llama"},           {"hidden_size", c.hidden_size},     {"intermediate_size", c.intermediate_size},
      {"num_hidden_layers", c.n_layers}, {"num_attention_heads", c.n_heads}, {"num_key_value_heads", c.n_kv_heads},
      {"head_dim", c.head_dim},          {"vocab_size", c.vocab_size},       {"max_position_embeddings", 512},
      {"tie_word_embeddings", tied}};
  std::filesystem::create_directories(folder.path() / "model");
  folder.write("model/config.json", config.dump());
  folder.write("model/tokenizer.json", "{}");
  write_safetensors(folder.path() / "model/model.safetensors",
                    other_tensors != nullptr ? *other_tensors : tensors_of(TinyWeights(c)), TensorType::kF32);
  return folder.path() / "model";
}

std::span<const std::byte> bytes_of(const std::vector<float>& values) { return std::as_bytes(std::span(values)); }

bool is_expert(const std::string& name) {
  return name.find("_exps.") != std::string::npos || name.find(".experts.") != std::string::npos;
}

using TypeOf = std::function<TensorType(const std::string& name)>;

TensorType q4_0_values(const std::string& name) {
  return name.find("attn_v") == std::string::npos ? TensorType::kF32 : TensorType::kQ4_0;
}

// Returns blocks of random integers with factors around 1 % of the range.
std::vector<std::byte> random_blocks(TensorType type, int64_t elements, std::mt19937& generator) {
  const TensorTypeInfo& info = tensor_type_info(type);
  std::vector<std::byte> bytes(static_cast<size_t>(elements / info.block_elements * info.block_bytes));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator());
  struct Factors {
    std::vector<size_t> at;
    float unit;
  };
  const std::map<TensorType, Factors> known = {
      {TensorType::kQ4_0, {{0}, 0.01f}},      {TensorType::kQ5_0, {{0}, 5e-3f}},
      {TensorType::kQ4_1, {{0, 2}, 5e-3f}},   {TensorType::kQ5_1, {{0, 2}, 3e-3f}},
      {TensorType::kQ2_K, {{80, 82}, 1e-3f}}, {TensorType::kQ3_K, {{108}, 1e-3f}},
      {TensorType::kQ4_K, {{0, 2}, 2e-4f}},   {TensorType::kQ5_K, {{0, 2}, 1e-4f}},
      {TensorType::kQ6_K, {{208}, 3e-5f}},    {TensorType::kIq4Xs, {{0}, 3e-5f}},
      {TensorType::kIq1M, {{}, 0}},           {TensorType::kTq1_0, {{52}, 0.05f}},
      {TensorType::kTq2_0, {{64}, 0.05f}},    {TensorType::kIq4Nl, {{0}, 5e-4f}},
      {TensorType::kMxfp4, {{}, 0}},          {TensorType::kNvfp4, {{}, 0}},
      {TensorType::kIq2Xxs, {{0}, 1e-3f}},    {TensorType::kIq2Xs, {{0}, 1e-3f}},
      {TensorType::kIq2S, {{0}, 1e-3f}},      {TensorType::kIq3Xxs, {{0}, 5e-4f}},
      {TensorType::kIq3S, {{0}, 5e-4f}},      {TensorType::kIq1S, {{0}, 0.01f}}};
  const auto found = known.find(type);
  const std::vector<size_t> factors = found == known.end() ? std::vector<size_t>{0} : found->second.at;
  const float unit = found == known.end() ? 3e-5f : found->second.unit;
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(info.block_bytes)) {
    for (const size_t factor : factors) {
      const uint16_t half = kernels::float_to_half(unit * static_cast<float>(1 + generator() % 7));
      std::memcpy(bytes.data() + at + factor, &half, sizeof half);
    }
    if (type == TensorType::kMxfp4) bytes[at] = static_cast<std::byte>(120 + generator() % 3);
    for (size_t i = 0; type == TensorType::kNvfp4 && i < 4; ++i)
      bytes[at + i] = static_cast<std::byte>(generator() % 16);
    for (size_t i = 0; type == TensorType::kIq1M && i < 4; ++i) {  // the factor 2^-7, f16 0x2000, the upper digits last
      std::byte& upper = bytes[at + 49 + 2 * i];
      upper = (upper & std::byte{15}) | static_cast<std::byte>(i == 3 ? 0x20 : 0);
    }
  }
  return bytes;
}

// Joins the projections of all experts of a layer, as llama.cpp has them.
void join_experts(const ModelConfig& c, std::vector<NamedTensor>& tensors) {
  std::map<std::string, NamedTensor> joined;
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    for (const auto& [prefix, size] : mlps_of(c, layer)) {
      for (const std::string projection : {"gate", "up", "down"}) {
        const auto found = std::ranges::find(tensors, prefix + projection + "_proj.weight", &NamedTensor::name);
        NamedTensor& all = joined["blk." + std::to_string(layer) + ".ffn_" + projection + "_exps.weight"];
        all.shape = {c.n_experts, found->shape[0], found->shape[1]};
        all.values.insert(all.values.end(), found->values.begin(), found->values.end());
        tensors.erase(found);
      }
    }
  }
  for (auto& [name, tensor] : joined) {
    tensor.name = name;
    tensors.push_back(std::move(tensor));
  }
}

// Writes the same model under llama.cpp's names. Tensors that are not F32 get random blocks of their own.
std::filesystem::path write_gguf(const Folder& folder, const ModelConfig& c = tiny_config(),
                                 const TypeOf& type_of = q4_0_values) {
  GgufWriter file(folder.path() / "model.gguf");
  file.add_string("general.architecture", "llama");
  file.add_string("general.name", "tiny");
  const auto number = [&](const std::string& key, int64_t value) {
    file.add_uint32("llama." + key, static_cast<uint32_t>(value));
  };
  number("embedding_length", c.hidden_size);
  number("feed_forward_length", c.intermediate_size);
  number("block_count", c.n_layers);
  number("attention.head_count", c.n_heads);
  number("attention.head_count_kv", c.n_kv_heads);
  number("attention.key_length", c.head_dim);
  number("attention.value_length", c.head_dim);
  number("context_length", c.context_length);
  number("expert_count", c.n_experts);
  number("expert_used_count", c.experts_per_token);
  std::vector<NamedTensor> tensors = tensors_of(TinyWeights(c));
  if (c.n_experts > 0) join_experts(c, tensors);
  for (NamedTensor& tensor : tensors) {
    for (const auto& [from, to] :
         std::vector<std::pair<std::string, std::string>>{{"model.layers.", "blk."},
                                                          {"model.embed_tokens", "token_embd"},
                                                          {"model.norm", "output_norm"},
                                                          {"input_layernorm", "attn_norm"},
                                                          {"post_attention_layernorm", "ffn_norm"},
                                                          {"self_attn.q_proj", "attn_q"},
                                                          {"self_attn.k_proj", "attn_k"},
                                                          {"self_attn.v_proj", "attn_v"},
                                                          {"self_attn.o_proj", "attn_output"},
                                                          {"mlp.gate.", "ffn_gate_inp."},
                                                          {"mlp.gate_proj", "ffn_gate"},
                                                          {"mlp.up_proj", "ffn_up"},
                                                          {"mlp.down_proj", "ffn_down"}}) {
      if (const size_t at = tensor.name.find(from); at != std::string::npos) tensor.name.replace(at, from.size(), to);
    }
    file.add_tensor(tensor.name, type_of(tensor.name), tensor.shape);
    if (type_of(tensor.name) == TensorType::kNvfp4 && tensor.name.starts_with("blk.")) {
      file.add_tensor(tensor.name.substr(0, tensor.name.rfind('.')) + ".scale", TensorType::kF32,
                      std::vector<int64_t>{1});
    }
  }
  file.begin();
  std::mt19937 generator(1);
  for (const NamedTensor& tensor : tensors) {
    if (type_of(tensor.name) == TensorType::kF32) {
      file.write(bytes_of(tensor.values));
    } else {
      file.write(random_blocks(type_of(tensor.name), static_cast<int64_t>(tensor.values.size()), generator));
      const std::vector<float> factor = {0.25f + static_cast<float>(generator() % 4)};
      if (type_of(tensor.name) == TensorType::kNvfp4 && tensor.name.starts_with("blk.")) file.write(bytes_of(factor));
    }
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

// All files with the tokenizer, the chat templates and the sampling defaults are copied, and nothing else.
TEST(QuantizeModelFolder, KeepsItsTokenizerAndTemplates) {
  const Folder folder;
  const auto in = write_folder(folder, true), out = folder.path() / "out";
  const std::vector<std::string> kept = {"tokenizer.model",
                                         "tokenizer_config.json",
                                         "added_tokens.json",
                                         "special_tokens_map.json",
                                         "chat_template.jinja",
                                         "generation_config.json",
                                         "additional_chat_templates/tool_use.jinja",
                                         "additional_chat_templates/rag.jinja"};
  std::filesystem::create_directory(in / "additional_chat_templates");
  for (const std::string& name : kept)
    folder.write("model/" + name, name.ends_with(".json") ? R"({"chat_template": "c"})" : "of " + name);
  for (const char* name : {"README.md", "additional_chat_templates/notes.txt"})
    folder.write(std::string("model/") + name, "x");
  ThreadPool pool(2);
  quantize_model(in, out, WeightType::kInt8, pool);
  for (const std::string& name : kept) {
    ASSERT_TRUE(std::filesystem::exists(out / name)) << name;
    EXPECT_EQ(read_file(out / name), read_file(in / name)) << name;
  }
  EXPECT_FALSE(std::filesystem::exists(out / "README.md") ||
               std::filesystem::exists(out / "additional_chat_templates/notes.txt"));
  EXPECT_EQ(load_chat_templates(*Weights::open(out), out).sources, load_chat_templates(*Weights::open(in), in).sources);
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
  EXPECT_EQ(file.tensors().at("blk.0.ffn_up.weight").type,
            std::string(GetParam()) == "int4" ? TensorType::kQ4_1 : TensorType::kQ8_0);
  EXPECT_EQ(file.tensors().at("blk.0.attn_norm.weight").type, TensorType::kF32);
}

// Types as in llama.cpp's Q4_K_M: some of v, down and the embedding in 6 bits, the rest in 4.
TEST(QuantizeModelIntegers, CodedBlocksAreServedAsTheFileHasThem) {
  const Folder folder;
  ModelConfig c = tiny_config();
  c.hidden_size = c.intermediate_size = 256;
  c.head_dim = 64;
  const TypeOf type_of = [](const std::string& name) {
    if (name.find("norm") != std::string::npos) return TensorType::kF32;
    const bool more = name.find("blk.0") != std::string::npos &&
                      (name.find("attn_v") != std::string::npos || name.find("ffn_down") != std::string::npos);
    return more || name == "token_embd.weight" ? TensorType::kQ6_K : TensorType::kQ4_K;
  };
  const auto in = write_gguf(folder, c, type_of);
  const auto weights = Weights::open(in);
  const std::vector<TokenId> tokens = some_tokens(40, c.vocab_size, 1);
  Served expanded(*weights, "f32", "f32"), served(*weights, "bf16", "file"), int4(*weights, "bf16", "int4");
  const std::vector<float> found = served.run(tokens, 512);
  EXPECT_LT(relative_error(found, expanded.run(tokens, 512)), 0.03);  // inputs are rounded to 8 bits
  // The first layer has q and k apart from v, the other layers have them together.
  const int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
  const auto bits = [&](double four, double six) {
    return static_cast<int64_t>((four * 4.625 + six * 6.625) * 256 / 8);
  };
  const int64_t rest = bits(static_cast<double>(2 * q + kv + 2 * 256), 0);  // q, k, o, gate, up
  const int64_t norms = (2 * c.n_layers + 1) * 256 * 4;
  EXPECT_EQ(served.model->weight_bytes(), c.n_layers * rest +
                                              bits(0, static_cast<double>(kv + 256 + (c.vocab_size + 15) / 16 * 16)) +
                                              (c.n_layers - 1) * bits(static_cast<double>(kv + 256), 0) + norms);
  // int4 converts 6-bit tensors to 4 bits, except the embedding.
  EXPECT_LT(int4.model->weight_bytes(), served.model->weight_bytes());
  for (const char* storage : {"file", "int4", "int8"}) {
    const ModelOptions options{.weights = from_name<WeightFormat>(storage).value()};
    ThreadPool pool(1);
    EXPECT_EQ(llama_weight_bytes(*weights, options), load_llama(*weights, options, pool)->weight_bytes()) << storage;
  }
  ThreadPool pool(2);
  quantize_model(in, folder.path() / "int8.gguf", WeightType::kInt8, pool, true);
  expect_same_answers(in, folder.path() / "int8.gguf", "int8");
  const GgufFile file = GgufFile::open(folder.path() / "int8.gguf");
  for (const auto& [name, view] : file.tensors()) EXPECT_EQ(view.type, type_of(name)) << name;
  quantize_model(in, folder.path() / "int4.gguf", WeightType::kInt4, pool, true);
  expect_same_answers(in, folder.path() / "int4.gguf", "int4");
}

// Every quantized type is served at its own size, with the results of its weights in f32 except for the rounding of
// inputs to 8 bits.
TEST(LoadLlama, EveryTypeOfGgufKeepsItsSize) {
  ModelConfig c = tiny_config();
  c.hidden_size = c.intermediate_size = 256;
  c.head_dim = 64;
  const std::vector<TokenId> tokens = some_tokens(24, c.vocab_size, 1);
  for (const TensorTypeInfo& info : tensor_types()) {
    if (info.ggml < 0 || info.block_elements == 1) continue;
    SCOPED_TRACE(info.name);
    const Folder folder;
    const auto weights = Weights::open(write_gguf(folder, c, [&](const std::string& name) {
      return name.find("norm") == std::string::npos ? info.type : TensorType::kF32;
    }));
    int64_t bytes = 0;
    for (const std::string& name : weights->names()) {
      const TensorView view = *weights->find(name);
      // Rows of the vocabulary are packed by 16.
      bytes += view.bytes() / view.rows() * (view.shape.size() == 1 ? 1 : (view.rows() + 15) / 16 * 16);
    }
    Served served(*weights, "auto"), expanded(*weights, "f32", "f32"), rounded(*weights, "bf16");
    EXPECT_LE(static_cast<double>(served.model->weight_bytes()), 1.1 * static_cast<double>(bytes));
    EXPECT_EQ(llama_weight_bytes(*weights, {}), served.model->weight_bytes());
    const std::vector<float> exact = expanded.run(tokens, 512);
    const double error = relative_error(served.run(tokens, 512), exact);
    EXPECT_GT(error, 0.0);
    EXPECT_LT(error, 5 * relative_error(rounded.run(tokens, 512), exact));  // inputs in 8 bits
  }
}

// The same of experts, and their results have the same bits in any batch.
TEST(LoadLlama, ExpertsOfEveryTypeOfGgufKeepTheirSizeAndBits) {
  ModelConfig c = tiny_config();
  c.hidden_size = c.intermediate_size = c.expert_size = 256;
  c.head_dim = 64;
  c.n_layers = 1;
  c.n_experts = 4;
  c.experts_per_token = 2;
  const std::vector<TokenId> tokens = some_tokens(24, c.vocab_size, 1);
  for (const TensorTypeInfo& info : tensor_types()) {
    if (info.ggml < 0 || info.block_elements == 1 || info.type == TensorType::kNvfp4) continue;
    SCOPED_TRACE(info.name);
    const Folder folder;
    const auto weights = Weights::open(
        write_gguf(folder, c, [&](const std::string& name) { return is_expert(name) ? info.type : TensorType::kF32; }));
    EXPECT_EQ(weights->config().architecture, "mixtral");
    int64_t bytes = 0;
    for (const std::string& name : weights->names()) {
      const TensorView view = *weights->find(name);
      if (is_expert(name)) bytes += view.bytes();
    }
    Served served(*weights, "auto"), expanded(*weights, "bf16", "bf16");
    const int64_t saved = expanded.model->weight_bytes() - served.model->weight_bytes();
    const int64_t all = 3 * c.n_experts * 256 * 256 * 2;  // in bf16
    EXPECT_LE(static_cast<double>(all - saved), 1.1 * static_cast<double>(bytes));
    EXPECT_EQ(llama_weight_bytes(*weights, {}), served.model->weight_bytes());
    const std::vector<float> logits = served.run(tokens, 512);
    for (const int64_t chunk : {1, 5}) EXPECT_EQ(served.run(tokens, chunk), logits) << chunk;
    EXPECT_LT(relative_error(logits, expanded.run(tokens, 512)), 0.1);
  }
}

TEST(QuantizeModelIntegers, ExpertsAreQuantizedAndRoutersAreNot) {
  const Folder folder;
  ModelConfig c = tiny_config();
  c.n_experts = 3;
  c.experts_per_token = 1;
  c.expert_size = c.intermediate_size;
  const auto in = write_gguf(folder, c, [](const std::string&) { return TensorType::kF32; });
  ThreadPool pool(2);
  for (const auto& [type, stored] :
       {std::pair(WeightType::kInt8, TensorType::kQ8_0), {WeightType::kInt4, TensorType::kQ4_1}}) {
    const auto out = folder.path() / (std::string(kernels::name(type)) + ".gguf");
    quantize_model(in, out, type, pool);
    expect_same_answers(in, out, std::string(kernels::name(type)).c_str());
    const GgufFile file = GgufFile::open(out);
    EXPECT_EQ(file.tensors().at("blk.0.ffn_up_exps.weight").type, stored);
    EXPECT_EQ(file.tensors().at("blk.0.ffn_up_exps.weight").shape.size(), 3u);
    EXPECT_EQ(file.tensors().at("blk.0.ffn_gate_inp.weight").type, TensorType::kF32);
  }
}

// Projections that share a matrix may have different types.
TEST(LoadLlama, MixedTypesKeepTheirSizes) {
  ModelConfig c = tiny_config();
  c.hidden_size = c.intermediate_size = 256;
  c.head_dim = 64;
  const Folder folder;
  const auto weights = Weights::open(write_gguf(folder, c, [](const std::string& name) {
    if (name.find("norm") != std::string::npos) return TensorType::kF32;
    return name.find("ffn_up") == std::string::npos ? TensorType::kQ4_K : TensorType::kIq3Xxs;
  }));
  const std::vector<TokenId> tokens = some_tokens(24, c.vocab_size, 1);
  Served served(*weights, "auto"), expanded(*weights, "f32", "f32");
  EXPECT_LT(relative_error(served.run(tokens, 512), expanded.run(tokens, 512)), 0.03);
  EXPECT_EQ(llama_weight_bytes(*weights, {}), served.model->weight_bytes());
}

TEST(LoadLlama, FloatsOf8BitsKeepTheirSize) {
  const auto weights = Weights::open(kFixtures / "tiny_fp8");
  const std::vector<TokenId> tokens = some_tokens(20, 40, 1);
  Served served(*weights, "auto"), expanded(*weights, "f32", "f32"), rounded(*weights, "bf16");
  const std::vector<float> exact = expanded.run(tokens, 512);
  EXPECT_LT(relative_error(served.run(tokens, 512), exact), 1.5 * relative_error(rounded.run(tokens, 512), exact));
}

TEST(QuantizeModelIntegers, GptqAndAwqAreKept) {
  ThreadPool pool(2);
  const Folder folder;
  for (const char* name : {"gptq", "awq"}) {
    const auto in = kFixtures / "integers" / name, out = folder.path() / name;
    quantize_model(in, out, WeightType::kInt4, pool);
    const auto original = Weights::open(in), quantized = Weights::open(out);
    Served expected(*original, "bf16", "int4"), found(*quantized, "auto");
    const std::vector<TokenId> tokens = some_tokens(20, 40, 1);
    EXPECT_EQ(expected.run(tokens, 512), found.run(tokens, 512)) << name;
  }
  // GPTQ with act-order is served in groups.
  const auto act = Weights::open(kFixtures / "integers/gptq_act");
  const std::vector<TokenId> tokens = some_tokens(20, 40, 1);
  Served kept(*act, "auto"), expanded(*act, "f32", "f32");
  EXPECT_LT(relative_error(kept.run(tokens, 512), expanded.run(tokens, 512)), 0.02);
  // These are 8-bit integers with zeros that Q8_0 does not have.
  EXPECT_THAT(error_of([&] {
                quantize_model(kFixtures / "integers/gptq_8", folder.path() / "8", WeightType::kInt8, pool, true);
              }),
              HasSubstr("_proj.weight\": 8-bit integers: expected all zero points to be 128"));
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
  EXPECT_THAT(error(in, taken), HasSubstr("taken.gguf: already exists"));
  EXPECT_EQ(read_file(taken), "mine");
  EXPECT_THAT(error(in, out), HasSubstr("expected a name that ends in .gguf"));
  // down_proj of tiny.gguf has rows of 48.
  EXPECT_THAT(
      error(kFixtures / "tiny.gguf", folder.path() / "out.gguf"),
      HasSubstr("tensor \"blk.0.ffn_down.weight\": expected a row length that is a multiple of 32 weights, found 48"));
  std::vector<NamedTensor> tensors = tensors_of(TinyWeights(tiny_config()));
  for (NamedTensor& tensor : tensors) {
    if (tensor.name == "model.layers.1.mlp.up_proj.weight") tensor.values[70] = std::nanf("");
  }
  const auto broken = write_folder(folder, true, &tensors);
  EXPECT_THAT(error(broken, out), HasSubstr("tensor \"model.layers.1.mlp.up_proj.weight\": packed matrix: expected"));
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out.gguf"));
}

// By default, a quantized file is served with its own integers, whichever program quantized it.
TEST(LoadLlama, AutoKeepsTheIntegersOfAQuantizedFile) {
  const Folder folder;
  ModelConfig c = tiny_config();
  c.hidden_size = c.intermediate_size = 256;
  c.head_dim = 64;
  const auto of = [](TensorType type) {
    return [type](const std::string& name) { return name.find("norm") == std::string::npos ? type : TensorType::kF32; };
  };
  const std::vector<TokenId> tokens = some_tokens(40, c.vocab_size, 1);
  for (const TensorType type : {TensorType::kQ4_0, TensorType::kQ8_0, TensorType::kQ4_K, TensorType::kQ6_K}) {
    const auto weights = Weights::open(write_gguf(folder, c, of(type)));
    Served expected(*weights, "bf16", "file"), found(*weights, "auto"), expanded(*weights, "bf16", "bf16");
    EXPECT_EQ(expected.run(tokens, 512), found.run(tokens, 512));
    EXPECT_EQ(found.model->weight_bytes(), expected.model->weight_bytes());
    EXPECT_LT(found.model->weight_bytes(), expanded.model->weight_bytes());
    EXPECT_EQ(llama_weight_bytes(*weights, {}), found.model->weight_bytes());
    EXPECT_EQ(stored_weights({}, *weights), "file");
    EXPECT_EQ(stored_weights({.weights = WeightFormat::kBf16}, *weights), "bf16");
    EXPECT_EQ(stored_weights({.dtype = DataType::kF32}, *weights), "f32");
    EXPECT_EQ(stored_weights({.backend = Backend::kTorch}, *weights), "bf16");  // torch has no integers
    EXPECT_EQ(stored_weights({.dtype = DataType::kF16, .backend = Backend::kTorch}, *weights), "f16");
  }
  const auto floats = Weights::open(write_gguf(folder, c, of(TensorType::kF32)));
  EXPECT_EQ(stored_weights({}, *floats), "bf16");
  EXPECT_EQ(Served(*floats, "auto").model->weight_bytes(), Served(*floats, "bf16", "bf16").model->weight_bytes());
  // A draft's floats are quantized to 4 bits, its integers stay.
  ThreadPool pool(1);
  const ModelOptions draft{.weights = WeightFormat::kFile, .int4_floats = true};
  EXPECT_EQ(load_llama(*floats, draft, pool)->weight_bytes(), Served(*floats, "bf16", "int4").model->weight_bytes());
  const auto eight = Weights::open(write_gguf(folder, c, of(TensorType::kQ8_0)));
  EXPECT_EQ(load_llama(*eight, draft, pool)->weight_bytes(), Served(*eight, "bf16", "file").model->weight_bytes());
  for (const char* integers : {"gptq", "awq"}) {
    EXPECT_EQ(stored_weights({}, *Weights::open(kFixtures / "integers" / integers)), "file") << integers;
  }
  EXPECT_EQ(stored_weights({}, *Weights::open(kFixtures / "tiny_fp8")), "file");
}

TEST(QuantizeModelErrors, NoFileBecomesLargerOrIsQuantizedTwice) {
  const Folder folder;
  ModelConfig c = tiny_config();
  c.hidden_size = c.intermediate_size = 256;
  c.head_dim = 64;
  ThreadPool pool(2);
  const auto out = folder.path() / "out.gguf";
  const auto error = [&](WeightType to, const TypeOf& type_of) {
    const auto in = write_gguf(folder, c, type_of);
    const std::string why = error_of([&] { quantize_model(in, out, to, pool); });
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      EXPECT_TRUE(entry.path() == in || why == "no error");
    std::filesystem::remove(out);
    return why;
  };
  const auto all = [](TensorType type) -> TypeOf {
    return [type](const std::string& name) { return name.find("norm") == std::string::npos ? type : TensorType::kF32; };
  };
  // Types as in llama.cpp's Q4_K_M. Its 6-bit tensors would shrink, but the file would not, or would lose precision.
  const TypeOf k_m = [&](const std::string& name) {
    const bool more = name.find("attn_v") != std::string::npos;
    return all(name == "token_embd.weight" || more ? TensorType::kQ6_K : TensorType::kQ4_K)(name);
  };
  EXPECT_THAT(error(WeightType::kInt4, k_m),
              HasSubstr("tensor \"blk.0.attn_v.weight\": expected F32, F16 or BF16, found Q6_K, which would lose"));
  EXPECT_THAT(error(WeightType::kInt8, k_m),
              testing::AllOf(HasSubstr("model.gguf: expected int8 weights to be smaller than the present"),
                             HasSubstr("--force")));
  EXPECT_THAT(error(WeightType::kInt8, all(TensorType::kQ5_0)),
              HasSubstr("expected int8 weights to be smaller"));  // 5.5 bits each
  EXPECT_THAT(error(WeightType::kInt4, all(TensorType::kQ3_K)),
              HasSubstr("expected int4 weights to be smaller"));  // 3.4 bits each
  EXPECT_THAT(error(WeightType::kInt4, all(TensorType::kQ8_0)),
              HasSubstr("found Q8_0, which would lose precision a second time in Q4_1"));
  EXPECT_THAT(error_of([&] {
                quantize_model(kFixtures / "integers/gptq_act", folder.path() / "out", WeightType::kInt4, pool);
              }),
              HasSubstr("which would lose precision a second time in Q4_1"));  // by act-order, which GGUF does not have
  EXPECT_EQ(error(WeightType::kInt4, all(TensorType::kF32)), "no error");
  // Floats may shrink beside integers that stay.
  EXPECT_EQ(error(WeightType::kInt8,
                  [&](const std::string& name) {
                    return all(name.find("ffn") == std::string::npos ? TensorType::kQ4_K : TensorType::kF32)(name);
                  }),
            "no error");
}

TEST(LoadLlama, NamesATensorThatIntegersCannotHold) {
  const Folder folder;
  std::vector<NamedTensor> tensors = tensors_of(TinyWeights(tiny_config()));
  for (NamedTensor& tensor : tensors) {
    if (tensor.name == "model.layers.2.self_attn.k_proj.weight") tensor.values[5] = 1e9f;
  }
  const auto weights = Weights::open(write_folder(folder, true, &tensors));
  EXPECT_THAT(error_of([&] { Served(*weights, "bf16", "int4"); }),
              HasSubstr("tensor \"model.layers.2.self_attn.k_proj.weight\""));
}

}  // namespace
}  // namespace smartkv
