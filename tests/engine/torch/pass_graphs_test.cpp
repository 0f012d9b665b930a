// When pieces of a pass are captured, replayed and captured again, and the torch backend with such graphs.
#include "engine/torch/pass_graphs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/model/architecture_cases.h"
#include "tests/engine/torch/recorded_graphs.h"
#include "tests/engine/torch/tiny_engine.h"

namespace smartkv {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A recorder of graphs that notes each call.
class NotingRecorder final : public GraphRecorder {
 public:
  explicit NotingRecorder(std::vector<std::string>* notes, bool can_capture = true)
      : notes_(notes), can_capture_(can_capture) {}
  void warm_up(const std::function<void()>& work) override {
    notes_->push_back("warm up");
    work();
  }
  std::unique_ptr<DeviceGraph> capture(const std::function<void()>&) override {
    if (!can_capture_) throw std::runtime_error("out of memory");
    notes_->push_back("capture");
    return std::make_unique<Graph>(notes_);
  }
  int64_t bytes() const override { return 2'500'000; }

 private:
  struct Graph final : DeviceGraph {
    explicit Graph(std::vector<std::string>* to) : notes(to) {}
    void replay() override { notes->push_back("replay"); }
    std::vector<std::string>* notes;
  };
  std::vector<std::string>* notes_;
  bool can_capture_;
};

class Graphs : public testing::Test {
 protected:
  PassGraphs make(bool can_capture = true) {
    return {std::make_unique<NotingRecorder>(&notes_, can_capture),
            [this](LogLevel level, const std::string& message) { log_.emplace_back(level, message); }};
  }
  // Runs a piece and returns the calls that this leads to.
  std::vector<std::string> run(PassGraphs* graphs, int64_t rows, int64_t piece, const void* in = nullptr,
                               const void* out = nullptr) {
    notes_.clear();
    graphs->run(rows, piece, {in, out}, [this] { notes_.push_back("work"); });
    return notes_;
  }
  std::vector<std::string> notes_;
  std::vector<std::pair<LogLevel, std::string>> log_;
};

TEST_F(Graphs, PadToAFewSizes) {
  const PassGraphs graphs = make();
  std::vector<int64_t> padded;
  for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 32, 63, 64, 65, 512}) padded.push_back(graphs.padded(rows));
  EXPECT_THAT(padded, ElementsAre(1, 2, 4, 4, 8, 8, 16, 32, 64, 64, 0, 0));
}

TEST_F(Graphs, AreCapturedTheSecondTimeAndReplayedFromThenOn) {
  PassGraphs graphs = make();
  for (const int64_t rows : {1, 8}) {
    for (const int64_t piece : {0, 1}) {
      EXPECT_THAT(run(&graphs, rows, piece), ElementsAre("warm up", "work"));
    }
    for (const int64_t piece : {0, 1}) {
      EXPECT_THAT(run(&graphs, rows, piece), ElementsAre("capture", "replay"));
      EXPECT_THAT(run(&graphs, rows, piece), ElementsAre("replay"));
    }
  }
}

TEST_F(Graphs, AreCapturedAnewWhereWhatTheyReadOrWriteHasMoved) {
  PassGraphs graphs = make();
  const int places[3] = {};
  run(&graphs, 4, 1, &places[0], &places[1]);
  EXPECT_THAT(run(&graphs, 4, 1, &places[0], &places[1]), ElementsAre("capture", "replay"));
  EXPECT_THAT(run(&graphs, 4, 1, &places[2], &places[1]), ElementsAre("capture", "replay"));
  EXPECT_THAT(run(&graphs, 4, 1, &places[2], &places[0]), ElementsAre("capture", "replay"));
  EXPECT_THAT(run(&graphs, 4, 1, &places[2], &places[0]), ElementsAre("replay"));
}

TEST_F(Graphs, TellHowManyThereAreWhenThatChanged) {
  PassGraphs graphs = make();
  for (int pass = 0; pass < 4; ++pass) {
    for (const int64_t rows : {1, 8}) {
      for (const int64_t piece : {0, 1}) run(&graphs, rows, piece);
    }
  }
  using testing::Pair;
  const std::string end = " rows take 2.5 MB of device memory; ";
  EXPECT_THAT(log_,
              ElementsAre(Pair(LogLevel::kInfo, "CUDA graphs: 2 for passes with 1" + end + "2 captured so far"),
                          Pair(LogLevel::kInfo, "CUDA graphs: 4 for passes with 1, 8" + end + "4 captured so far")));
}

TEST_F(Graphs, AreGivenUpWithAWarningWhereOneCannotBeCaptured) {
  PassGraphs graphs = make(false);
  run(&graphs, 8, 3);
  EXPECT_THAT(log_, IsEmpty());
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_THAT(run(&graphs, 8, 3), ElementsAre("work"));
    EXPECT_THAT(run(&graphs, 8, 4), ElementsAre("work"));  // later in the same pass
  }
  EXPECT_EQ(graphs.padded(8), 0);
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_EQ(log_[0].first, LogLevel::kWarning);
  EXPECT_THAT(log_[0].second, AllOf(HasSubstr("piece 3 of passes with 8 rows"), HasSubstr("out of memory")));
}

TEST(RecordedGraph, FailsWhereItsWorkHasMoved) {
  torch::Tensor x = torch::ones({4});
  const auto counts = std::make_shared<RecordedCounts>();
  RecordedGraphs recorder(counts);
  const auto graph = recorder.capture([&x] { x.add_(torch::ones({4}) * 2); });
  EXPECT_TRUE(torch::equal(x, torch::full({4}, 1.0f)));  // capturing computes nothing
  graph->replay();
  EXPECT_TRUE(torch::equal(x, torch::full({4}, 3.0f)));
  const torch::Tensor held = x;
  x = torch::ones({4});
  EXPECT_THROW(graph->replay(), std::logic_error);
}

