// The responses of /v1/responses that clients may ask for again: those that are stored, and those that still run in the
// background. Thread-safe.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "server/openai/responses.h"

namespace smartkv::http {

class ResponseStore {
 public:
  using OnEvent = std::function<void(const GenerationEvent&)>;

  // Requests that run in the background may hold `max_background_bytes` of text.
  ResponseStore(std::unique_ptr<openai::TextStore> texts, int64_t max_conversation_bytes, int64_t max_background_bytes)
      : stored(std::move(texts), max_conversation_bytes), max_background_bytes_(max_background_bytes) {}
  ~ResponseStore();  // cancels what runs in the background

  // Returns the `keep` of a ResponsesStream. REQUIRES: the request outlives the result.
  std::function<bool(const openai::Json&)> keeper(const openai::ResponsesRequest& request, std::string owner);

  // Runs a response to its end, on a thread that all such responses share, and returns it as it begins. `begin` queues
  // the request. `on_event` is called for every event, and lives as long as the run. Throws ApiError, before it calls
  // `begin`, if the requests that run hold too much (429), or this one alone does (413).
  openai::Json start(std::unique_ptr<openai::ResponsesRequest> request,
                     const std::function<openai::GenerationRun()>& begin, const std::string& owner, OnEvent on_event);

  // These throw ApiError (404) if there is no such response that belongs to `owner`, the name of an API key. A response
  // that still runs is cancelled before it is deleted. cancel() throws ApiError (400) if the response never ran in the
  // background.
  openai::Json show(const std::string& id, const std::string& owner);
  // Returns the items of all turns before the output of `id`. Throws as StoredResponses::input_items() does, too.
  openai::Json input_items(const std::string& id, const std::string& owner);
  void erase(const std::string& id, const std::string& owner);
  openai::Json cancel(const std::string& id, const std::string& owner);

  void wait_until_idle();  // returns when nothing runs in the background

  openai::StoredResponses stored;

 private:
  struct Job;
  using Jobs = std::map<std::string, std::shared_ptr<Job>>;  // by the response's id

  void take_bytes(int64_t bytes);  // throws ApiError (413 or 429)
  void work();
  bool step(Job& job);  // reads an event; returns whether there was one
  // Cancels a running response, waits for its end and returns it. Returns null if there is no such response.
  openai::Json stop(const std::string& id, const std::string& owner);

  std::mutex mutex_;  // also of the streams of the jobs
  std::condition_variable changed_;
  Jobs jobs_;
  const int64_t max_background_bytes_;
  int64_t background_bytes_ = 0;  // of the jobs
  bool woken_ = false;            // whether a job is new or cancelled
  bool ending_ = false;
  std::thread thread_;  // started with the first job
};

}  // namespace smartkv::http
