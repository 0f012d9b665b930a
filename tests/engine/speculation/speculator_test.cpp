#include "engine/speculation/speculator.h"

#include <gtest/gtest.h>

#include "tests/engine/fake_model.h"

namespace smartkv {
namespace {

TEST(Speculator, AModelThatDraftsForItselfKeepsWhatItsLayersTake) {
  FakeModel model;
  PolicyContext context{fake_cache_shape(), PagePool::create(fake_cache_shape())};
  const auto cache_of_self = [&] {
    const Speculator speculator(&model, &context, nullptr, nullptr, nullptr, kFakeVocab, 1024);
    SpeculationSpec spec;
    spec.method = DraftMethod::kSelf;
    return std::string(speculator.prepare(spec)->policy->name());
  };
  EXPECT_EQ(cache_of_self(), "streaming");
  context.window = {100, true};  // streaming does not keep tokens in order
  EXPECT_EQ(cache_of_self(), "k4v4");
}

}  // namespace
}  // namespace smartkv
