#include "engine/gates/gate_file.h"

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/sequence_cache.h"
#include "engine/gates/gate_set.h"
#include "engine/gates/shipped_gates.h"
#include "engine/weights/model_fingerprint.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/weights.h"
#include "tests/engine/model/tiny_llama.h"

namespace smartkv {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kGateIdentity = "0123456789abcdef0123456789abcdef";

std::shared_ptr<const LifespanGate> lifespan_gate(const std::shared_ptr<const Gate>& gate) {
  return std::dynamic_pointer_cast<const LifespanGate>(gate);
}

class GateFile : public testing::Test {
 protected:
  GateFile() : model_(tiny_config()) {
    layers_.resize(static_cast<size_t>(model_.n_layers));
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      for (int64_t i = 0; i < GateLayer::kDepth; ++i) {
        const auto [out, in] = GateLayer::shape(i, model_.head_dim);
        layers_[layer].weight[i].assign(static_cast<size_t>(out * in), 0.125f);
        layers_[layer].bias[i].assign(static_cast<size_t>(out), static_cast<float>(layer));
      }
    }
  }
  ~GateFile() override { std::filesystem::remove(path_); }

  std::string error_of_load(const ModelConfig& model) const { return error_of_load(path_, model); }
  std::string error_of_load(const std::filesystem::path& file) const { return error_of_load(file, model_); }
  static std::string error_of_load(const std::filesystem::path& file, const ModelConfig& model,
                                   const std::string& identity = kGateIdentity) {
    try {
      load_gate(file, model, identity);
    } catch (const CacheError& error) {
      return error.what();
    }
    return "no error";
  }

  const std::filesystem::path path_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string("gate_") + testing::UnitTest::GetInstance()->current_test_info()->name() + ".safetensors");
  ModelConfig model_;
  std::vector<GateLayer> layers_;
};

TEST_F(GateFile, RoundTrips) {
  write_gate(path_, model_, kGateIdentity, layers_, {{"text", "books.txt"}});
  EXPECT_EQ(SafetensorsFile::open(path_).metadata().at("text"), "books.txt");
  const auto gate = lifespan_gate(load_gate(path_, model_, kGateIdentity));
  const LifespanGate direct(model_.n_kv_heads, model_.head_dim, layers_);
  EXPECT_EQ(gate->n_layers(), model_.n_layers);
  EXPECT_FALSE(gate->has_importance());
  const std::vector<float> key(static_cast<size_t>(model_.head_dim), 0.5f);
  for (int64_t layer = 0; layer < model_.n_layers; ++layer) {
    float found = 0, expected = 0;
    gate->score(nullptr, layer, key.data(), 1, &found);
    direct.score(nullptr, layer, key.data(), 1, &expected);
    EXPECT_EQ(found, expected);
  }
}

TEST_F(GateFile, ItsSecondHeadIsThereOrNot) {
  for (GateLayer& layer : layers_) {
    layer.importance.assign(
        static_cast<size_t>(model_.n_kv_heads *
                            (GateLayer::importance_features(model_.n_kv_heads, model_.head_dim) + 1)),
        0.25f);
  }
  write_gate(path_, model_, kGateIdentity, layers_, {});
  EXPECT_TRUE(lifespan_gate(load_gate(path_, model_, kGateIdentity))->has_importance());
  EXPECT_EQ(read_gate_layers(path_, model_, kGateIdentity).back().importance, layers_.back().importance);
  layers_.back().importance.clear();  // missing in one layer only
  write_gate(path_, model_, kGateIdentity, layers_, {});
  EXPECT_THROW(load_gate(path_, model_, kGateIdentity), CacheError);
}

TEST_F(GateFile, SaysHowTheModelDiffersAndWhatToDo) {
  write_gate(path_, model_, kGateIdentity, layers_, {});
  ModelConfig other = model_;
  other.name = "model";  // named after its file
  EXPECT_EQ(error_of_load(other), "no error");
  other.n_kv_heads = 4;
  EXPECT_THAT(error_of_load(other), HasSubstr("n_kv_heads: expected 4, found 2"));
  EXPECT_THAT(error_of_load(other), HasSubstr("smartkv train-gate"));
  const std::string error = error_of_load(path_, model_, "another");
  EXPECT_THAT(error,
              AllOf(HasSubstr("for another model, tiny: model_identity: expected another, found 0123456789abcdef"),
                    HasSubstr(path_.filename().string())));
}

TEST_F(GateFile, NamesWhatIsWrongInTheFile) {
  EXPECT_THAT(error_of_load(model_), HasSubstr("gate_NamesWhatIsWrongInTheFile"));  // no such file
  write_safetensors(path_, {{"x", {1}, {0.0f}}}, TensorType::kF32, {});
  EXPECT_THAT(error_of_load(model_),
              HasSubstr("metadata \"head_dim\" is missing: not a file of smartkv train-gate, KVzap or Fast KVzip"));
  layers_.pop_back();
  write_gate(path_, model_, kGateIdentity, layers_, {});
  EXPECT_THAT(error_of_load(model_), HasSubstr("tensor \"layers.2.0.weight\" is missing"));
  const std::map<std::string, std::string> metadata = SafetensorsFile::open(path_).metadata();
  write_safetensors(path_, {{"layers.0.0.weight", {2, 2}, {1, 2, 3, 4}}}, TensorType::kF32, metadata);
  EXPECT_THAT(error_of_load(model_), HasSubstr("tensor \"layers.0.0.weight\": expected shape [256, 32], found [2, 2]"));
}