// A torch backend with recorded graphs. It keeps its rows where the caches are.
struct GraphBackend {
  std::shared_ptr<RecordedCounts> counts = std::make_shared<RecordedCounts>();
  std::shared_ptr<std::vector<std::string>> warnings = std::make_shared<std::vector<std::string>>();

  BackendLoader loader() const {
    return [*this](const Weights& weights, kernels::KvType type) {
      const GraphLog log = [to = warnings](LogLevel level, const std::string& what) {
        if (level != LogLevel::kInfo) to->push_back(what);
      };
      return make_torch_backend(weights, product_of(type), "cpu", 2, nullptr, nullptr,
                                std::make_unique<PassGraphs>(std::make_unique<RecordedGraphs>(counts), log));
    };
  }
};

class TorchGraphs : public testing::TestWithParam<std::string> {};

// Returns the cases without experts. Which experts compute a row is not known when a graph is captured, so the program
// does not capture passes with experts.
std::vector<std::string> cases_of_graphs() {
  std::vector<std::string> names = names_of(architecture_cases());
  std::erase_if(names, [](const std::string& name) {
    return architecture_cases()[name]["config"].contains("num_experts_per_tok");
  });
  return names;
}

// Covers every kind of model that the torch backend computes: norms of outputs, biases, multipliers, untied output
// heads.
TEST_P(TorchGraphs, ComputeWhatTransformersDoes) {
  const nlohmann::json& item = architecture_cases()[GetParam()];
  const Folder folder;
  write_case(folder, item);
  const auto weights = Weights::open(folder.path());
  const std::vector<TokenId> tokens = item["tokens"];
  const GraphBackend backend;
  Served served(*weights, "f32", "auto", backend.loader());
  for (const int64_t chunk : {64, 7, 7, 1})
    expect_transformers(item, served.run(tokens, chunk), weights->config().vocab_size);
  EXPECT_GT(backend.counts->replays, backend.counts->captures);
  EXPECT_THAT(*backend.warnings, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Cases, TorchGraphs, testing::ValuesIn(cases_of_graphs()),
                         [](const auto& item) { return item.param; });

// A large pass moves the rows with which graphs were captured. The last layer of another one drops some of its rows.
TEST(TorchPassGraphs, FollowRowsThatMoveAndPassesOfEverySize) {
  const TinyWeights weights(tiny_config());
  const int64_t vocab = weights.config().vocab_size, layers = weights.config().n_layers;
  const GraphBackend backend;
  Served plain(weights, "f32", "auto", torch_loader()), served(weights, "f32", "auto", backend.loader());
  const auto pass = [&](const std::vector<int64_t>& sizes, const std::vector<int64_t>& wanted) {
    std::vector<std::vector<float>> results;
    for (Served* const one : {&plain, &served}) {
      std::vector<std::unique_ptr<SequenceCache>> caches;
      std::vector<std::vector<TokenId>> tokens;
      std::vector<SequenceInput> batch;
      int64_t rows = 0;
      for (size_t i = 0; i < sizes.size(); ++i) {
        tokens.push_back(some_tokens(sizes[i], vocab, i));
        caches.push_back(one->policy->new_sequence(0));
        rows += wanted[i];
      }
      for (size_t i = 0; i < sizes.size(); ++i) batch.push_back({tokens[i], caches[i].get(), wanted[i]});
      results.emplace_back(static_cast<size_t>(rows * vocab));
      one->model->forward(batch, results.back().data());
    }
    if (!results[0].empty()) {
      EXPECT_LT(relative_error(results[1], results[0]), 1e-5);
    }
  };
  RecordedCounts& counts = *backend.counts;
  for (int i = 0; i < 3; ++i) pass({1, 1, 1}, {1, 1, 1});
  EXPECT_EQ(counts.warm_ups, layers + 1);
  EXPECT_EQ(counts.captures, layers + 1);
  EXPECT_EQ(counts.replays, 2 * (layers + 1));
  pass({100}, {1});
  for (int i = 0; i < 2; ++i) pass({1, 1, 1}, {1, 1, 1});
  EXPECT_EQ(counts.replays, 4 * (layers + 1));
  const int64_t before = counts.replays;
  for (int i = 0; i < 3; ++i) pass({5, 20, 2}, {5, 1, 0});  // the last piece has no graph
  EXPECT_EQ(counts.replays, before + 2 * layers);
  for (int i = 0; i < 3; ++i) pass({5, 2}, {5, 2});  // as when drafts are verified
  EXPECT_EQ(counts.replays, before + 2 * layers + 2 * (layers + 1));
  pass({5, 2}, {0, 0});
  EXPECT_THAT(*backend.warnings, IsEmpty());
}

TEST(TorchPassGraphs, AreTheEnginesToUse) {
  ModelConfig config = tiny_config();
  config.vocab_size = kFakeVocab;
  config.head_dim = 64;  // large enough for k4v4
  const TinyWeights weights(config);
  const GraphBackend backend;
  const auto plain = tiny_engine(weights, torch_loader()), with_graphs = tiny_engine(weights, backend.loader());
  const std::vector<GenerationRequest> requests =
      greedy_requests({{}, {{"policy", "snapkv"}, {"tokens", 256}}, "k4v4"},
                      {{}, {{"method", "ngram"}, {"ngram_min", 1}}, "self"}, 100);
  EXPECT_EQ(answers(with_graphs.get(), requests), answers(plain.get(), requests));
  EXPECT_GT(backend.counts->replays, 10 * backend.counts->captures);
  EXPECT_THAT(*backend.warnings, IsEmpty());
}

}  // namespace
}  // namespace smartkv
