// An engine over the fake model, with helpers that send it requests and read the answers.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>

#include "engine/engine_impl.h"
#include "tests/engine/fake_model.h"

namespace smartkv {

// Generous, because an instrumented model on a busy machine is slow.
constexpr std::chrono::milliseconds kPatience{120'000};

struct ChoiceResult {
  std::string text, error;
  std::vector<TokenId> tokens;
  std::vector<TokenLogprob> logprobs;
  FinishReason finish = FinishReason::kNone;
  std::optional<std::string> stop_string;
};

// Reads a stream to its end. Returns the joined events of each of its n choices.
inline std::vector<ChoiceResult> read_all(GenerationStream& stream, int32_t n = 1) {
  std::vector<ChoiceResult> results(static_cast<size_t>(n));
  GenerationEvent event;
  for (;;) {
    const auto status = stream.next(&event, kPatience);
    if (status == GenerationStream::Status::kEnd) return results;
    if (status == GenerationStream::Status::kTimeout) {
      ADD_FAILURE() << "no event in time";
      return results;
    }
    ChoiceResult& result = results[static_cast<size_t>(event.choice)];
    EXPECT_EQ(result.finish, FinishReason::kNone) << "an event after the last one";
    result.text += event.text;
    result.tokens.insert(result.tokens.end(), event.tokens.begin(), event.tokens.end());
    result.logprobs.insert(result.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    result.finish = event.finish;
    result.error = event.error;
    result.stop_string = event.stop_string;
  }
}

// Returns a request with a prompt of letters that depends on the seed, which also seeds its sampling.
inline GenerationRequest make_request(int64_t prompt_tokens, int64_t max_tokens, uint64_t seed = 1) {
  GenerationRequest request;
  request.id = "test-" + std::to_string(seed);
  for (int64_t i = 0; i < prompt_tokens; ++i) {
    request.prompt.push_back(static_cast<TokenId>(1 + (static_cast<uint64_t>(i) * 7 + seed) % 26));
  }
  request.max_tokens = max_tokens;
  request.sampling.seed = seed;
  return request;
}

// Holds the model's passes until a test lets them through.
class Latch {
 public:
  // Called from the engine thread, in a pass. Blocks until the pass is let through.
  void wait_in_pass() {
    std::unique_lock lock(mutex_);
    waiting_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_ || permits_ > 0; });
    if (!open_) --permits_;
    waiting_ = false;
  }
  // Blocks until a pass waits.
  void wait_for_pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_ && permits_ == 0; });
  }
  // Lets one pass through, now or later.
  void let_one_pass() {
    const std::lock_guard lock(mutex_);
    ++permits_;
    changed_.notify_all();
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false, waiting_ = false;
  int permits_ = 0;
};

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() {
    options.model.context_length = 1024;
    options.kv_cache_bytes = int64_t{64} << 20;
    // Off unless a test is about it, so that all memory is free when a request ends.
    options.prefix_cache_bytes = 0;
  }

  // Creates `engine` with the options and models set so far. Takes the models.
  void start() {
    EngineParts parts;
    parts.options = options;
    if (threads > 1) parts.threads = std::make_unique<ThreadPool>(threads);
    served = model.get();
    parts.model = std::move(model);
    parts.tokenizer = std::make_unique<FakeTokenizer>();
    parts.cache_shape = parts.draft_shape = fake_cache_shape();
    parts.draft_model = std::move(draft_model);
    parts.int4_model = std::move(int4_model);
    engine = std::make_unique<EngineImpl>(std::move(parts));
  }
  // Makes every pass of the model wait for `gate`, which must outlive the engine.
  void hold_passes(Latch* gate) {
    model->on_forward = [gate](std::span<const SequenceInput>) { gate->wait_in_pass(); };
  }
  ChoiceResult generate(GenerationRequest request) {
    const auto stream = engine->submit(std::move(request));
    return read_all(*stream)[0];
  }
  // Submits a request that the engine must refuse, and returns the error.
  RequestError refusal(const GenerationRequest& request) {
    try {
      engine->submit(request);
    } catch (const RequestError& error) {
      return error;
    }
    ADD_FAILURE() << "the request was taken";
    return {RequestError::Kind::kInvalid, "", ""};
  }

  EngineOptions options;
  int threads = 1;
  std::unique_ptr<FakeModel> model = std::make_unique<FakeModel>();
  FakeModel* served = nullptr;                         // the model that the engine runs and owns
  std::unique_ptr<FakeModel> draft_model, int4_model;  // null if the engine has none
  std::unique_ptr<EngineImpl> engine;
};

}  // namespace smartkv
