#include "engine/prefix_identity.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/weights/fields.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/model/tiny_llama.h"
#include "tests/server/tiny_model_folder.h"

namespace smartkv {
namespace {

class OtherConfig final : public Weights {
 public:
  explicit OtherConfig(ModelConfig config) : config_(std::move(config)) {}
  const ModelConfig& config() const override { return config_; }
  std::string format() const override { return "a test's"; }
  std::vector<std::string> names() const override { return {}; }
  std::optional<TensorView> find(std::string_view) const override { return std::nullopt; }
  int64_t file_row(std::string_view, int64_t row) const override { return row; }

 private:
  ModelConfig config_;
};

template <typename T>
void change(T& value) {
  if constexpr (requires { fields(value); }) {
    change(std::get<0>(fields(value)));  // tests/weights/model_fingerprint_test.cpp changes each field
  } else if constexpr (std::is_same_v<T, bool>) {
    value = !value;
  } else if constexpr (std::is_enum_v<T>) {
    value = static_cast<T>(static_cast<int>(value) + 1);
  } else if constexpr (std::is_arithmetic_v<T>) {
    value += 1;
  } else if constexpr (std::is_same_v<T, std::string>) {
    value += "x";
  } else {
    value.emplace_back();
  }
}

TEST(PrefixIdentity, EveryFieldOfTheConfigurationGivesAnother) {
  const ModelConfig original = tiny_config();
  const EngineOptions options;
  std::set<std::string> seen = {prefix_identity(OtherConfig(original), options)};
  EXPECT_EQ(seen.count(prefix_identity(OtherConfig(original), options)), 1u);
  constexpr size_t n = std::tuple_size_v<decltype(fields(std::declval<ModelConfig&>()))>;
  for (size_t changed = 0; changed < n; ++changed) {
    ModelConfig config = original;
    size_t field = 0;
    std::apply([&](auto&... value) { ((field++ == changed ? change(value) : void()), ...); }, fields(config));
    EXPECT_TRUE(seen.insert(prefix_identity(OtherConfig(config), options)).second) << "field " << changed;
  }
}

TEST(PrefixIdentity, OptionsThatChangeBitsGiveAnother) {
  const TinyWeights weights(tiny_config());
  std::set<std::string> seen = {prefix_identity(weights, {})};
  const std::string gate = ::testing::TempDir() + "identity_gate." + std::to_string(getpid());
  std::ofstream(gate) << "a gate";
  const std::vector<std::function<void(EngineOptions&)>> changes = {
      [](auto& o) { o.model.dtype = DataType::kF32; },
      [](auto& o) { o.model.weights = WeightFormat::kInt8; },
      [](auto& o) { o.model.device = "cuda:0"; },
      [](auto& o) { o.model.cuda_graphs = CudaGraphs::kOff; },
      [](auto& o) { o.model.tensor_parallel = 2; },
      [](auto& o) { o.model.context_length = 99; },
      [](auto& o) { o.model.rope_scaling.scaling = RopeScaling::kYarn; },
      [](auto& o) { o.model.rope_scaling.factor = 2; },
      [](auto& o) { o.model.int4_floats = true; },
      [&](auto& o) { o.model.gates["a"] = gate; },
      [&](auto& o) { o.model.gates["b"] = gate; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    EngineOptions options;
    changes[i](options);
    EXPECT_TRUE(seen.insert(prefix_identity(weights, options)).second) << "change " << i;
  }
  std::ofstream(gate) << "another gate";
  EngineOptions gated, busy;
  gated.model.gates["a"] = gate;
  EXPECT_TRUE(seen.insert(prefix_identity(weights, gated)).second);
  EXPECT_TRUE(seen.insert(prefix_identity(TinyWeights(tiny_config(), 2), {})).second);
  std::filesystem::remove(gate);
  EXPECT_THROW(prefix_identity(weights, gated), CacheError);
  busy.model.threads = 3;  // load and memory change no bit
  busy.kv_cache_bytes = 1 << 20;
  busy.max_queue = 9;
  EXPECT_FALSE(seen.insert(prefix_identity(weights, busy)).second);
}

TEST(PrefixFilesOfAModel, AreNotThoseOfTheSameTensorsWithAnotherKey) {
  const test::TinyModelFolder model("identity_model");
  EngineOptions options;
  options.model.path = model.path();
  options.kv_cache_bytes = 64 << 20;
  options.model.threads = 1;
  GenerationRequest request = make_request(600, 20);
  request.sampling.temperature = 0;
  request.ignore_eos = true;
  const auto run = [&](const std::filesystem::path& directory, int64_t* cached) {
    options.prefix_cache_dir = directory;
    const auto engine = Engine::create(options);
    const auto stream = engine->submit(request);
    ChoiceResult result = read_all(*stream)[0];
    *cached = stream->usage().cached_tokens;
    return result.tokens;
  };
  const std::filesystem::path directory = std::filesystem::path(model.path()) / "prefixes";
  std::ifstream file(model.path() + "/config.json");
  const std::string config(std::istreambuf_iterator<char>(file), {});
  const std::vector<std::string> keys = {"", R"("rope_theta": 100.0, )",
                                         R"("rope_scaling": {"type": "linear", "factor": 8.0}, )",
                                         R"("rms_norm_eps": 0.5, )"};
  for (const std::string& key : keys) {
    std::string changed = config;
    if (key.find("rms_norm_eps") != std::string::npos)
      changed.replace(changed.find("\"rms_norm_eps\""), 14, "\"pad_token_id\"");
    changed.insert(1, key);
    std::ofstream(model.path() + "/config.json") << changed;
    int64_t cached = -1;
    const std::vector<TokenId> expected = run({}, &cached);
    EXPECT_EQ(run(directory, &cached), expected) << key;
    EXPECT_EQ(cached, 0) << key;
    EXPECT_EQ(run(directory, &cached), expected) << key;
    EXPECT_GT(cached, 500) << key;
  }
}

}  // namespace
}  // namespace smartkv