TEST_F(GateFile, OpensRegularFilesOnly) {
  EXPECT_THAT(error_of_load("/dev/null"), HasSubstr("expected a regular file"));
  EXPECT_THAT(error_of_load(std::filesystem::temp_directory_path()), HasSubstr("expected a regular file"));
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(error_of_load(path_), HasSubstr("expected a regular file"));  // without waiting for a writer
}

TEST_F(GateFile, ASetKnowsNamesAndNoPaths) {
  write_gate(path_, model_, kGateIdentity, layers_, {});
  const GateSet set({kGateIdentity, {{"mine", path_}, {"other", path_}}}, model_);
  EXPECT_EQ(set.find("mine")->n_layers(), model_.n_layers);
  for (const std::string& name : {path_.string(), std::string("/etc/passwd"), std::string("Mine")}) {
    try {
      set.find(name);
      FAIL() << name;
    } catch (const CacheError& error) {
      EXPECT_THAT(error.what(), HasSubstr("(\"mine\", \"other\")"));
    }
  }
  EXPECT_THROW(set.find(""), CacheError);  // none ship for this model
  EXPECT_EQ(GateSet({kGateIdentity, {{"default", path_}}}, model_).find("")->n_layers(), model_.n_layers);
}

TEST_F(GateFile, ASetOpensItsFilesAtOnce) {
  const auto error_of_set = [&](const GateFiles& files, const ModelConfig& model,
                                const std::string& identity = kGateIdentity) -> std::string {
    try {
      const GateSet set({identity, files}, model);
    } catch (const CacheError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of_set({{"mine", path_}}, model_), AllOf(HasSubstr("\"mine\""), HasSubstr(path_.string())));
  EXPECT_THAT(error_of_set({{"mine", "/etc"}}, model_), HasSubstr("regular file"));
  const auto weights = Weights::open(SMARTKV_SOURCE "/models/SmolLM2-135M-Instruct.Q4_1.gguf");
  const std::string identity = model_identity(*weights);
  EXPECT_THAT(error_of_set({{"smollm2-135m-instruct", path_}}, weights->config(), identity),
              HasSubstr("the name of built-in gates"));
  EXPECT_EQ(GateSet({identity}, weights->config()).find("smollm2-135m-instruct")->n_layers(), 30);
}

TEST_F(GateFile, ShippedGatesAreFoundByTheModel) {
  try {
    load_shipped_gate(model_, kGateIdentity);
    FAIL() << "no error";
  } catch (const CacheError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no built-in gates for the model \"tiny\" with 3 layers"));
    EXPECT_THAT(error.what(), HasSubstr("smartkv train-gate"));
  }
}

TEST(ShippedGates, FitTheirModels) {
  ASSERT_FALSE(shipped_gates().empty());
  for (const EmbeddedFile& shipped : shipped_gates()) {
    const SafetensorsFile file = SafetensorsFile::parse(shipped.bytes, std::string(shipped.file));
    const auto& metadata = file.metadata();
    ModelConfig model;
    model.n_layers = std::stoll(metadata.at("n_layers"));
    model.n_kv_heads = std::stoll(metadata.at("n_kv_heads"));
    model.head_dim = std::stoll(metadata.at("head_dim"));
    const auto gate = load_shipped_gate(model, metadata.at("model_identity"));
    EXPECT_EQ(gate->n_layers(), model.n_layers);
    EXPECT_TRUE(metadata.contains("command")) << shipped.file;
    EXPECT_TRUE(metadata.contains("quality") || metadata.contains("lifespans_quality")) << shipped.file;
  }
}

TEST(ShippedGates, ServeTheDefaultModel) {
  const auto weights = Weights::open(SMARTKV_SOURCE "/models/SmolLM2-135M-Instruct.Q4_1.gguf");
  EXPECT_EQ(load_shipped_gate(weights->config(), model_identity(*weights))->n_layers(), 30);
}

// An image has the model under this name, and a request must find its gates there.
TEST(ShippedGates, ServeTheDefaultModelUnderAnyName) {
  const std::filesystem::path link = std::filesystem::path(testing::TempDir()) / "model.gguf";
  std::filesystem::remove(link);
  std::filesystem::create_symlink(SMARTKV_SOURCE "/models/SmolLM2-135M-Instruct.Q4_1.gguf", link);
  const auto weights = Weights::open(link);
  EXPECT_NE(weights->config().name, "SmolLM2-135M-Instruct");
  EXPECT_EQ(GateSet({model_identity(*weights)}, weights->config()).find("")->n_layers(), 30);
  std::filesystem::remove(link);
}

// A name does not identify a model. Another model of the same shape has no gates here.
TEST(ShippedGates, DoNotGoByTheName) {
  const auto weights = Weights::open(SMARTKV_SOURCE "/models/SmolLM2-135M-Instruct.Q4_1.gguf");
  EXPECT_THROW(load_shipped_gate(weights->config(), "0" + model_identity(*weights).substr(1)), CacheError);
  EXPECT_THROW(load_shipped_gate(weights->config(), ""), CacheError);
}

}  // namespace
}  // namespace smartkv
