// What follows from the bytes that stores state.
#include "cache/stores/staged_bytes.h"

#include <algorithm>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "cache/stores/staged_policy.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

// A store that states given bytes, by the tokens that have left the tail.
class StatingStore final : public TokenStore {
 public:
  explicit StatingStore(std::map<int64_t, StoreBytes> stated) : stated_(std::move(stated)) {}
  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<StatingStore>(*this); }
  int64_t entries(int64_t) const override { return 0; }
  void view(int64_t, std::vector<kernels::KvSegment>*) const override {}
  void positions(int64_t, int64_t, std::vector<int64_t>*) const override {}
  void take(const StageView&, int64_t, EvictedTokens*) override {}
  StoreBytes bytes_at(const StageView&, const Moment& then) const override { return stated_.at(then.left); }
  void save(StateWriter*) const override {}
  void load(const StageView&, StateReader*) override {}
  void add_stats(const StageView&, CacheStats*) const override {}

 private:
  std::map<int64_t, StoreBytes> stated_;
};

class StagedBytesTest : public testing::Test {
 protected:
  // Returns the most bytes of a sequence that grows to `tokens` tokens, in pages of a layer. Its boundary at 128 evicts
  // 64 tokens.
  double peak(std::map<int64_t, StoreBytes> stated, int64_t tokens) {
    std::vector<std::unique_ptr<TokenStore>> stores;
    stores.push_back(std::make_unique<StatingStore>(std::move(stated)));
    const StageView view{tail_, 0, 0, boundaries_.after(0), boundaries_};
    return static_cast<double>(StagedBytes(context_, view, stores).peak(tokens)) / static_cast<double>(page_);
  }

  CacheShape shape_{4, 1, 64, kernels::KvType::kBf16};
  PolicyContext context_{shape_, PagePool::create(shape_)};  // one worker
  const int64_t page_ = context_.pool->page_bytes();
  Boundaries boundaries_{64, 64, 0};
  std::vector<DenseLayer> tail_ = std::vector<DenseLayer>(4, DenseLayer(context_.pool));
};

TEST_F(StagedBytesTest, ALayerIsFreedBeforeTheNextIsTaken) {
  // Each layer gets half a page, and gives back a page. One layer at a time holds both.
  EXPECT_EQ(peak({{0, {}}, {64, {.pages = 2 * page_}}}, 127), 8);
  EXPECT_EQ(peak({{0, {}}, {64, {.pages = 2 * page_}}}, 128), 8.5);
  EXPECT_EQ(peak({{0, {}}, {64, {.pages = 2 * page_}}}, 129), 12 - 4 + 2);
}

TEST_F(StagedBytesTest, AStoreThatTakesMoreThanItFreesGrowsLayerByLayer) {
  // Each layer gets one and a half pages: half a page more than it gives back.
  EXPECT_EQ(peak({{0, {}}, {64, {.pages = 6 * page_}}}, 128), 8 + 4 * 0.5 + 1);
}

TEST_F(StagedBytesTest, StateCountsBeforeAndAfter) {
  EXPECT_EQ(peak({{0, {.state = 3 * page_}}, {64, {.pages = 2 * page_}}}, 128), 8 + 3 + 0.5);
  EXPECT_EQ(peak({{0, {}}, {64, {.pages = 2 * page_, .state = 5 * page_}}}, 128), 8 + 5 + 0.5);
}

TEST_F(StagedBytesTest, LayersMayTakeUnequalShares) {
  // The third layer takes more than it gives back.
  const std::vector<int64_t> take = {0, page_ / 2, 2 * page_, 0};
  EXPECT_EQ(peak({{0, {}}, {64, {.pages = 3 * page_, .take = take}}}, 128), 8 + 1 + 1);
}

TEST_F(StagedBytesTest, OfTwoBoundsTheSmallerCounts) {
  const std::vector<int64_t> take(4, page_);
  EXPECT_EQ(peak({{0, {}}, {64, {.pages = 4 * page_, .take = take}}}, 128), 8 + 1);
  EXPECT_EQ(peak({{0, {}}, {64, {.pages = 4 * page_, .prepared = page_, .take = take}}}, 128), 8 + 1 + 1);
  // Together the pages grow by a quarter of a page only, and need half a page for a while.
  EXPECT_EQ(peak({{0, {}}, {64, {.pages = page_ / 4, .working = page_ / 2, .prepared = page_, .take = take}}}, 128),
            8.75);
}

TEST_F(StagedBytesTest, SharedPagesOfTheTailAreNotFreed) {
  for (DenseLayer& layer : tail_) layer.reserve(0, 100);
  const StageView alone{tail_, 0, 100, 128, boundaries_, false};
  std::vector<std::unique_ptr<TokenStore>> stores;
  stores.push_back(std::make_unique<StatingStore>(std::map<int64_t, StoreBytes>{{0, {}}, {64, {.pages = 2 * page_}}}));
  EXPECT_EQ(StagedBytes(context_, alone, stores).at(100), 8 * page_);
  EXPECT_EQ(StagedBytes(context_, alone, stores).at(128), 6 * page_);
  const std::vector<DenseLayer> fork = tail_;
  const StageView shared{tail_, 0, 100, 128, boundaries_, true};
  // The second page of each layer is copied before it is written, and the first stays with the fork.
  EXPECT_EQ(StagedBytes(context_, shared, stores).at(128), (8 + 4 + 2) * page_);
  EXPECT_EQ(StagedBytes(context_, shared, stores).peak(128), (8 + 4 + 2) * page_);
}

// Admission counts the bound for every sequence, so it must be reached.
TEST(StagedPolicyBytes, ATailTakesAsMuchAsItsBoundariesLetItGrow) {
  const CacheShape shape{2, 1, 64, kernels::KvType::kBf16};
  const PolicyContext context{shape, PagePool::create(shape)};
  constexpr int64_t kEnd = 2000;
  for (const int64_t window : {0, 20, 64, 70, 192}) {
    for (const int64_t stride : {int64_t{64}, int64_t{512}, Boundaries::kNever}) {
      const StagedPolicy policy("tail", context, {window, stride}, std::vector<std::unique_ptr<StoreFactory>>());
      for (int64_t prompt = 0; prompt < 1100; prompt += 7) {
        const Boundaries boundaries{window, stride, prompt};
        int64_t longest = 0, left = 0;
        for (int64_t at = boundaries.after(0); at <= kEnd; at = boundaries.after(at)) {
          longest = std::max(longest, at - left);
          left = boundaries.leaving(at);
        }
        longest = std::max(longest, kEnd - left);
        EXPECT_EQ(policy.max_bytes(prompt, kEnd), dense_bytes(shape, longest))
            << window << ", " << stride << ", " << prompt;
      }
    }
  }
}

}  // namespace
}  // namespace smartkv
