#include "engine/speculation/speculator.h"

#include <gtest/gtest.h>

#include "tests/engine/fake_model.h"

namespace smartkv {
namespace {

TEST(Speculator, AModelThatDraftsForItselfReadsRecentTokens) {
  FakeModel model;
  const PolicyContext context{fake_cache_shape(), PagePool::create(fake_cache_shape())};
  const Speculator speculator(&model, &context, nullptr, nullptr, nullptr, kFakeVocab, 1024);
  SpeculationSpec spec;
  spec.method = DraftMethod::kSelf;
  EXPECT_EQ(speculator.prepare(spec)->policy->name(), "streaming");
}

}  // namespace
}  // namespace smartkv
