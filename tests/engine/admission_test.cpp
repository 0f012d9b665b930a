// Requests on their way into the queue, without an engine thread.
#include "engine/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "tests/engine/engine_fixture.h"

namespace smartkv {
namespace {

using Kind = RequestError::Kind;

class AdmissionTest : public ::testing::Test {
 protected:
  // Returns the object under test, made from `parts` as they are at the first call.
  Admission& admission() {
    if (!admission_) admission_.emplace(parts, context_, none_, speculator_, &prefixes_, kFakeVocab);
    return *admission_;
  }
  std::shared_ptr<Request> admit(GenerationRequest request) { return admission().admit(std::move(request), nullptr); }
  // Calls `work`, which must throw a RequestError, and returns it.
  template <typename Work>
  static RequestError refusal(const Work& work) {
    try {
      work();
    } catch (const RequestError& error) {
      return error;
    }
    ADD_FAILURE() << "nothing was refused";
    return {Kind::kInvalid, "", ""};
  }

  EngineParts parts = [] {
    EngineParts fake;
    fake.options.model.context_length = 1024;
    fake.options.kv_cache_bytes = int64_t{64} << 20;
    fake.model = std::make_unique<FakeModel>();
    fake.tokenizer = std::make_unique<FakeTokenizer>();
    fake.cache_shape = fake_cache_shape();
    return fake;
  }();
  PrefixCache prefixes_{int64_t{1} << 20};

