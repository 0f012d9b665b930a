#include "engine/parallel/rank_link.h"

#include <chrono>

#include "engine/log.h"

namespace smartkv {

void RankLink::tell(nlohmann::json operation) {
  const std::lock_guard lock(mutex_);
  if (lost_.empty()) pending_.push_back(std::move(operation));
}

void RankLink::flush() {
  nlohmann::json operations = nlohmann::json::array();
  {
    const std::lock_guard lock(mutex_);
    if (!lost_.empty()) throw RankError(lost_);
    operations.swap(pending_);
  }
  if (operations.empty()) return;
  try {
    group_->send(nlohmann::json::to_cbor(operations));
  } catch (const RankError& error) {
    lose_by(error);
    throw RankError(lost());
  }
}

void RankLink::lose(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!lost_.empty()) return;
    lost_ = "tensor_parallel: " + why;
    pending_.clear();
    log_error(lost_);
  }
  loss_.notify_all();
  const std::lock_guard lock(call_mutex_);
  if (on_lost_) on_lost_();
}

std::string RankLink::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void RankLink::lose_by(const std::exception& failure) {
  if (watched_) {
    std::unique_lock lock(mutex_);
    loss_.wait_for(lock, std::chrono::seconds(1), [this] { return !lost_.empty(); });
  }
  lose(failure.what());
}

void RankLink::on_lost(std::function<void()> call) {
  const std::lock_guard lock(call_mutex_);
  on_lost_ = std::move(call);
}

}  // namespace smartkv
