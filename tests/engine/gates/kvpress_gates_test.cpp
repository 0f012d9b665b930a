// Gates in the formats that NVIDIA's kvpress uses. The fixtures are made by tests/fixtures/gates/make.py.
#include "engine/gates/kvpress_gates.h"

#include <cmath>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/forwarding_cache.h"
#include "cache/policies/gated_eviction/hidden_gate.h"
#include "engine/gates/gate_file.h"
#include "engine/gates/gate_set.h"
#include "kernels/bf16.h"
#include "tests/engine/model/architecture_cases.h"
#include "tests/engine/model/served_policy.h"

namespace smartkv {
namespace {

using testing::AllOf;
using testing::HasSubstr;

NamedTensor tensor(const std::string& name, const std::vector<int64_t>& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.3f);
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = normal(random);
  return {name, shape, std::move(values)};
}

// Tensors of a file, by the shapes of the tensors in a layer.
std::vector<NamedTensor> tensors_of(int64_t n_layers,
                                    const std::vector<std::pair<std::string, std::vector<int64_t>>>& of_layer) {
  std::vector<NamedTensor> tensors;
  for (int64_t i = 0; i < n_layers; ++i) {
    for (const auto& [name, shape] : of_layer) {
      tensors.push_back(tensor("layers." + std::to_string(i) + "." + name, shape, 100 + tensors.size()));
    }
  }
  return tensors;
}

std::vector<NamedTensor> kvzap_mlp(int64_t n_layers, int64_t width, int64_t heads, int64_t inner) {
  return tensors_of(
      n_layers, {{"0.weight", {inner, width}}, {"0.bias", {inner}}, {"2.weight", {heads, inner}}, {"2.bias", {heads}}});
}

std::vector<NamedTensor> kvzap_linear(int64_t n_layers, int64_t width, int64_t heads) {
  return tensors_of(n_layers, {{"weight", {heads, width}}, {"bias", {heads}}});
}

std::vector<NamedTensor> fast_kvzip(int64_t n_layers, int64_t width, int64_t heads, int64_t queries) {
  return tensors_of(n_layers, {{"q_proj.weight", {heads * queries * 16, width}},
                               {"q_proj.bias", {heads * queries * 16}},
                               {"k_proj.weight", {heads * 16, width}},
                               {"q_norm.weight", {16}},
                               {"k_norm.weight", {16}},
                               {"k_base", {heads, 1, 5, 16}},
                               {"b", {heads, 1, queries}}});
}

class KvpressGate : public testing::Test {
 protected:
  ~KvpressGate() override {
    std::filesystem::remove(path_);
    std::filesystem::remove(table_);
  }
  void write(const std::vector<NamedTensor>& tensors) const {
    write_safetensors(path_, tensors, TensorType::kBf16, {{"format", "pt"}});
  }
  void write_table(const std::string& text) const { std::ofstream(table_) << text; }
  std::string error_of(const std::filesystem::path& file) const {
    try {
      load_gate(file, model_, "identity");
    } catch (const CacheError& error) {
      return error.what();
    }
    return "no error";
  }
  std::string error_of(const std::vector<NamedTensor>& tensors) const {
    write(tensors);
    return error_of(path_);
  }
  std::string error_of_table(const std::string& text) const {
    write_table(text);
    return error_of(table_);
  }
  static std::filesystem::path temporary(const char* extension) {
    return std::filesystem::path(testing::TempDir()) /
           (std::string("kvpress_") + testing::UnitTest::GetInstance()->current_test_info()->name() + extension);
  }

