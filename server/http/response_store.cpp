#include "server/http/response_store.h"

#include <atomic>
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

Json ResponseStore::start(std::unique_ptr<openai::ResponsesRequest> request, GenerationRun run,
                          const std::string& owner, OnEvent on_event) {
  const std::string id = request->chat.id;
  const auto job = std::make_shared<Job>(std::move(request), std::move(run), owner, std::move(on_event), *this);
  Json begun = job->stream.json();
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread(&ResponseStore::work, this);
  jobs_.emplace(id, job);
  changed_.notify_all();
  return begun;
}

void ResponseStore::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const Jobs jobs = jobs_;
    lock.unlock();
    std::vector<std::string> ended;
    for (const auto& [id, job] : jobs) {
      if (!step(*job)) ended.push_back(id);
    }
    lock.lock();
    for (const std::string& id : ended) jobs_.erase(id);
    if (!ended.empty()) changed_.notify_all();
  }
}

bool ResponseStore::step(Job& job) {
  const auto abort = [&](const ApiError* error) {
    if (error != nullptr) log_error(job.request->chat.id + ": " + error->what());
    const std::lock_guard lock(mutex_);
    job.stream.abort(error);
    return false;
  };
  if (job.cancelled) return abort(nullptr);
  try {
    GenerationEvent event;
    const GenerationRun::Status status = job.run.next(&event);
    if (status == GenerationRun::Status::kEvent) job.on_event(event);
    const std::lock_guard lock(mutex_);
    if (status == GenerationRun::Status::kEvent) job.stream.add(event, job.run);
    if (status == GenerationRun::Status::kEnd) job.stream.finish(job.run.usage());
    return status != GenerationRun::Status::kEnd;
  } catch (const ApiError& error) {
    return abort(&error);
  } catch (const std::exception& error) {
    const ApiError internal = openai::internal_error(error);
    return abort(&internal);
  }
}

Json ResponseStore::show(const std::string& id, const std::string& owner) {
  {
    const std::lock_guard lock(mutex_);
    const auto job = jobs_.find(id);
    if (job != jobs_.end() && job->second->owner == owner) return job->second->stream.json();
  }
  return stored.get(id, owner).response;
}

bool ResponseStore::stop(const std::string& id, const std::string& owner) {
  std::unique_lock lock(mutex_);
  const auto job = jobs_.find(id);
  if (job == jobs_.end() || job->second->owner != owner) return false;
  job->second->cancelled = true;
  changed_.wait(lock, [&] { return !jobs_.contains(id); });
  return true;
}

void ResponseStore::erase(const std::string& id, const std::string& owner) {
  stop(id, owner);
  stored.erase(id, owner);
}

Json ResponseStore::cancel(const std::string& id, const std::string& owner) {
  stop(id, owner);
  Json response = stored.get(id, owner).response;
  if (response.value("background", false)) return response;
  throw openai::invalid_request("response_id", "Only a response that was created with 'background' can be cancelled");
}

void ResponseStore::wait_until_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty(); });
}

}  // namespace smartkv::http