 private:
  PolicyContext context_{fake_cache_shape(), PagePool::create(fake_cache_shape())}, none_;
  Speculator speculator_{parts.model.get(), &context_, nullptr, &none_, nullptr, kFakeVocab, 1024};
  std::optional<Admission> admission_;
};

GenerationRequest make_self_drafting(int64_t tokens) {
  GenerationRequest request = make_request(40, 10);
  request.kv_cache = {{"policy", "streaming"}, {"tokens", tokens}};
  request.speculative = {{"method", "self"}, {"tokens", 2}, {"kv_cache", request.kv_cache}};
  return request;
}

TEST_F(AdmissionTest, RequestsWithEqualFieldsShareTheirObjects) {
  const auto first = admit(make_self_drafting(256)), second = admit(make_self_drafting(256));
  EXPECT_EQ(first->policy, second->policy);
  EXPECT_EQ(first->speculation, second->speculation);
  const auto other = admit(make_self_drafting(320));
  EXPECT_NE(first->policy, other->policy);
  EXPECT_NE(first->speculation, other->speculation);
  EXPECT_EQ(admit(make_request(40, 10))->policy, admit(make_request(50, 20))->policy);  // the server's default
}

TEST_F(AdmissionTest, ARequestHoldsItsObjectsAfterTheyAreForgotten) {
  const auto first = admit(make_self_drafting(256));
  const std::weak_ptr<const KvCachePolicy> policy = first->policy;
  for (int64_t tokens = 257; tokens < 400; ++tokens) admit(make_self_drafting(tokens));
  EXPECT_EQ(policy.use_count(), 1);
  EXPECT_EQ(first->policy->name(), "streaming");
  EXPECT_NE(admit(make_self_drafting(256))->policy, first->policy);
}

TEST_F(AdmissionTest, ManyThreadsGetTheSameObjects) {
  admission();
  std::vector<std::shared_ptr<Request>> requests(8);
  std::vector<std::thread> threads;
  for (auto& request : requests) {
    threads.emplace_back([&request, this] {
      for (int i = 0; i < 20; ++i) request = admit(make_self_drafting(256 + 64 * (i % 4)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& request : requests) {
    EXPECT_EQ(request->policy, requests[0]->policy);
    EXPECT_EQ(request->speculation, requests[0]->speculation);
  }
}

TEST_F(AdmissionTest, KeysOfPrefixesNameThePolicyTheDraftAndTheSalt) {
  const auto plain = admit(make_request(40, 10)), drafting = admit(make_self_drafting(256));
  EXPECT_EQ(plain->prefixes, &prefixes_);
  EXPECT_EQ(plain->draft_prefix_key, "");
  EXPECT_NE(plain->prefix_key, drafting->prefix_key);
  EXPECT_THAT(drafting->draft_prefix_key, ::testing::EndsWith(drafting->prefix_key));
  EXPECT_NE(drafting->draft_prefix_key, drafting->prefix_key);
  GenerationRequest salted = make_request(40, 10);
  salted.cache_salt = "somebody else";
  EXPECT_NE(admit(salted)->prefix_key, plain->prefix_key);
  GenerationRequest echo = make_request(40, 10);
  echo.prompt_logprobs = 1;
  EXPECT_EQ(admit(echo)->prefixes, nullptr);
}

TEST_F(AdmissionTest, AHintIsLimitedByTheOperator) {
  parts.options.retention_seconds = 60;
  GenerationRequest request = make_request(40, 10);
  const auto retention = [&](int32_t priority, int64_t seconds) {
    request.retention = {priority, seconds};
    return admit(request)->lookup.retention;
  };
  const auto after = [](int64_t seconds) { return Clock::now() + std::chrono::seconds(seconds); };
  EXPECT_EQ(retention(60, 1000).weight_at(after(50)), 2);
  EXPECT_EQ(retention(60, 1000).weight_at(after(70)), 1);
  EXPECT_EQ(retention(60, 10).weight_at(after(50)), 1);
  EXPECT_EQ(retention(50, 1000).weight_at(after(0)), 1);
  EXPECT_EQ(retention(40, 1).weight_at(after(1000)), 0.5);  // a client may always give up memory
}

TEST_F(AdmissionTest, WithoutAPrefixCacheNoRequestUsesOne) {
  parts.options.prefix_cache_bytes = 0;
  EXPECT_EQ(admit(make_request(40, 10))->prefixes, nullptr);
}

TEST_F(AdmissionTest, DefaultsThatCannotBeUsedAreRefusedAtOnce) {
  parts.options.kv_cache = "no-such-policy";
  EXPECT_EQ(refusal([&] { admission(); }).param, "kv_cache");
  parts.options.kv_cache = nullptr;
  parts.options.speculative = "draft_model";
  EXPECT_EQ(refusal([&] { admission(); }).param, "speculative.method");
  parts.options.speculative = nullptr;
  EXPECT_EQ(admission().describe()["kv_cache"], "full");
}

TEST_F(AdmissionTest, CheckRefusesAsAdmitDoes) {
  parts.options.kv_cache_bytes = kernels::kPageTokens * fake_cache_shape().bytes_per_token();
  GenerationRequest large = make_request(40, 100), wrong = make_request(40, 10);
  wrong.sampling.temperature = -1;
  for (const auto& [request, kind] : {std::pair(large, Kind::kTooLarge), std::pair(wrong, Kind::kInvalid)}) {
    const RequestError checked = refusal([&] { admission().check(request); });
    const RequestError admitted = refusal([&] { admit(request); });
    EXPECT_EQ(checked.kind, kind);
    EXPECT_EQ(admitted.kind, kind);
    EXPECT_STREQ(checked.what(), admitted.what());
  }
}

TEST_F(AdmissionTest, AfterStopGrammarsAreRefused) {
  GenerationRequest constrained = make_request(40, 10);
  constrained.grammar = "root ::= [a-z]+";
  constrained.client_gone = [] { return false; };
  const auto request = admit(constrained);
  EXPECT_NE(request->grammar, nullptr);
  EXPECT_TRUE(request->generation.client_gone == nullptr);
  admission().stop();
  constrained.grammar = "root ::= [a-c]+";
  EXPECT_EQ(refusal([&] { admit(constrained); }).kind, Kind::kDraining);
  EXPECT_EQ(admit(make_request(40, 10))->grammar, nullptr);
}

}  // namespace
}  // namespace smartkv