  const std::filesystem::path path_ = temporary(".safetensors"), table_ = temporary(".tsv");
  ModelConfig model_ = tiny_config();  // 3 layers, 2 KV heads, width 64
};

TEST_F(KvpressGate, IsRecognisedByItsTensors) {
  write(kvzap_mlp(3, 64, 2, 8));
  EXPECT_EQ(load_gate(path_, model_, "")->description(), "KVzap, an MLP of width 8");
  write(kvzap_linear(3, 64, 2));
  EXPECT_EQ(load_gate(path_, model_, "")->description(), "KVzap, linear");
  write(fast_kvzip(3, 64, 2, 2));
  EXPECT_EQ(load_gate(path_, model_, "")->description(), "Fast KVzip, 2 queries and 5 learned keys of width 16");
  write_table("1.0\t0.5\n0.0\t0.25\r\n\n1e-3\t-7\n");
  EXPECT_EQ(load_gate(table_, model_, "")->description(), "DuoAttention, one score for each KV head");
  EXPECT_EQ(load_gate(table_, model_, "")->n_layers(), 3);
  EXPECT_FALSE(load_gate(table_, model_, "")->scores_hidden());
}

TEST_F(KvpressGate, OfAnotherModelIsRefusedWithTheNumbers) {
  for (const int64_t n : {2, 4}) {
    const std::string found = "another model: expected 3 layers, found " + std::to_string(n);
    EXPECT_THAT(error_of(kvzap_mlp(n, 64, 2, 8)), AllOf(HasSubstr(found), HasSubstr(path_.string())));
    EXPECT_THAT(error_of(kvzap_linear(n, 64, 2)), HasSubstr(found));
    EXPECT_THAT(error_of(fast_kvzip(n, 64, 2, 2)), HasSubstr(found));
  }
  EXPECT_THAT(error_of(kvzap_mlp(3, 32, 2, 8)),
              HasSubstr("tensor \"layers.0.0.weight\": expected shape [8, 64], found [8, 32]"));
  EXPECT_THAT(error_of(kvzap_mlp(3, 64, 4, 8)),
              HasSubstr("tensor \"layers.0.2.weight\": expected shape [2, 8], found [4, 8]"));
  EXPECT_THAT(error_of(kvzap_linear(3, 32, 2)),
              HasSubstr("tensor \"layers.0.weight\": expected shape [2, 64], found [2, 32]"));
  EXPECT_THAT(error_of(fast_kvzip(3, 32, 2, 2)),
              HasSubstr("tensor \"layers.0.q_proj.weight\": expected shape [64, 64], found [64, 32]"));
  EXPECT_THAT(error_of(fast_kvzip(3, 64, 4, 2)),
              HasSubstr("tensor \"layers.0.q_proj.weight\": expected shape [64, 64], found [128, 64]"));
  EXPECT_THAT(error_of_table("1\t0\n0\t1\n"), HasSubstr("expected 3 lines, one for each layer, found 2"));
  EXPECT_THAT(error_of_table("1\t0\n0\t1\t0\n"),
              HasSubstr("line 2: expected 2 numbers, one for each KV head, found 3"));
}

TEST_F(KvpressGate, ThatIsDamagedIsRefused) {
  std::vector<NamedTensor> tensors = kvzap_mlp(3, 64, 2, 8);
  tensors.pop_back();
  EXPECT_THAT(error_of(tensors), HasSubstr("tensor \"layers.2.2.bias\" is missing"));
  EXPECT_THAT(error_of(kvzap_mlp(3, 64, 2, 7)), HasSubstr("expected an even number of rows, found 7"));
  tensors = fast_kvzip(3, 64, 2, 2);
  tensors.back() = tensor("layers.2.b", {2, 2}, 1);
  EXPECT_THAT(error_of(tensors), HasSubstr("tensor \"layers.2.b\": expected shape [2, 1, 2], found [2, 2]"));
  tensors = fast_kvzip(3, 64, 2, 2);
  tensors[6] = tensor("layers.0.b", {2, 2}, 1);
  EXPECT_THAT(error_of(tensors), HasSubstr("tensor \"layers.0.b\": expected 3 axes and elements, found shape [2, 2]"));
  for (const char* word : {"x", "nan", "inf", "1,5", "0.5x"}) {
    EXPECT_THAT(error_of_table("1\t0\n0\t" + std::string(word) + "\n"),
                HasSubstr("line 2: expected a number, found \"" + std::string(word) + '"'));
  }
  EXPECT_THAT(error_of_table(""), HasSubstr("found 0"));
}

TEST_F(KvpressGate, NeedsAModelThatShowsHiddenStates) {
  write(kvzap_linear(3, 64, 2));
  write_table("1 0\n0 1\n1 1\n");
  const GateSources of_hidden{.files = {{"zap", path_}}}, of_heads{.files = {{"duo", table_}}};
  EXPECT_TRUE(GateSet(of_hidden, model_).find("zap")->scores_hidden());
  EXPECT_EQ(GateSet(of_heads, model_, false).find("duo")->n_layers(), 3);
  try {
    const GateSet set(of_hidden, model_, false);
    FAIL() << "no error";
  } catch (const CacheError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("gates: \"zap\": KVzap, linear, scores hidden states: expected backend native, found torch"));
  }
}

TEST_F(KvpressGate, LeavesOutLayersWithAWindow) {
  model_.sliding_window = 16;
  model_.window_layers = {false, true, false};
  write(kvzap_linear(3, 64, 2));
  write_table("1 0\n0 1\n1 1\n");
  EXPECT_EQ(load_gate(path_, model_, "")->n_layers(), 2);
  EXPECT_EQ(load_gate(table_, model_, "")->n_layers(), 2);
}

