// The generations of one API request: submitted together, read as one sequence of events.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "server/openai/api_request.h"

namespace smartkv::openai {

class GenerationRun {
 public:
  enum class Status : uint8_t { kEvent, kTimeout, kEnd };

  // Checks every generation before it queues the first; throws ApiError. Destroying it cancels what still runs.
  // `client_gone`: asked while a grammar compiles; true ends that (499). Null: never.
  GenerationRun(Engine& engine, const ApiRequest& request, const std::function<bool()>& client_gone = nullptr);

  // `event->choice` counts over all prompts, prompt-major. Waits at most about 20 ms.
  Status next(GenerationEvent* event);

  const std::vector<TokenLogprob>& prompt_logprobs(int32_t choice) const;
  // Over all prompts: counts and bytes are sums, the phases of time those of the slowest.
  RequestUsage usage() const;

 private:
  int32_t choices_per_prompt_;
  std::vector<std::unique_ptr<GenerationStream>> streams_;
  std::vector<bool> ended_;
  size_t turn_ = 0;  // the stream to look at first, so that none waits for the others
};

}  // namespace smartkv::openai
