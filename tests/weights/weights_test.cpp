// Weight files: fixtures made by tests/fixtures/weights/make.py.
#include "engine/weights/weights.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/weights/gguf.h"
#include "engine/weights/hf_weights.h"
#include "engine/weights/quantized_rows.h"
#include "engine/weights/safetensors.h"

namespace smartkv {
namespace {

using testing::HasSubstr;

const std::filesystem::path kFixtures = SMARTKV_FIXTURES "/weights";

std::string read_file(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// A folder of this test's own, removed at the end.
class Folder {
 public:
  Folder() : path_(std::filesystem::path(testing::TempDir()) / ("smartkv_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const std::string& content) const { std::ofstream(path_ / name, std::ios::binary) << content; }

 private:
  std::filesystem::path path_;
};

template <typename Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const ModelError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ExpandRows, EqualsTheReferenceForEveryType) {
  const std::map<std::string, TensorType> types = {
      {"F16", TensorType::kF16},   {"BF16", TensorType::kBf16}, {"Q4_0", TensorType::kQ4_0}, {"Q4_1", TensorType::kQ4_1}, {"Q5_0", TensorType::kQ5_0},
      {"Q5_1", TensorType::kQ5_1}, {"Q8_0", TensorType::kQ8_0}, {"Q4_K", TensorType::kQ4_K}, {"Q5_K", TensorType::kQ5_K}, {"Q6_K", TensorType::kQ6_K}};
  const nlohmann::json fixture = nlohmann::json::parse(read_file(kFixtures / "blocks.json"));
  ASSERT_EQ(fixture.size(), types.size());
  for (const auto& [name, item] : fixture.items()) {
    const std::string hex = item["bytes"];
    std::string bytes;
    for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    const std::vector<float> expected = item["values"];
    TensorView tensor{name, types.at(name), {2, static_cast<int64_t>(expected.size() / 2)}, bytes_of(bytes)};
    std::vector<float> found(expected.size());
    expand_rows(tensor, 0, 2, found.data());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-6 * (1 + std::abs(expected[i]))) << name << " " << i;
    std::vector<float> second(expected.size() / 2);
    expand_rows(tensor, 1, 1, second.data());
    EXPECT_TRUE(std::equal(second.begin(), second.end(), found.begin() + second.size()));
    EXPECT_THROW(expand_rows(tensor, 1, 2, found.data()), std::out_of_range);

    if (group_bits(tensor.type) == 0) continue;
    std::vector<uint8_t> q(second.size());
    std::vector<float> scale(q.size() / 32), minimum(scale.size());
    read_quantized_row(tensor, 1, q.data(), scale.data(), minimum.data());
    for (size_t i = 0; i < q.size(); ++i) EXPECT_NEAR(scale[i / 32] * q[i] + minimum[i / 32], second[i], 1e-5 * (1 + std::abs(second[i])));
  }
}

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

TEST(HfConfig, NamesTheKey) {
  const nlohmann::json good = nlohmann::json::parse(read_file(kFixtures / "tiny/config.json"));
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = good;
    changed[key] = value;
    return error_of([&] { parse_hf_config(changed, "config.json"); });
  };
  EXPECT_EQ(with("model_type", "llama"), "no error");
  EXPECT_THAT(with("model_type", "gpt2"), HasSubstr("key \"model_type\": expected \"llama\""));
  EXPECT_EQ(with("model_type", "mistral"), "no error");
  EXPECT_THAT(with("hidden_size", "big"), HasSubstr("key \"hidden_size\": expected an integer, found \"big\""));
  EXPECT_THAT(with("hidden_size", -5), HasSubstr("hidden_size: expected a number from 1"));
  EXPECT_THAT(with("hidden_size", 1e30), HasSubstr("hidden_size"));
  EXPECT_THAT(with("num_attention_heads", 0), HasSubstr("number of heads"));
  EXPECT_THAT(with("num_key_value_heads", 3), HasSubstr("a multiple of the 3 KV heads, found 4"));
  EXPECT_THAT(with("head_dim", 7), HasSubstr("head_dim: expected an even number"));
  EXPECT_THAT(with("eos_token_id", "x"), HasSubstr("eos_token_id"));
  EXPECT_THAT(with("hidden_act", "gelu"), HasSubstr("hidden_act"));
  EXPECT_THAT(with("rope_scaling", 3), HasSubstr("rope_scaling"));
  EXPECT_THAT(with("rope_scaling", {{"type", "longrope"}, {"factor", 2.0}}), HasSubstr("rope_scaling.type"));
  EXPECT_THAT(with("rope_scaling", {{"type", "linear"}}), HasSubstr("rope_scaling.factor"));
  EXPECT_THAT(with("rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}}), HasSubstr("original_max_position_embeddings"));
  EXPECT_THAT(error_of([] { parse_hf_config(nlohmann::json::array(), "config.json"); }), HasSubstr("expected an object"));
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
  const RopeConfig llama3 = with("rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}});
  EXPECT_EQ(llama3.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(llama3.original_context, 8192);
  EXPECT_EQ(llama3.factor, 8.0);
  const RopeConfig yarn = with("rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 7.0}, {"factor", 4.0}, {"beta_fast", 16}});
  EXPECT_EQ(yarn.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn.theta, 7.0);
  EXPECT_EQ(yarn.beta_fast, 16.0);
}

TEST(Safetensors, RoundTrips) {
  const Folder folder;
  const std::vector<float> values = {0.0f, -0.0f, 1.0f, -2.5f, 65504.0f, 1e-7f, 3.14159265f, 1e-5f};
  for (const auto& [type, error] : std::map<TensorType, double>{{TensorType::kF32, 0}, {TensorType::kF16, 6e-4}, {TensorType::kBf16, 4e-3}}) {
    write_safetensors(folder.path() / "x.safetensors", {{"a", {2, 4}, values}, {"b", {1}, {7.0f}}}, type, {{"k", "v"}});
    const SafetensorsFile file = SafetensorsFile::open(folder.path() / "x.safetensors");
    EXPECT_EQ(file.metadata().at("k"), "v");
    std::vector<float> found(8);
    expand_rows(file.tensors().at("a"), 0, 2, found.data());
    for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(found[i], values[i], error * std::abs(values[i]) + (error > 0 ? 6e-8 : 0));
    EXPECT_EQ(file.tensors().at("b").shape, std::vector<int64_t>{1});
  }
}

std::string safetensors(const std::string& header, size_t data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data, '\0');
}

TEST(Safetensors, NamesWhatIsWrong) {
  const auto error = [](const std::string& bytes) { return error_of([&] { SafetensorsFile::parse(bytes_of(bytes), "m"); }); };
  const auto entry = [&](const std::string& e) { return error(safetensors("{\"t\":" + e + "}", 16)); };
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})"), "no error");
  EXPECT_THAT(error("abc"), HasSubstr("truncated"));
  EXPECT_THAT(error(safetensors("{}", 0).substr(0, 9)), HasSubstr("does not fit"));
  EXPECT_THAT(error(safetensors("{nope", 0)), HasSubstr("no JSON"));
  EXPECT_THAT(error(safetensors("[]", 0)), HasSubstr("expected the header to be an object"));
  EXPECT_THAT(entry("3"), HasSubstr("tensor \"t\": expected dtype, shape and data_offsets"));
  EXPECT_THAT(entry(R"({"dtype":"I8","shape":[4],"data_offsets":[0,16]})"), HasSubstr("dtype: expected F32, F16 or BF16, found \"I8\""));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[5],"data_offsets":[0,16]})"), HasSubstr("expected 20 bytes for its shape, found 16"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[4],"data_offsets":[4,20]})"), HasSubstr("expected a range in [0, 16]"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})"), HasSubstr("shape"));
  EXPECT_THAT(entry(R"({"dtype":"F32","shape":[1099511627776,1099511627776],"data_offsets":[0,16]})"), HasSubstr("out of range"));
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})", b = R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]})";
  EXPECT_THAT(error(safetensors("{" + a + "," + b + "}", 16)), HasSubstr("tensor \"b\" overlaps tensor \"a\""));
  EXPECT_THAT(error(safetensors("{" + a + "," + a + "}", 16)), HasSubstr("\"a\" stands twice"));
  EXPECT_THAT(error(safetensors(R"({"__metadata__":{"k":1}})", 0)), HasSubstr("__metadata__.k"));
  EXPECT_THAT(error(safetensors(R"({"__metadata__":[1]})", 0)), HasSubstr("__metadata__"));
}