// Keeps the hidden states that a model shows, as f32, beside the cache that it shows them to.
class HiddenRecorder final : public ForwardingCache {
 public:
  HiddenRecorder(SequenceCache* cache, const ModelConfig& config, kernels::KvType type)
      : ForwardingCache({cache}), width_(config.hidden_size), type_(type) {
    rows.resize(static_cast<size_t>(config.n_layers));
  }
  bool wants_hidden() const override { return true; }
  void show_hidden(int64_t layer, const void* shown, int64_t n) override {
    std::vector<float>& all = rows[static_cast<size_t>(layer)];
    for (int64_t i = 0; i < n * width_; ++i) {
      all.push_back(type_ == kernels::KvType::kF32 ? static_cast<const float*>(shown)[i]
                                                   : from_bf16(static_cast<const uint16_t*>(shown)[i]));
    }
    ForwardingCache::show_hidden(layer, shown, n);
  }
  std::unique_ptr<SequenceCache> fork() const override { return nullptr; }
  std::unique_ptr<SequenceCache> resume(int64_t) const override { return nullptr; }

  std::vector<std::vector<float>> rows;  // by layer: [n, hidden_size]

 private:
  int64_t width_;
  kernels::KvType type_;
};

// Returns the scores of all recorded tokens of a layer: f32 [n, n_kv_heads].
std::vector<float> scores_of(const HiddenGate& gate, int64_t layer, const HiddenRecorder& recorder) {
  const std::vector<float>& rows = recorder.rows[static_cast<size_t>(layer)];
  std::vector<uint16_t> x(rows.size());
  std::transform(rows.begin(), rows.end(), x.begin(), to_bf16);
  const int64_t n = std::ssize(rows) / gate.hidden_size();
  std::vector<float> scores(static_cast<size_t>(n * gate.n_kv_heads()));
  ThreadPool alone(1);
  gate.score(alone, layer, x.data(), n, scores.data());
  return scores;
}

class KvpressParity : public testing::TestWithParam<std::string> {};

