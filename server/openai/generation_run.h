// The generations of one API request. They are submitted together and read as one sequence of events, by one thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "server/openai/api_request.h"

namespace smartkv::openai {

class GenerationRun {
 public:
  enum class Status : uint8_t {
    kEvent,    // next() has read an event
    kTimeout,  // no event arrived in time
    kEnd       // all generations have ended
  };

  // Submits the generations; all are checked before the first is queued. Throws ApiError. The destructor cancels
  // generations that still run. `client_gone` is called while a grammar compiles; if it returns true, compiling stops
  // (499). It may be null. The request's states belong to `owner` and may take owner_kv_bytes; 0 for no limit.
  GenerationRun(Engine& engine, const ApiRequest& request, const std::function<bool()>& client_gone = nullptr,
                const std::string& owner = {}, int64_t owner_kv_bytes = 0);

  // Reads the next event; waits at most about `wait` for it. `event->choice` counts the choices of all prompts: n
  // choices of the first prompt, then those of the second.
  Status next(GenerationEvent* event, std::chrono::milliseconds wait = std::chrono::milliseconds(20));

  // Returns the log probabilities of the prompt of a choice, from its second token on.
  const std::vector<TokenLogprob>& prompt_logprobs(int32_t choice) const;
  // Returns the usage of all prompts together. Counts, bytes and sampling time are sums. The other times are those of
  // the generation that took longest.
  RequestUsage usage() const;

 private:
  int32_t choices_per_prompt_;
  std::vector<std::unique_ptr<GenerationStream>> streams_;
  std::vector<bool> ended_;
  size_t turn_ = 0;  // the stream to read first; it rotates, so that no stream waits for the others
};

}  // namespace smartkv::openai
