#include "engine/weights/model_fingerprint.h"

#include <functional>
#include <list>
#include <optional>
#include <set>
#include <tuple>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "engine/weights/fields.h"
#include "engine/weights/gguf.h"
#include "kernels/bf16.h"
#include "tests/weights/gguf_keys.h"
#include "tests/weights/weight_files.h"

namespace smartkv {
namespace {

// Weights of which every part may be changed: one tensor with everything that a tensor can have.
struct Parts {
  ModelConfig config;
  TensorView tensor;
  WeightScales scales;
  PackedIntegers integers;
};

class OneTensor final : public Weights {
 public:
  explicit OneTensor(const Parts& parts) : config_(parts.config), tensor_(parts.tensor) {
    tensor_.scales = std::make_shared<WeightScales>(parts.scales);
    tensor_.integers = std::make_shared<PackedIntegers>(parts.integers);
  }
  const ModelConfig& config() const override { return config_; }
  std::string format() const override { return "a test's"; }
  std::vector<std::string> names() const override { return {"model.layers.0.self_attn.q_proj.weight"}; }
  std::optional<TensorView> find(std::string_view) const override { return tensor_; }
  int64_t file_row(std::string_view, int64_t row) const override { return interleaved ? row ^ 1 : row; }
  std::string stored_as() const override { return storage; }
  std::span<const int32_t> output_tokens() const override { return outputs; }

  bool interleaved = false;
  std::string storage;
  std::vector<int32_t> outputs;

 private:
  ModelConfig config_;
  TensorView tensor_;
};

// Changes a field of any type.
template <typename T>
void change(T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    value = !value;
  } else if constexpr (std::is_enum_v<T>) {
    value = static_cast<T>(static_cast<std::underlying_type_t<T>>(value) + 1);
  } else if constexpr (std::is_arithmetic_v<T>) {
    value += 1;
  } else if constexpr (std::is_same_v<T, std::string>) {
    value += "x";
  } else if constexpr (std::is_same_v<T, std::span<const std::byte>>) {
    static constexpr std::byte kOther[4] = {};
    value = kOther;
  } else {
    value.emplace_back();
  }
}

// Calls visit(change) for each field of `structure`, with a function that changes this field. Visits the fields of
// nested structures one by one. Leaves out pointers, because their targets are structures of the test.
template <typename Structure, typename Visit>
void for_each_change(Structure& structure, const Visit& visit) {
  std::apply(
      [&](auto&... field) {
        const auto one = [&](auto& value) {
          if constexpr (requires { fields(value); }) {
            for_each_change(value, visit);
          } else if constexpr (!requires { value.use_count(); }) {
            visit([&value] { change(value); });
          }
        };
        (one(field), ...);
      },
      fields(structure));
}

TEST(ModelFingerprint, EveryFieldCounts) {
  const Parts original;
  std::set<std::string> seen = {model_fingerprint(OneTensor(original))};
  // `structure` is a part of Parts. Each of its fields is changed in a copy of its own.
  const auto expect_all_differ = [&](auto Parts::*structure, size_t least) {
    size_t n = 0;
    Parts counted;
    for_each_change(counted.*structure, [&](const auto&) { ++n; });
    EXPECT_GE(n, least);
    for (size_t changed = 0; changed < n; ++changed) {
      Parts parts;
      size_t field = 0;
      for_each_change(parts.*structure, [&](const std::function<void()>& change_field) {
        if (field++ == changed) change_field();
      });
      const bool is_new = seen.insert(model_fingerprint(OneTensor(parts))).second;
      const bool is_name = !parts.config.name.empty();
      EXPECT_NE(is_new, is_name) << "field " << changed;  // a file may be renamed
    }
  };
  expect_all_differ(&Parts::config, 39);
  expect_all_differ(&Parts::tensor, 5);
  expect_all_differ(&Parts::scales, 4);
  expect_all_differ(&Parts::integers, 10);
}

TEST(ModelFingerprint, OrderOfRowsStorageAndOutputsCount) {
  Parts parts;
  parts.tensor.shape = {4, 1};
  const std::string original = model_fingerprint(OneTensor(parts));
  OneTensor weights(parts);
  EXPECT_EQ(model_fingerprint(weights), original);
  EXPECT_EQ(original.size(), 32u);
  weights.interleaved = true;
  EXPECT_NE(model_fingerprint(weights), original);
  weights.interleaved = false;
  weights.storage = "int4";
  EXPECT_NE(model_fingerprint(weights), original);
  weights.storage.clear();
  weights.outputs = {3};
  EXPECT_NE(model_fingerprint(weights), original);
}

TEST(ModelFingerprint, NeighboursDoNotTradeElements) {
  Parts a, b;
  a.config.rope.short_factors = {1, 2};
  a.config.rope.long_factors = {3};
  b.config.rope.short_factors = {1};
  b.config.rope.long_factors = {2, 3};
  EXPECT_NE(model_fingerprint(OneTensor(a)), model_fingerprint(OneTensor(b)));
}

// The same name and tensors with another key: neither model may use states of the other.
TEST(ModelFingerprint, KeysOfAFileCount) {
  const Folder folder;
  const std::string original = read_file(kFixtures / "tiny.gguf");
  const auto with = [&](const GgufKeys& keys) {
    folder.write("m.gguf", keys.in(original));
    return model_fingerprint(*Weights::open(folder.path() / "m.gguf"));
  };
  std::set<std::string> seen = {with(GgufKeys())};
  EXPECT_EQ(seen.count(with(GgufKeys().string("general.name", "another"))), 1u);
  EXPECT_TRUE(
      seen.insert(with(GgufKeys().string("llama.rope.scaling.type", "linear").number("llama.rope.scaling.factor", 2)))
          .second);
  EXPECT_TRUE(
      seen.insert(with(GgufKeys().string("llama.rope.scaling.type", "yarn").number("llama.rope.scaling.factor", 2)))
          .second);
  std::string other = original;
  const std::string base = "llama.rope.freq_base";
  other[other.find(base) + base.size() + 4 + 1] ^= 1;  // after the type of the value
  folder.write("m.gguf", other);
  EXPECT_TRUE(seen.insert(model_fingerprint(*Weights::open(folder.path() / "m.gguf"))).second);
}

// Fixtures: one random model as GGUF, as safetensors in f32, in shards, and with 8-bit projections.
TEST(ModelIdentity, IsThatOfTheModelInEveryFormat) {
  const std::string identity = model_identity(*Weights::open(kFixtures / "tiny.gguf"));
  EXPECT_EQ(identity.size(), 32u);
  for (const char* other : {"tiny", "tiny_sharded", "tiny_fp8"}) {
    const auto weights = Weights::open(kFixtures / other);
    EXPECT_EQ(model_identity(*weights), identity) << other;
    EXPECT_NE(model_fingerprint(*weights), model_fingerprint(*Weights::open(kFixtures / "tiny.gguf"))) << other;
  }
}

// The given model with its norms converted to `type`.
class WithNorms final : public Weights {
 public:
  WithNorms(const Weights& weights, TensorType type) : weights_(weights), type_(type) {}
  const ModelConfig& config() const override { return changed ? *changed : weights_.config(); }
  std::string format() const override { return "a test's"; }
  std::vector<std::string> names() const override { return weights_.names(); }
  std::optional<TensorView> find(std::string_view name) const override {
    std::optional<TensorView> view = weights_.find(name);
    if (!view || !name.ends_with("norm.weight")) return view;
    std::vector<float> values = weights_.read(name, view->shape);
    if (name == changed_norm) values[3] *= 1.01f;
    bytes_.emplace_back();
    for (const float value : values) {
      const uint16_t rounded = to_bf16(value);
      const auto* from =
          type_ == TensorType::kBf16 ? reinterpret_cast<const char*>(&rounded) : reinterpret_cast<const char*>(&value);
      bytes_.back().append(from, type_ == TensorType::kBf16 ? 2 : 4);
    }
    view->type = type_;
    view->data = bytes_of(bytes_.back());
    return view;
  }
  int64_t file_row(std::string_view name, int64_t row) const override { return weights_.file_row(name, row); }

