#include "server/http/response_store.h"

#include <atomic>
#include <new>
#include <utility>
#include <vector>

#include "engine/log.h"

namespace smartkv::http {

using openai::ApiError;
using openai::GenerationRun;
using openai::Json;

struct ResponseStore::Job {
  Job(std::unique_ptr<openai::ResponsesRequest> asked, GenerationRun begun, std::string key, OnEvent reader,
      ResponseStore& store)
      : request(std::move(asked)),
        run(std::move(begun)),
        owner(std::move(key)),
        on_event(std::move(reader)),
        stream(*request, store.keeper(*request, owner)) {}

  std::unique_ptr<openai::ResponsesRequest> request;
  GenerationRun run;
  std::string owner;
  OnEvent on_event;
  openai::ResponsesStream stream;
  std::atomic<bool> cancelled = false;
  int64_t bytes = 0;   // of the request's text
  bool ended = false;  // of the worker
};

ResponseStore::~ResponseStore() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    for (const auto& [id, job] : jobs_) job->cancelled = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::function<bool(const Json&)> ResponseStore::keeper(const openai::ResponsesRequest& request, std::string owner) {
  return [this, &request, owner = std::move(owner)](const Json& response) {
    try {
      if (stored.put({owner, request.input, response})) return true;
      log_warning(request.chat.id + ": the response is not stored: it has no room, or its file cannot be written");
    } catch (const std::exception& error) {
      log_error(request.chat.id + ": the response is not stored: " + error.what());
    }
    return false;
  };
}

void ResponseStore::take_bytes(int64_t bytes) {
  if (bytes > max_background_bytes_) {
    throw ApiError(413, "invalid_request_error",
                   "'background': this request has " + std::to_string(bytes) + " bytes: expected at most " +
                       std::to_string(max_background_bytes_) + " (stored_responses_bytes)",
                   "background", "request_too_large");
  }
  const std::lock_guard lock(mutex_);
  if (background_bytes_ + bytes > max_background_bytes_) {
    throw ApiError(429, "rate_limit_error",
                   "'background': the requests that run in the background hold " + std::to_string(background_bytes_) +
                       " bytes, and this one has " + std::to_string(bytes) + ": expected at most " +
                       std::to_string(max_background_bytes_) + " together (stored_responses_bytes)",
                   "background", "rate_limit_exceeded", 1);
  }
  background_bytes_ += bytes;
}

Json ResponseStore::start(std::unique_ptr<openai::ResponsesRequest> request,
                          const std::function<GenerationRun()>& begin, const std::string& owner, OnEvent on_event) {
  const std::string id = request->chat.id;
  const auto bytes = static_cast<int64_t>(openai::dump(request->input).size() + openai::dump(request->echoed).size());
  take_bytes(bytes);
  try {
    GenerationRun run = begin();
    const auto job = std::make_shared<Job>(std::move(request), std::move(run), owner, std::move(on_event), *this);
    job->bytes = bytes;
    Json begun = job->stream.json();
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread(&ResponseStore::work, this);
    jobs_.emplace(id, job);
    woken_ = true;
    changed_.notify_all();
    return begun;
  } catch (...) {
    const std::lock_guard lock(mutex_);
    background_bytes_ -= bytes;
    throw;
  }
}

void ResponseStore::work() {
  constexpr auto kPause = std::chrono::milliseconds(20);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    woken_ = false;
    bool any = false;
    try {
      const Jobs jobs = jobs_;
      lock.unlock();
      for (const auto& [id, job] : jobs) any = step(*job) || any;
    } catch (const std::bad_alloc&) {
      log_error("no memory to advance the responses in the background");
    }
    if (!lock.owns_lock()) lock.lock();
    const size_t ended = std::erase_if(jobs_, [this](const auto& each) {
      if (each.second->ended) background_bytes_ -= each.second->bytes;
      return each.second->ended;
    });
    if (ended > 0) changed_.notify_all();
    if (!any) changed_.wait_for(lock, kPause, [this] { return woken_ || ending_; });
  }
}

bool ResponseStore::step(Job& job) {
  const auto end = [&](const ApiError* error) {
    job.ended = true;
    if (error != nullptr) log_error(job.request->chat.id + ": " + error->what());
    const std::lock_guard lock(mutex_);
    job.stream.abort(error);
  };
  try {
    GenerationEvent event;
    if (job.cancelled) {
      end(nullptr);
      return true;
    }
    const GenerationRun::Status status = job.run.next(&event, std::chrono::milliseconds(0));
    if (status == GenerationRun::Status::kTimeout) return false;
    if (status == GenerationRun::Status::kEvent) job.on_event(event);
    const std::lock_guard lock(mutex_);
    if (status == GenerationRun::Status::kEvent) {
      job.stream.add(event, job.run);
    } else {
      job.stream.finish(job.run.usage());
      job.ended = true;
    }
  } catch (const ApiError& error) {
    end(&error);
  } catch (const std::exception& error) {
    const ApiError internal = openai::internal_error(error);
    end(&internal);
  }
  return true;
}

Json ResponseStore::show(const std::string& id, const std::string& owner) {
  {
    const std::lock_guard lock(mutex_);
    const auto job = jobs_.find(id);
    if (job != jobs_.end() && job->second->owner == owner) return job->second->stream.json();
  }
  return stored.get(id, owner).response;
}

Json ResponseStore::input_items(const std::string& id, const std::string& owner) {
  {
    std::unique_lock lock(mutex_);
    const auto job = jobs_.find(id);
    if (job != jobs_.end() && job->second->owner == owner) {
      const openai::StoredResponse running{owner, job->second->request->input, job->second->stream.json()};
      lock.unlock();
      return stored.input_items(running);
    }
  }
  return stored.input_items(stored.get(id, owner));
}

Json ResponseStore::stop(const std::string& id, const std::string& owner) {
  std::unique_lock lock(mutex_);
  const auto found = jobs_.find(id);
  if (found == jobs_.end() || found->second->owner != owner) return nullptr;
  const std::shared_ptr<Job> job = found->second;
  job->cancelled = woken_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !jobs_.contains(id); });
  return job->stream.json();
}

void ResponseStore::erase(const std::string& id, const std::string& owner) {
  const bool stopped = !stop(id, owner).is_null();
  try {
    stored.erase(id, owner);
  } catch (const ApiError&) {
    if (!stopped) throw;  // a response that ran may have had no room
  }
}

Json ResponseStore::cancel(const std::string& id, const std::string& owner) {
  Json response = stop(id, owner);
  if (response.is_null()) response = stored.get(id, owner).response;
  if (response["background"] == true) return response;
  throw openai::invalid_request("response_id", "Only a response that was created with 'background' can be cancelled");
}

void ResponseStore::wait_until_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty(); });
}

}  // namespace smartkv::http