TEST_P(KvpressParity, ScoresEqualThoseOfKvpress) {
  const std::filesystem::path folder = SMARTKV_FIXTURES "/gates";
  const nlohmann::json fixture = nlohmann::json::parse(std::ifstream(folder / "scores.json"));
  const Folder model_folder;
  write_case(model_folder, architecture_cases()["llama_odd"]);
  const auto weights = Weights::open(model_folder.path());
  const auto loaded = load_gate(folder / (GetParam() + ".safetensors"), weights->config(), "");
  const auto& gate = dynamic_cast<const HiddenGate&>(*loaded);
  Served served(*weights, "f32");
  const std::vector<TokenId> tokens = fixture["tokens"];
  const auto cache = served.policy->new_sequence(0);
  HiddenRecorder recorder(cache.get(), weights->config(), kernels::KvType::kF32);
  const SequenceInput input{tokens, &recorder, 0};
  served.model->forward({&input, 1}, nullptr);
  for (int64_t layer = 0; layer < weights->config().n_layers; ++layer) {
    const std::vector<float> scores = scores_of(gate, layer, recorder);
    const auto& expected = fixture["scores"][GetParam()][static_cast<size_t>(layer)];
    const auto n_heads = static_cast<size_t>(gate.n_kv_heads());
    ASSERT_EQ(expected.size(), n_heads);
    for (size_t head = 0; head < n_heads; ++head) {
      for (size_t t = 0; t < tokens.size(); ++t) {
        ASSERT_NEAR(scores[t * n_heads + head], expected[head][t].get<float>(), 0.02)  // inputs are rounded to bf16
            << "layer " << layer << ", head " << head << ", token " << t;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gates, KvpressParity, testing::Values("kvzap_linear", "kvzap_mlp", "fast_kvzip"),
                         [](const auto& gate) { return gate.param; });

class ServedGate : public KvpressGate {
 protected:
  ServedGate() : served_(TinyWeights(model_), "bf16") {
    write(kvzap_mlp(3, 64, 2, 8));
    gate_ = load_gate(path_, model_, "");
    served_.context.threads = &served_.pool;
    served_.context.load_gate = [this](const std::string&) { return gate_; };
  }
  std::unique_ptr<KvCachePolicy> policy(const std::string& sizes, const std::string& prefill) {
    return served_.model->make_policy(
        served_.context,
        {{"policy", "gated_eviction"}, {"tokens", 256}, {"gate", "zap"}, {"sizes", sizes}, {"prefill", prefill}});
  }
  // Runs the tokens that the cache lacks, in passes of at most `chunk` tokens. Returns their logits.
  std::vector<float> run(SequenceCache* cache, int64_t chunk, SequenceCache* shown = nullptr) {
    std::vector<float> logits;
    while (cache->tokens() < std::ssize(tokens_)) {
      const int64_t at = cache->tokens(), n = std::min({chunk, std::ssize(tokens_) - at, cache->next_boundary() - at});
      const SequenceInput input{std::span(tokens_).subspan(static_cast<size_t>(at), static_cast<size_t>(n)),
                                shown == nullptr ? cache : shown, n};
      std::vector<float> rows(static_cast<size_t>(n * model_.vocab_size));
      served_.model->forward({&input, 1}, rows.data());
      cache->commit(at + n);
      logits.insert(logits.end(), rows.begin(), rows.end());
    }
    return logits;
  }
  std::vector<std::vector<int64_t>> positions(const SequenceCache& cache) const {
    std::vector<std::vector<int64_t>> all;
    for (int64_t layer = 0; layer < 3; ++layer) {
      for (int64_t head = 0; head < 2; ++head) all.push_back(cache.positions(layer, head));
    }
    return all;
  }

  Served served_;
  std::shared_ptr<const Gate> gate_;
  std::vector<TokenId> tokens_ = some_tokens(420, 259, 7);
};

TEST_F(ServedGate, EvictsAsTheScoresOfHiddenStatesSay) {
  const auto& gate = dynamic_cast<const HiddenGate&>(*gate_);
  EXPECT_TRUE(served_.model->shows_hidden());
  for (const char* prefill : {"exact", "streaming"}) {
    const auto cache = policy("equal", prefill)->new_sequence(420);
    HiddenRecorder recorder(cache.get(), model_, kernels::KvType::kBf16);
    run(cache.get(), 100, &recorder);
    for (int64_t layer = 0; layer < 3; ++layer) {
      const std::vector<float> scores = scores_of(gate, layer, recorder);
      for (int64_t head = 0; head < 2; ++head) {
        std::vector<int64_t> order(320 - 4);  // Tokens that left the tail, except for sinks.
        std::iota(order.begin(), order.end(), int64_t{4});
        std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
          return scores[static_cast<size_t>(a * 2 + head)] > scores[static_cast<size_t>(b * 2 + head)];
        });
        std::set<int64_t> expected(order.begin(), order.begin() + 128 - 4);
        for (int64_t i = 0; i < 4; ++i) expected.insert(i);
        for (int64_t i = 320; i < 420; ++i) expected.insert(i);
        const std::vector<int64_t> found = cache->positions(layer, head);
        EXPECT_EQ(std::set<int64_t>(found.begin(), found.end()), expected) << prefill << ", " << layer << ", " << head;
      }
    }
  }
}

TEST_F(ServedGate, ResultsDependOnNeitherChunksNorPrefixesNorTheBatch) {
  for (const char* sizes : {"equal", "shared"}) {
    for (const char* prefill : {"exact", "streaming"}) {
      const auto of = policy(sizes, prefill);
      const auto fresh = of->new_sequence(400), pieces = of->new_sequence(400);
      const std::vector<float> expected = run(fresh.get(), 200);
      EXPECT_EQ(run(pieces.get(), 33), expected);
      EXPECT_EQ(positions(*pieces), positions(*fresh));
      // A prompt with the same first 300 tokens left a state.
      const auto other = of->new_sequence(390);
      const std::vector<TokenId> all = tokens_;
      tokens_.resize(300);
      run(other.get(), 64);
      tokens_ = all;
      const auto resumed = other->resume(400);
      ASSERT_NE(resumed, nullptr);
      const std::vector<float> rest = run(resumed.get(), 50);
      EXPECT_TRUE(std::equal(rest.begin(), rest.end(), expected.begin() + 300 * model_.vocab_size));
      EXPECT_EQ(positions(*resumed), positions(*fresh));
      // Two sequences, of which one is in other company.
      const auto together = of->new_sequence(400), neighbor = served_.policy->new_sequence(0);
      while (together->tokens() < 420) {
        const int64_t at = together->tokens(), n = std::min({int64_t{37}, 420 - at, together->next_boundary() - at});
        const auto part = std::span(tokens_).subspan(static_cast<size_t>(at), static_cast<size_t>(n));
        const std::vector<SequenceInput> batch = {{part, neighbor.get(), 1}, {part, together.get(), n}};
        std::vector<float> rows(static_cast<size_t>((n + 1) * model_.vocab_size));
        served_.model->forward(batch, rows.data());
        EXPECT_TRUE(std::equal(rows.begin() + model_.vocab_size, rows.end(), expected.begin() + at * model_.vocab_size))
            << at;
        together->commit(at + n);
        neighbor->commit(at + n);
      }
      EXPECT_EQ(positions(*together), positions(*fresh));
    }
  }
}

}  // namespace
}  // namespace smartkv