  std::optional<ModelConfig> changed;
  std::string changed_norm;

 private:
  const Weights& weights_;
  TensorType type_;
  mutable std::list<std::string> bytes_;
};

TEST(ModelIdentity, NormsAndShapesCountAndTheirTypeDoesNot) {
  const auto weights = Weights::open(kFixtures / "tiny");
  const std::string identity = model_identity(*weights);
  EXPECT_EQ(model_identity(WithNorms(*weights, TensorType::kBf16)), identity);
  WithNorms other(*weights, TensorType::kF32);
  EXPECT_EQ(model_identity(other), identity);
  for (const std::string& name :
       {std::string("model.norm.weight"), std::string("model.layers.1.post_attention_layernorm.weight")}) {
    other.changed_norm = name;
    EXPECT_NE(model_identity(other), identity) << name;
  }
  other.changed_norm.clear();
  for (const auto size : {&ModelConfig::n_layers, &ModelConfig::n_heads, &ModelConfig::n_kv_heads,
                          &ModelConfig::head_dim, &ModelConfig::hidden_size, &ModelConfig::intermediate_size}) {
    other.changed = weights->config();
    *other.changed.*size += 1;
    EXPECT_NE(model_identity(other), identity);
  }
  other.changed = weights->config();
  other.changed->name = "another";
  other.changed->architecture = "mistral";
  other.changed->context_length *= 2;
  other.changed->vocab_size += 64;  // padded
  EXPECT_EQ(model_identity(other), identity);
}

}  // namespace
}  // namespace smartkv