// Writes GGUF files by hand.
class GgufBytes {
 public:
  GgufBytes(uint32_t version, uint64_t tensors, uint64_t keys) { number(uint32_t{0x46554747}).number(version).number(tensors).number(keys); }
  template <typename T>
  GgufBytes& number(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  GgufBytes& string(const std::string& text) {
    number(uint64_t{text.size()});
    bytes += text;
    return *this;
  }
  GgufBytes& tensor(const std::string& name, uint64_t extent, uint32_t type, uint64_t offset) {
    return string(name).number(uint32_t{1}).number(extent).number(type).number(offset);
  }
  GgufBytes& data(size_t size) {
    bytes.resize((bytes.size() + 31) / 32 * 32 + size);
    return *this;
  }
  std::string error() const {
    return error_of([&] { GgufFile::parse(bytes_of(bytes), "m.gguf"); });
  }
  std::string bytes;
};

TEST(Gguf, NamesWhatIsWrong) {
  EXPECT_EQ(GgufBytes(3, 1, 0).tensor("t", 8, 0, 0).data(32).error(), "no error");
  EXPECT_THAT(error_of([] { GgufFile::parse(bytes_of(std::string("GGML....")), "m"); }), HasSubstr("not a GGUF file"));
  EXPECT_THAT(GgufBytes(1, 0, 0).error(), HasSubstr("expected GGUF version 2 or 3, found 1"));
  EXPECT_THAT(GgufBytes(3, 0, 5).error(), HasSubstr("truncated"));
  EXPECT_THAT(GgufBytes(3, ~uint64_t{0}, 0).error(), HasSubstr("truncated"));
  EXPECT_THAT(GgufBytes(3, 0, 1).string("k").number(uint32_t{99}).error(), HasSubstr("key \"k\": unknown value type 99"));
  EXPECT_THAT(GgufBytes(3, 0, 1).string("k").number(uint32_t{9}).number(uint32_t{4}).number(uint64_t{1} << 60).error(), HasSubstr("do not fit"));
  EXPECT_THAT(GgufBytes(3, 0, 1).string("k").number(uint32_t{10}).number(~uint64_t{0}).error(), HasSubstr("expected an integer below 2^63"));
  EXPECT_THAT(GgufBytes(3, 0, 2).string("k").number(uint32_t{0}).number('a').string("k").number(uint32_t{0}).number('a').error(), HasSubstr("\"k\" stands twice"));
  EXPECT_THAT(GgufBytes(3, 0, 1).string("general.alignment").number(uint32_t{4}).number(uint32_t{24}).error(), HasSubstr("a power of two"));
  EXPECT_THAT(GgufBytes(3, 1, 0).tensor("t", 8, 0, 4).data(64).error(), HasSubstr("tensor \"t\": expected an offset that is a multiple of 32, found 4"));
  EXPECT_THAT(GgufBytes(3, 1, 0).tensor("t", 8, 0, 64).data(32).error(), HasSubstr("tensor \"t\" needs bytes [64, 96) of the data, found 32"));
  EXPECT_THAT(GgufBytes(3, 2, 0).tensor("a", 16, 0, 0).tensor("b", 8, 0, 32).data(64).error(), HasSubstr("tensor \"b\" overlaps tensor \"a\""));
  EXPECT_THAT(GgufBytes(3, 2, 0).tensor("a", 8, 0, 0).tensor("a", 8, 0, 32).data(64).error(), HasSubstr("\"a\" stands twice"));
  EXPECT_THAT(GgufBytes(3, 1, 0).tensor("t", 8, 77, 0).data(32).error(), HasSubstr("tensor \"t\": unsupported type 77; supported: F32"));
  EXPECT_THAT(GgufBytes(3, 1, 0).tensor("t", 8, 2, 0).data(32).error(), HasSubstr("do not hold whole blocks of Q4_0"));
  EXPECT_THAT(GgufBytes(3, 1, 0).tensor("t", uint64_t{1} << 50, 0, 0).data(32).error(), HasSubstr("out of range"));
}

TEST(Gguf, ReadsTypedMetadata) {
  const GgufFile file = GgufFile::open(kFixtures / "tiny.gguf");
  EXPECT_EQ(file.get_int("llama.block_count"), 2);
  EXPECT_EQ(*file.get_string("general.architecture"), "llama");
  EXPECT_EQ(file.get_float("llama.rope.freq_base"), 5000.0);
  EXPECT_EQ(file.get_int("absent"), std::nullopt);
  EXPECT_THAT(error_of([&] { file.get_int("general.architecture"); }), HasSubstr("key \"general.architecture\": expected an integer"));
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
}

TEST(Fuzz, MutatedFilesNeverCrash) {
  const Folder folder;
  std::mt19937 random(5);
  for (const char* name : {"tiny.gguf", "tiny/model.safetensors"}) {
    const std::string good = read_file(kFixtures / name);
    const bool gguf = std::string(name).ends_with("gguf");
    int refused = 0, read = 0;
    for (int i = 0; i < 3000; ++i) {
      std::string bytes = good;
      for (uint64_t n = 1 + random() % 4; n > 0; --n) {
        const size_t at = random() % std::min<size_t>(bytes.size(), 4096);  // where the structure is
        switch (random() % 3) {
          case 0: bytes[at] = static_cast<char>(random()); break;
          case 1: bytes[at] = static_cast<char>(random() % 2 == 0 ? 0xff : 0); break;
          default: bytes.erase(at, random() % 9);
        }
      }
      try {
        if (gguf) {
          folder.write("m.gguf", bytes);
          const auto weights = Weights::open(folder.path() / "m.gguf");
          for (const std::string& tensor : weights->names()) weights->read(tensor, weights->find(tensor)->shape);
        } else {
          const SafetensorsFile file = SafetensorsFile::parse(bytes_of(bytes), "m");
          for (const auto& [key, tensor] : file.tensors()) {
            std::vector<float> values(static_cast<size_t>(tensor.elements()));
            expand_rows(tensor, 0, tensor.rows(), values.data());
          }
        }
        ++read;
      } catch (const ModelError&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 100) << name;
    EXPECT_GT(read, 0) << name;
  }
}

TEST(Fuzz, TruncatedFilesAreErrors) {
  const std::string gguf = read_file(kFixtures / "tiny.gguf"), safetensors = read_file(kFixtures / "tiny/model.safetensors");
  for (size_t n = 0; n < gguf.size(); n += n < 4096 ? 1 : 97) {
    EXPECT_THROW(GgufFile::parse(bytes_of(gguf).first(n), "m"), ModelError) << n;
  }
  for (size_t n = 0; n < safetensors.size(); n += n < 4096 ? 1 : 97) {
    EXPECT_THROW(SafetensorsFile::parse(bytes_of(safetensors).first(n), "m"), ModelError) << n;
  }
}

}  // namespace
}  // namespace smartkv
